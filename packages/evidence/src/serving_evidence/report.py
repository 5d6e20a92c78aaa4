"""One self-contained HTML page of a verified packet: no script, nothing loaded, all text of the packet escaped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .text import for_html as h
from .verdict import show, show_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .packet import Verified

_STYLE = """
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:1rem auto;max-width:60rem;padding:0 1rem}
table{border-collapse:collapse;display:block;overflow-x:auto}td,th{padding:.2rem .6rem;text-align:left;
border-bottom:1px solid #8885}code{word-break:break-all}svg{max-width:100%;height:auto}.s{font-weight:bold}
text{fill:currentColor;font:12px system-ui,sans-serif}
"""
_WIDTH, _LEFT, _ROW = 720, 90, 22


def page(verified: Verified, name: str) -> str:
    """The page; every number comes from the recomputed verdict."""
    verdict, packet, protocol = verified.verdict, verified.packet, verified.protocol
    parts = [
        f"<h1>{h(protocol.name)}: {h(verdict['status'])}</h1>",
        f"<p>{h(protocol.question)}</p><p class=s>{h(verdict['sentence'])}</p>",
    ]
    if verdict["decision"]:
        found = verdict["decision"]
        parts.append(f"<p>Decision: <b>{h(found['choice'])}</b>, {h(found['reason'])}.</p>")
    found = verdict["mechanism"]
    parts.append(f"<p>Mechanism: <b>{h(found['status'])}</b>, {h(found['reason'])}.</p>")
    parts += _list("Why the run is invalid", verdict["invalid"])
    if verdict["rows"]:
        parts.append("<h2>Every pair of the primary metric</h2>" + forest(verdict["rows"][0]))
        parts.append("<h2>Metrics</h2>" + _metrics(verdict["rows"]))
    parts.append("<h2>Order of starts</h2>" + _timeline(verified))
    parts.append("<h2>Intention to measure</h2>" + _intention(verdict["intention_to_measure"]))
    parts += _list(
        "Excluded starts",
        [f"{e.index:03d}-{e.arm}, attempt {e.attempt}: {e.rule}, {e.reason}" for e in packet.excluded],
    )
    parts += _list("Deviations", [item.text for item in packet.deviations])
    parts += _list("Notes", [*verdict["outputs"], *verdict["warnings"]])
    who = h(packet.who_ran or "not said")
    parts.append(
        f"<h2>Recompute</h2><p><code>sha256sum -c manifest-sha256.txt</code> and "
        f"<code>serving-evidence verify {h(name)}</code>. Protocol <code>{h(packet.protocol_hash)}</code>; "
        f"run by {who}, {'independent' if packet.independent else 'not independent'}; {verified.files} files.</p>"
    )
    return (
        '<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">'
        f"<title>{h(protocol.name)}</title><style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


def forest(row: dict[str, Any]) -> str:
    """Forest plot as SVG: one dot a pair, then the verdict interval; right of the zero line B is better."""
    verdict = row["verdict"]
    values = [*row["effects"], 0.0, *(x for x in (verdict["low"], verdict["high"]) if x is not None)]
    low, high = min(values), max(values)
    span = (high - low) or 1.0

    def x(value: float) -> float:
        return float(_LEFT + (value - low) / span * (_WIDTH - _LEFT - 110))

    lines = []
    for i, effect in enumerate(row["effects"]):
        y = _ROW * (i + 1)
        lines.append(
            f'<text x="4" y="{y + 4}">pair {i}</text><circle cx="{x(effect):.1f}" cy="{y}" r="4" fill="#36c"/>'
        )
        lines.append(f'<text x="{_WIDTH - 100}" y="{y + 4}">{h(show(effect, verdict["scale"]))}</text>')
    bottom = _ROW * (len(row["effects"]) + 1)
    if verdict["low"] is not None and verdict["high"] is not None:
        lines.append(
            f'<line x1="{x(verdict["low"]):.1f}" x2="{x(verdict["high"]):.1f}" y1="{bottom}" y2="{bottom}" '
            f'stroke="#c33" stroke-width="4"/><text x="4" y="{bottom + 4}">interval</text>'
        )
    lines.append(
        f'<line x1="{x(0.0):.1f}" x2="{x(0.0):.1f}" y1="0" y2="{bottom + 10}" stroke="currentColor" '
        'stroke-dasharray="3"/>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {bottom + 16}" role="img" aria-label="forest plot">{"".join(lines)}</svg>'


def _metrics(rows: Sequence[dict[str, Any]]) -> str:
    head = ["scenario", "metric", "role", "A", "B", "better-by", "interval", "positive", "exact-p", "Holm", "verdict"]
    body = []
    for row in rows:
        verdict = row["verdict"]
        scale = verdict["scale"]
        bounds = show_bounds(verdict["low"], verdict["high"], scale) if verdict["pairs"] >= 2 else "none"
        cells = [
            verdict["scenario"],
            verdict["metric"],
            row["role"],
            f"{row['mean_a']:.5g}",
            f"{row['mean_b']:.5g}",
            show(verdict["estimate"], scale),
            bounds,
            f"{verdict['positive_pairs']}/{verdict['pairs']}",
            f"{row['sign_flip_p']:.4f}",
            "" if row["holm_p"] is None else f"{row['holm_p']:.4f}",
            verdict["status"],
        ]
        body.append("<tr>" + "".join(f"<td>{h(cell)}</td>" for cell in cells) + "</tr>")
    return "<table><tr>" + "".join(f"<th>{h(name)}</th>" for name in head) + "</tr>" + "".join(body) + "</table>"


def _timeline(verified: Verified) -> str:
    starts = sorted(verified.packet.starts, key=lambda start: start.began_at)
    if not starts:
        return "<p>No complete start.</p>"
    first, last = starts[0].began_at, max(start.ended_at for start in starts)
    scale = (_WIDTH - 40) / ((last - first) or 1.0)
    boxes = []
    for start in starts:
        left, width = 20 + (start.began_at - first) * scale, max((start.ended_at - start.began_at) * scale, 2.0)
        top, colour = (10, "#888") if start.arm == "A" else (40, "#36c")
        boxes.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="22" fill="{colour}"/>')
    labels = '<text x="2" y="26">A</text><text x="2" y="56">B</text>'
    return f'<svg viewBox="0 0 {_WIDTH} 70" role="img" aria-label="order of starts">{labels}{"".join(boxes)}</svg>'


def _intention(table: dict[str, dict[str, int]]) -> str:
    names = list(next(iter(table.values())))
    head = "<tr><th>arm</th>" + "".join(f"<th>{h(name.replace('_', ' '))}</th>" for name in names) + "</tr>"
    body = "".join(
        f"<tr><td>{h(arm)}</td>" + "".join(f"<td>{row[name]}</td>" for name in names) + "</tr>"
        for arm, row in table.items()
    )
    return f"<table>{head}{body}</table>"


def _list(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    return [f"<h2>{h(title)}</h2><ul>" + "".join(f"<li>{h(item)}</li>" for item in items) + "</ul>"]
