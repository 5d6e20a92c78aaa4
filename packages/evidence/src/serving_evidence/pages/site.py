"""The claims of a reviewer site as Markdown pages with plain HTML inside: one a packet of a ledger, and a front page.

The pages are text that can be kept in git and read there; `check` makes them again and names the first that differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import ledger, published
from ..errors import EvidenceError
from ..published import our_verdict
from ..report import style
from ..verdict import show, show_bounds
from .html import Safe, chip, code, h, items, paragraph, table
from .sections import sections, when

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ..packet import Verified
    from ..packet.records import LedgerEntry
    from ..published import Published

MADE = "<!-- Made by `serving-evidence site` from the packets; edit nothing here. -->\n"
# Tables of numbers need the width; the site's top links stay.
WIDE = "---\nhide:\n  - navigation\n---\n"
STYLE = "evidence.css"
VERDICTS = (
    ("REPRODUCED", "the interval's lower bound lies above the margin that the protocol fixed before the first start"),
    ("NOT_REPRODUCED", "its upper bound lies below the margin"),
    ("INCONCLUSIVE", "the margin lies inside the interval, or there are fewer than 6 pairs of starts"),
    ("INVALID", "the run broke its protocol, whatever its numbers say"),
)


def pages(
    packets: Path, published_folder: Path | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, str]:
    """File name to text of every page; every packet is verified on the way."""
    checked = ledger.check(packets, progress)
    others = [published.load(path) for path in sorted(published_folder.glob("*.toml"))] if published_folder else []
    made = {STYLE: style(), "index.md": _front(checked, others)}
    for entry, verified in checked:
        made[f"{entry.packet}.md"] = _claim(entry, verified)
    for other in others:
        name = f"published-{other.name}.md"
        if name in made:
            raise EvidenceError(f"{name}: a packet and a published result share a page")
        made[name] = _published(other)
    return made


def write(out: Path, made: dict[str, str]) -> list[str]:
    """Write what differs and remove pages that no packet has any more; returns the names that changed."""
    out.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, text in made.items():
        path = out / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    for path in sorted(out.glob("*.md")):
        if path.name not in made and MADE in path.read_text(encoding="utf-8"):
            path.unlink()
            changed.append(path.name)
    return changed


def check(out: Path, made: dict[str, str]) -> str | None:
    """What is wrong with the pages in a folder, or None when they are exactly those of the packets."""
    there = [*out.glob("*.md"), *out.glob(STYLE)] if out.is_dir() else []
    present = {path.name: path.read_text(encoding="utf-8") for path in there}
    for name in sorted(set(made) | set(present)):
        if name not in present:
            return f"{name} is missing"
        if name not in made:
            return f"{name} belongs to no packet"
        old, new = present[name].splitlines(), made[name].splitlines()
        for number, (a, b) in enumerate(zip(old, new, strict=False), start=1):
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                around = slice(max(at - 20, 0), at + 40)
                return f"{name} line {number} says {a[around]!r}, the packet {b[around]!r}"
        if len(old) != len(new):
            return f"{name} has {len(old)} lines, the packets give {len(new)}"
    return None


def _front(checked: list[tuple[LedgerEntry, Verified]], others: list[Published]) -> str:
    rows = [_packet_row(entry, verified) for entry, verified in checked] + [_published_row(other) for other in others]
    head = [
        "question",
        "verdict",
        "B better by, 95 % interval",
        "pairs better",
        "decision",
        "mechanism",
        "date",
        "independent",
    ]
    measured = [entry.packet for entry, verified in checked if verified.packet.host.get("npu_smi")]
    npu = (
        "Packets measured on an NPU: " + ", ".join(measured) + "."
        if measured
        else "No packet here was measured on an NPU. What each of them ran on stands in its notes and among its host "
        "facts; their times say what this harness can tell apart there, and nothing about the speed of an NPU. Results "
        "that others published from an NPU are quoted as published."
    )
    glossary = [[chip(word), text] for word, text in VERDICTS]
    more = [
        "Every packet has the same place in this list, whatever its verdict; the order is that of the ledger.",
        "The unit is the pair of server starts. Intervals are never computed over pooled requests.",
        "REPRODUCED speaks of the authors' own starts. Results that another party reproduced say so under independent.",
        Safe(
            f"Check all of it: {code('serving-evidence ledger evidence/packets')} hashes and recomputes every packet."
        ),
    ]
    return (
        f'{WIDE}{MADE}# Claims\n\n!!! warning "What no NPU has confirmed"\n    {h(npu)}\n\n'
        f"{table(head, rows) if rows else paragraph('No packet yet.')}\n\n"
        f"## How to read it\n\n{items(more)}\n\n"
        f"## Verdicts\n\n{table(['word', 'meaning'], glossary)}\n"
    )


def _packet_row(entry: LedgerEntry, verified: Verified) -> list[object]:
    verdict, claim = verified.verdict, verified.protocol.primary
    found = verdict["rows"][0]["verdict"] if verdict["rows"] else None
    effect = "none"
    if found:
        bounds = show_bounds(found["low"], found["high"], found["scale"]) if found["pairs"] >= 2 else "no interval"
        effect = f"{show(found['estimate'], found['scale'])}, {bounds}"
    return [
        Safe(f'<a href="{h(entry.packet)}.html">{h(verified.protocol.question)}</a>'),
        chip(verdict["status"]),
        Safe(f"<b>{h(effect)}</b><br>{h(claim.metric)}: {h(claim.rule)}, margin {claim.margin:.1%}"),
        f"{found['positive_pairs']} of {found['pairs']}" if found else "none",
        verdict["decision"]["choice"] if verdict["decision"] else "none",
        verdict["mechanism"]["status"] if verified.protocol.mechanism else "not declared",
        when(verified.packet.locked_at)[:10],
        "yes" if verified.packet.independent else "no",
    ]


def _published_row(other: Published) -> list[object]:
    status, _ = our_verdict(other)
    first = other.figures[0]
    positive = "?" if first.positive_pairs is None else first.positive_pairs
    return [
        Safe(f'<a href="published-{h(other.name)}.html">{h(other.title)}</a>, published by {h(other.who)}'),
        Safe(f"theirs {chip(other.their_verdict)}<br>ours {chip(status)}"),
        Safe(f"<b>{first.change_percent:+.2f} %</b>, interval not published<br>{h(first.metric)}, {h(first.scenario)}"),
        f"{positive} of {other.pairs}",
        "theirs: " + other.their_decision.partition(";")[0],
        "theirs: " + other.mechanism.partition(":")[0],
        other.date,
        "no",
    ]


def _claim(entry: LedgerEntry, verified: Verified) -> str:
    parts = [f"{WIDE}{MADE}# {h(verified.protocol.name)}\n"]
    if entry.note:
        parts.append(f"{paragraph(entry.note)}\n")
    parts += [f"## {h(section.title)}\n\n<div>{section.html}</div>\n" for section in sections(verified, entry.packet)]
    return "\n".join(parts)


def _published(other: Published) -> str:
    status, reason = our_verdict(other)
    figures = []
    for figure in other.figures:
        known = figure.low_percent is not None and figure.high_percent is not None
        interval = f"{figure.low_percent:+.2f} % to {figure.high_percent:+.2f} %" if known else "not published"
        positive = "" if figure.positive_pairs is None else f"{figure.positive_pairs} of {other.pairs}"
        figures.append([figure.scenario, figure.metric, f"{figure.change_percent:+.2f} %", interval, positive])
    rules = [
        ["theirs", chip(other.their_verdict), other.their_rule, other.their_decision],
        ["this kit's", chip(status), reason, "none: a decision needs a verdict"],
    ]
    facts: list[list[object]] = [
        ["date", other.date],
        ["conditions", other.conditions],
        ["pairs of starts", other.pairs],
        ["requests", f"{other.requests}, {other.failed} failed"],
        ["interval", other.method],
        ["mechanism", other.mechanism],
    ]
    said = f"Published by {other.who}; neither measured nor recomputed by this kit."
    head = ["scenario", "metric", "B against A, as published", "95 % interval, as published", "pairs better"]
    return (
        f"{WIDE}{MADE}# {h(other.title)}\n\n{paragraph(said)}\n\n"
        f"## Under both rules\n\n{table(['rule', 'verdict', 'why', 'decision'], rules)}\n\n"
        f"## What was published\n\n{table(head, figures)}\n\n{table(['', ''], facts)}\n\n"
        f"## Deviations that they listed\n\n{items(other.deviations) if other.deviations else paragraph('none')}\n"
    )
