"""Reports as tables and text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from vllm_pairs.doctor.findings import LEVELS, DoctorError, Finding
from vllm_pairs.doctor.rules import BY_ID, RULES

if TYPE_CHECKING:
    from vllm_pairs.doctor.findings import Confidence, Report

_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}


def as_table(report: Report, confidence: Confidence) -> Table:
    """One row a finding: what, where in the plugin, where in the core and what it has."""
    since = any(finding.since for finding in report.findings)
    table = Table("level", "when", "id", "plugin", "what", "core", *(["since"] if since else []), show_lines=False)
    for finding in report.at(confidence):
        core = f"{finding.core_file}:{finding.core_line}" if finding.core_file else "-"
        cells = [
            f"[{_COLOURS[finding.level]}]{finding.level}[/]",
            finding.severity,
            finding.id,
            escape(f"{finding.file}:{finding.line}"),
            escape(finding.message),
            escape(f"{core}\n{finding.core_has}" if finding.core_has else core),
        ]
        table.add_row(*cells, *([finding.since or "-"] if since else []))
    return table


def summary(report: Report, confidence: Confidence) -> str:
    """One line: both sides, how many findings, how long."""
    sides = " with ".join(f"{tree.name} {tree.version or '(no version)'}" for tree in (report.core, report.plugin))
    counts = ", ".join(f"{report.count(level, confidence)} {level}s" for level in LEVELS)
    hidden = f", {len(report.suppressed)} suppressed" if report.suppressed else ""
    less = len(report.findings) - len(report.at(confidence))
    more = f"; {less} less sure ones with --confidence low" if less else ""
    return f"{sides}: {counts}{hidden}{more} ({report.seconds:.1f} s{', from cache' if report.cached else ''})"


def explain(wanted: str, report: Report | None = None) -> str:
    """What a rule (VPD201) or a finding of the report (VPD201-1a2b3c4d) means and what to do."""
    rule = BY_ID.get(wanted.partition("-")[0].upper())
    if rule is None:
        raise DoctorError(f"no rule {wanted!r}; rules are {', '.join(one.id for one in RULES)}")
    lines = [f"{rule.id} {rule.kind}: {rule.title}"]
    if rule.exception:
        lines.append(f"Raises: {rule.exception}")
    lines += [rule.why, f"Fix: {rule.fix}"]
    if "-" in wanted and report is not None:
        found = [one for one in (*report.findings, *report.suppressed) if one.id == wanted]
        if not found:
            raise DoctorError(f"no finding {wanted!r} in this report; `--json` lists the ids")
        lines += [line for one in found for line in _lines(one)]
    return "\n".join(lines)


def _lines(finding: Finding) -> list[str]:
    return [
        "",
        f"{finding.file}:{finding.line}-{finding.end_line} in {finding.scope or 'the module'}",
        f"  {finding.message}",
        f"  symbol: {finding.symbol}; {finding.level}, {finding.severity}, confidence {finding.confidence}",
        f"  core: {finding.core_file or '-'}:{finding.core_line or '-'} has {finding.core_has or '-'}",
    ]
