"""The doctor's findings against what really failed: recall over the truth's rows, precision over the findings.

Truth: distinct (symbol, argument, site) of a real ImportError, ModuleNotFoundError, AttributeError or TypeError whose
symbol is the core's, or a plugin's function that the core calls. Left out and counted: what the plugin's own verified
pair shows too, packages and operators that only an NPU host has, the simulator's own faults, and what follows from a
repair.

Precision is about errors of severity import-time and start-up. Each is one of
real          a row of the truth
known         the verified pair really fails there too (a module that a model imports only when it is asked for)
false         the site ran, unrepaired, and nothing failed there
unclear       something failed at the site that is no row: the fault of a repair, of the simulator, of another kind
not reached   nothing here came to the site: no verdict, like unclear in neither part of the ratio, but counted
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

WORDS = ("real", "false", "known", "unclear", "not reached")
KINDS = ("ImportError", "ModuleNotFoundError", "AttributeError", "TypeError")
EARLY = ("import-time", "start-up")
# Findings about a definition: the site ran when the function was entered, not when `def` was executed.
DEFINITION_KINDS = (
    "override-signature",
    "override-kind",
    "abstract-method",
    "replacement-signature",
    "substitute-member",
    "uninitialised",
    "hook-target",
)


@dataclass(frozen=True)
class Row:
    """One real failure, as the truth's file has it."""

    phase: str
    kind: str
    symbol: str
    argument: str
    file: str
    line: int
    core_file: str
    core_line: int
    message: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes two failures one."""
        return self.symbol, self.argument, self.file, self.line


@dataclass
class Verdict:
    """One cell: rows with whether they were found, early errors with what became of them."""

    core: str
    plugin: str
    rows: list[Row] = field(default_factory=list)
    missed: list[Row] = field(default_factory=list)
    missed_as_error: int = 0
    excluded: dict[str, int] = field(default_factory=dict)
    judged: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {word: [] for word in WORDS})

    @property
    def found(self) -> int:
        """Rows that are a finding."""
        return len(self.rows) - len(self.missed)


def rows_of(cell: dict[str, Any]) -> list[Row]:
    """Distinct failures of a cell that a core's change can have caused."""
    found: dict[tuple[str, str, str, int], Row] = {}
    for raw in cell["rows"]:
        if raw["origin"] == "mismatch" and raw["kind"] in KINDS:
            row = Row(**{name: raw[name] for name in Row.__dataclass_fields__})
            found.setdefault(row.key, row)
    return list(found.values())


def truth(cell: dict[str, Any], baseline: dict[str, Any] | None) -> tuple[list[Row], list[Row], dict[str, int]]:
    """Truth of a cell, the rows that its verified pair shows too, and how many others were left out, by reason."""
    rows = rows_of(cell)
    known = {row.key for row in rows_of(baseline)} if baseline else set()
    excluded = {"verified pair": sum(row.key in known for row in rows)}
    for raw in cell["rows"]:
        if raw["origin"] != "mismatch":
            excluded[raw["origin"]] = excluded.get(raw["origin"], 0) + 1
        elif raw["kind"] not in KINDS:
            excluded["other"] = excluded.get("other", 0) + 1
    return [row for row in rows if row.key not in known], [row for row in rows if row.key in known], excluded


def last_name(symbol: str) -> str:
    """The bare name at the end of `module:qualified.name`."""
    return re.split(r"[.:]", symbol)[-1]


def matches(row: Row, finding: dict[str, Any]) -> bool:
    """Whether a finding is this failure: its site, its symbol and, where both name one, its argument."""
    inside = row.file == finding["file"] and finding["line"] <= row.line <= finding["end_line"]
    core = bool(row.core_file) and row.core_file == finding["core_file"] and row.core_line == finding["core_line"]
    if not (inside or (core and row.file == finding["file"])):
        return False
    return same_symbol(row, finding)


def same_symbol(row: Row, finding: dict[str, Any]) -> bool:
    """Whether both are about one symbol. Of a missing module Python names the first part that is not there."""
    if row.kind == "ModuleNotFoundError":
        module = finding["symbol"].replace(":", ".")
        return f"{module}.".startswith(f"{row.symbol}.") or f"{row.symbol}.".startswith(f"{module}.")
    if row.argument:
        if last_name(row.symbol) not in (last_name(finding["symbol"]), finding["name"]):
            return False
        named = {word for word in re.findall(r"\w+", finding["name"]) if not word.isdigit()}
        asked = {word for word in re.findall(r"\w+", row.argument) if not word.isdigit()}
        return not named or not asked or bool(named & asked) or last_name(finding["symbol"]) == finding["name"]
    return last_name(row.symbol) in (last_name(finding["symbol"]), finding["name"])


def reached(finding: dict[str, Any], cell: dict[str, Any]) -> bool:
    """Whether the finding's site ran in this cell."""
    definition = finding["kind"] in DEFINITION_KINDS
    ran = cell["executed"]["entered" if definition else "lines"].get(finding["file"], ())
    # A decorated function's first line is its decorator's, a few lines above.
    first = finding["line"] - (5 if definition else 0)
    return any(first <= line <= finding["end_line"] for line in ran)


def judge(
    cell: dict[str, Any], baseline: dict[str, Any] | None, findings: list[dict[str, Any]], least: tuple[str, ...]
) -> Verdict:
    """Compare one cell; `least` are the levels of findings that count as said (error and warning)."""
    rows, known, excluded = truth(cell, baseline)
    said = [finding for finding in findings if finding["level"] in least]
    errors = [finding for finding in said if finding["level"] == "error"]
    verdict = Verdict(cell["core"], cell["plugin"], rows, excluded=excluded)
    verdict.missed = [row for row in rows if not any(matches(row, finding) for finding in said)]
    verdict.missed_as_error = sum(not any(matches(row, finding) for finding in errors) for row in rows)
    strays = [row for row in cell["rows"] if row["origin"] != "mismatch" or row["kind"] not in KINDS]
    for finding in errors:
        if finding["severity"] not in EARLY:
            continue
        if any(matches(row, finding) for row in rows):
            word = "real"
        elif any(matches(row, finding) for row in known):
            word = "known"
        elif any(finding["file"] == r["file"] and finding["line"] <= r["line"] <= finding["end_line"] for r in strays):
            word = "unclear"
        else:
            word = "false" if reached(finding, cell) else "not reached"
        verdict.judged[word].append(finding)
    return verdict


def ratio(part: int, whole: int) -> float | None:
    """A share, or None where there is nothing to share."""
    return part / whole if whole else None
