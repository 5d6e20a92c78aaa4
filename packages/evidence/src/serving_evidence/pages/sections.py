"""What a page says of one packet, section by section; every number comes from the recomputed verdict."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log1p
from typing import TYPE_CHECKING, Any

from .. import stats
from ..evaluate import starts_of
from ..samples import QUANTILES
from ..verdict import show, show_bounds
from . import plots
from .html import Safe, chip, code, folded, h, items, paragraph, table

if TYPE_CHECKING:
    from ..packet import Verified
    from ..protocol import ArmSpec


@dataclass(frozen=True)
class Section:
    """A heading of ours and the HTML below it."""

    title: str
    html: str


def sections(verified: Verified, name: str) -> list[Section]:
    """Every section of a packet's page, in reading order; empty ones are left out."""
    found = [
        Section("Claim", _claim(verified)),
        Section("Why the run is invalid", _list(verified.verdict["invalid"])),
        Section("Every pair of starts", _pairs(verified)),
        Section("Metrics", _metrics(verified)),
        Section("Mechanism", _mechanism(verified)),
        Section("Order of starts", _order(verified)),
        Section("ITL of every start", _itls(verified)),
        Section("Noise and power", _power(verified)),
        Section("Workload and outputs", _workload(verified)),
        Section("Starts and requests that count, and those that do not", _intention(verified)),
        Section("What differs between the arms", _arms(verified)),
        Section("Host and neighbours", _host(verified)),
        Section("Protocol", _protocol(verified)),
        Section("Recompute this verdict", _recompute(verified, name)),
    ]
    return [section for section in found if section.html]


def when(seconds: float) -> str:
    """A time of the packet for people, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _list(values: list[Any]) -> str:
    return items(values) if values else ""


def _claim(verified: Verified) -> str:
    verdict, protocol = verified.verdict, verified.protocol
    said = verdict["sentence"].removeprefix(f"{verdict['status']}: ")
    parts = [paragraph(protocol.question), Safe(f"<p>{chip(verdict['status'])} {h(said)}</p>")]
    if verdict["decision"]:
        found = verdict["decision"]
        parts.append(Safe(f"<p>Decision: <b>{h(found['choice'])}</b>, {h(found['reason'])}.</p>"))
    if protocol.notes:
        parts.append(paragraph(protocol.notes))
    return "".join(parts)


def _pairs(verified: Verified) -> str:
    if not verified.verdict["rows"]:
        return ""
    row, claim = verified.verdict["rows"][0], verified.protocol.primary
    margin = claim.margin if row["verdict"]["scale"] == "difference" else log1p(claim.margin)
    margins = {"better": [margin], "not-worse": [-margin], "same": [-margin, margin]}[claim.rule]
    starts = starts_of(verified.packet, verified.runs)
    values = []
    for pair in sorted({start.pair for start in starts}):
        both = {s.arm: s.values[claim.scenario][claim.metric] for s in starts if s.pair == pair}
        if len(both) == 2:
            values.append((both["A"], both["B"]))
    said = f"{claim.metric} ({claim.scenario}), primary. Positive is better for B: {verified.protocol.arms['B'].label}."
    return paragraph(said) + plots.forest(row, [value for value in margins if value]) + plots.slope(row, values)


def _metrics(verified: Verified) -> str:
    head = ["metric", "claim", "A", "B", "B better by, interval", "pairs better", "exact p", "Holm p", "verdict"]
    body = []
    for row in verified.verdict["rows"]:
        verdict = row["verdict"]
        bounds = show_bounds(verdict["low"], verdict["high"], verdict["scale"]) if verdict["pairs"] >= 2 else "none"
        body.append(
            [
                Safe(f"<b>{h(verdict['metric'])}</b><br>{h(verdict['scenario'])}, {h(row['role'])}"),
                f"{verdict['rule']}, margin {verdict['margin']:.2%}",
                f"{row['mean_a']:.5g}",
                f"{row['mean_b']:.5g}",
                Safe(f"<b>{h(show(verdict['estimate'], verdict['scale']))}</b><br>{h(bounds)}"),
                f"{verdict['positive_pairs']} of {verdict['pairs']}",
                f"{row['sign_flip_p']:.4f}",
                "" if row["holm_p"] is None else f"{row['holm_p']:.4f}",
                chip(verdict["status"]),
            ]
        )
    if not body:
        return ""
    primary = verified.verdict["rows"][0]
    return table(head, body) + folded("All intervals of the primary metric", _intervals(primary))


def _intervals(row: dict[str, Any]) -> str:
    pairs, scale = row["verdict"]["pairs"], row["verdict"]["scale"]
    body = []
    for method, (low, high) in row["intervals"].items():
        decides = method in ("bootstrap-t", "paired-t")
        covered = stats.simulated_coverage("verdict" if decides else method, pairs)
        used = "the wider of these two decides" if decides else "shown only"
        shown = "not simulated" if covered is None else ", ".join(f"{v:.3f} {name}" for name, v in covered.items())
        body.append([method, show_bounds(low, high, scale), used, shown])
    head = [
        "method",
        f"nominal {row['verdict']['level']:.0%} interval",
        "use",
        "coverage in simulation at this many pairs",
    ]
    return table(head, body)


def _mechanism(verified: Verified) -> str:
    found, declared = verified.verdict["mechanism"], verified.protocol.mechanism
    if declared is None:
        return ""
    body = []
    for rule in declared.rules:
        cells = [rule.counter]
        for arm, expected in (("A", rule.A), ("B", rule.B)):
            mine = [start.counters for start in verified.packet.starts if start.arm == arm]
            seen = sorted({counters[rule.counter] for counters in mine if rule.counter in counters})
            cells += [f"{expected:g}", ", ".join(f"{value:g}" for value in seen[:6]) or "not measured"]
        body.append(cells)
    said = Safe(
        f"<p><b>{h(found['status'])}</b>: {h(found['reason'])}. Counters are exact; this verdict and the one on "
        "time are never derived from each other.</p>"
    )
    return said + table(["counter", "A expected", "A seen", "B expected", "B seen"], body)


def _order(verified: Verified) -> str:
    starts = verified.packet.starts
    if not starts:
        return paragraph("No complete start.")
    design = verified.protocol.design
    said = f"{design.order} blocks from seed {design.seed}; a new server process for every start."
    return paragraph(said) + plots.timeline(starts)


def _itls(verified: Verified) -> str:
    parts = []
    for scenario in verified.protocol.scenarios:
        found = []
        for start in sorted(verified.packet.starts, key=lambda one: one.began_at):
            run = verified.runs.get((start.index, scenario.name))
            if run is not None and run.requests is not None and run.requests.itl_ms.size:
                found.append((start, run.requests.itl_ms))
        if found:
            parts.append(
                paragraph(f"Scenario {scenario.name}, one row a start, in time order.") + plots.distributions(found)
            )
            parts.append(folded(f"Tail bounds, {scenario.name}", _tails(found)))
    return "".join(parts)


def _tails(found: list[tuple[Any, Any]]) -> str:
    body = []
    for start, values in found:
        bound = stats.tail_bound(values, QUANTILES["p99"])
        upper = f"needs {bound.floor} samples" if bound.upper is None else f"{bound.upper:.4g}"
        body.append([start.index, start.arm, bound.samples, f"{bound.estimate:.4g}", upper])
    return table(["start", "arm", "ITLs", "p99, ms", "upper 99 % bound of p99, ms"], body)


def _power(verified: Verified) -> str:
    parts: list[str] = []
    calibration = verified.packet.calibration
    if calibration is None:
        parts.append(paragraph("No A/A calibration of this box was given to the run."))
    else:
        parts.append(
            paragraph(
                f"A/A calibration: {calibration.false_positive_rate:.1%} of the relabelled A/A run gave a directional "
                f"verdict ({calibration.metric}, {calibration.pairs} pairs, {calibration.source})."
            )
        )
    rows = verified.verdict["rows"]
    if rows:
        body = []
        for row in rows:
            scale = row["verdict"]["scale"]
            body.append(
                [
                    row["verdict"]["metric"],
                    row["verdict"]["scenario"],
                    row["verdict"]["pairs"],
                    "none" if row["sd"] is None else show(row["sd"], scale).lstrip("+"),
                    "none" if row["detectable"] is None else show(row["detectable"], scale).lstrip("+"),
                    f"{row['sign_flip_minimum']:.4f}",
                ]
            )
        head = ["metric", "scenario", "pairs", "spread of a pair", "detectable with these pairs", "smallest exact p"]
        target = verified.protocol.decision.power
        parts.append(
            table(head, body) + paragraph(f"Detectable: the effect found with a chance of {target:.0%} at this spread.")
        )
    return "".join(parts)


def _workload(verified: Verified) -> str:
    body = []
    for scenario in verified.protocol.scenarios:
        prints = sorted(
            {
                json.dumps(run.workload, sort_keys=True)
                for (_, name), run in verified.runs.items()
                if name == scenario.name
            }
        )
        body.append(
            [scenario.name, len(prints), scenario.outputs, Safe("<br>".join(code(text) for text in prints[:2]))]
        )
    head = ["scenario", "different workloads", "outputs", "workload"]
    return table(head, body) + _list(verified.verdict["outputs"])


def _intention(verified: Verified) -> str:
    found = verified.verdict["intention_to_measure"]
    names = list(next(iter(found.values())))
    body = [[arm, *(row[name] for name in names)] for arm, row in found.items()]
    excluded = [[f"{e.index:03d}-{e.arm}", e.attempt, e.rule, e.reason, when(e.at)] for e in verified.packet.excluded]
    parts = table(["arm", *(name.replace("_", " ") for name in names)], body)
    if excluded:
        parts = Safe(parts + table(["start", "attempt", "rule", "reason", "at"], excluded))
    deviations = [f"{when(item.at)}: {item.text}" for item in verified.packet.deviations]
    said = paragraph("Deviations from the protocol: none." if not deviations else "Deviations from the protocol:")
    return parts + said + _list(deviations)


def _arms(verified: Verified) -> str:
    arms = verified.protocol.arms
    fields: list[list[object]] = [["label", arms["A"].label, arms["B"].label]]
    declared = {arm: _declared(arms[arm]) for arm in ("A", "B")}
    for name, a in declared["A"].items():
        b = declared["B"][name]
        fields.append([name, code(a), "the same" if a == b else code(b)])
    starts = verified.packet.starts
    recorded = {
        arm: {json.dumps(s.environment.get("variables", {}), sort_keys=True) for s in starts if s.arm == arm}
        for arm in ("A", "B")
    }
    same = recorded["A"] == recorded["B"]
    fields.append(
        [
            "variables recorded",
            Safe("<br>".join(code(text) for text in sorted(recorded["A"])[:3])),
            "the same" if same else Safe("<br>".join(code(text) for text in sorted(recorded["B"])[:3])),
        ]
    )
    hashes = {arm: sorted({str(start.code_hash) for start in starts if start.arm == arm}) for arm in ("A", "B")}
    same = hashes["A"] == hashes["B"]
    fields.append(["code, SHA-256", code(", ".join(hashes["A"])), "the same" if same else code(", ".join(hashes["B"]))])
    return table(["", "A", "B"], fields)


def _declared(arm: ArmSpec) -> dict[str, str]:
    return {
        "command": " ".join(arm.command),
        "environment": json.dumps(arm.environment, sort_keys=True),
        "additional_config": json.dumps(arm.additional_config, sort_keys=True),
        "active_log": arm.active_log or "none",
    }


def _host(verified: Verified) -> str:
    facts = [
        [name, json.dumps(value, sort_keys=True)]
        for name, value in sorted(verified.packet.host.items())
        if value is not None
    ]
    body = []
    for start in sorted(verified.packet.starts, key=lambda one: one.began_at):
        found = start.environment
        keys = ("cpu_busy_percent", "load_average", "processes", "server_version", "model_sha256")
        body.append([start.index, start.arm, when(start.began_at), *(json.dumps(found.get(key)) for key in keys)])
    head = ["start", "arm", "began", "CPU busy before, %", "load average", "processes", "server", "model"]
    parts = table(["host", "value"], facts) if facts else ""
    return parts + folded("Before every start: the neighbours' load", table(head, body))


def _protocol(verified: Verified) -> str:
    packet = verified.packet
    first = min((start.began_at for start in packet.starts), default=None)
    said = f"locked {when(packet.locked_at)}" + (f", first start {when(first)}" if first is not None else "")
    independent = "independent" if packet.independent else "not independent"
    who = f"Run by {packet.who_ran or 'not said'}, {independent}; written by {packet.written_by}."
    text = json.dumps(json.loads(verified.protocol.canonical()), indent=1, sort_keys=True, ensure_ascii=False)
    lines = "<br>".join(h(line).replace("  ", "&nbsp;&nbsp;") or "&nbsp;" for line in text.splitlines())
    return (
        Safe(f"<p>SHA-256 {code(packet.protocol_hash)}, {h(said)}. {h(who)}</p>")
        + folded("The whole protocol, defaults included", f'<p class="se-code">{lines}</p>')
        + _list(verified.verdict["warnings"])
    )


def _recompute(verified: Verified, name: str) -> str:
    commands = [
        [code("sha256sum -c manifest-sha256.txt"), "inside the packet's folder: the files are those listed"],
        [code(f"serving-evidence verify {name}"), "every number again from the raw files, offline"],
        [code(f"serving-evidence run {name}/protocol.toml --out run"), "the same protocol on your own box"],
    ]
    files = [[code(where), code(digest)] for where, digest in sorted(verified.hashes.items())]
    said = f"{verified.files} files, hashed and recomputed when this page was made."
    return (
        table(["command", "what it does"], commands)
        + paragraph(said)
        + folded("Files and hashes", table(["file", "SHA-256"], files))
    )
