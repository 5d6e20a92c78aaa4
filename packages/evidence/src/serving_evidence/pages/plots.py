"""Plots as SVG text: no script, no font, colours that read on light and on dark; all text of a packet escaped.

Every mark has a `<title>`, so that a value can be read off without a script.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..text import for_html as h
from ..verdict import show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..packet.records import StartRecord

WIDTH = 720
ROW = 24
COLOURS = {"A": "#8a8f98", "B": "#3d7fe0"}
_INTERVAL, _MARGIN = "#c2410c", "#15803d"


def forest(row: dict[str, Any], margins: Sequence[float] = ()) -> str:
    """One dot a pair, then the verdict interval with its estimate; right of the zero line B is better.

    margins: where the claim is decided, oriented, in the row's units, where that is not at zero.
    """
    verdict = row["verdict"]
    scale, left, right = verdict["scale"], 80, WIDTH - 100
    bounds = [x for x in (verdict["low"], verdict["high"]) if x is not None]
    x = _linear([*row["effects"], 0.0, *margins, *bounds], left, right)
    lines = []
    for i, effect in enumerate(row["effects"]):
        y = ROW * (i + 1)
        value = h(show(effect, scale))
        lines.append(_text(4, y + 4, f"pair {i + 1}") + _text(right + 10, y + 4, value))
        lines.append(_dot(x(effect), y, COLOURS["B"], f"pair {i + 1}: {value}"))
    bottom = ROW * (len(row["effects"]) + 1)
    if len(bounds) == 2:
        lines.append(
            f'<line x1="{x(bounds[0]):.1f}" x2="{x(bounds[1]):.1f}" y1="{bottom}" y2="{bottom}" stroke="{_INTERVAL}" '
            f'stroke-width="4"/>{_dot(x(verdict["estimate"]), bottom, _INTERVAL, "estimate")}'
        )
        lines.append(
            _text(4, bottom + 4, "interval") + _text(right + 10, bottom + 4, h(show(verdict["estimate"], scale)))
        )
    lines.append(_upright(x(0.0), bottom + 10, "currentColor") + _text(x(0.0) + 4, bottom + 22, "no difference"))
    lines += [_upright(x(value), bottom + 10, _MARGIN) + _text(x(value), 10, "margin", "middle") for value in margins]
    return _svg(bottom + 28, "Effect of every pair of starts and the interval", lines)


def slope(row: dict[str, Any], values: Sequence[tuple[float, float]]) -> str:
    """A line from A to B for every pair, in the metric's own unit."""
    height = 220
    y = _linear([v for pair in values for v in pair], height - 24, 24)
    left, right = 160, WIDTH - 160
    lines = [_text(left - 6, 14, "A", "end"), _text(right + 6, 14, "B")]
    for i, (a, b) in enumerate(values):
        better = row["effects"][i] > 0
        stroke = COLOURS["B"] if better else _INTERVAL
        lines.append(
            f'<line x1="{left}" x2="{right}" y1="{y(a):.1f}" y2="{y(b):.1f}" stroke="{stroke}" stroke-width="2">'
            f"<title>pair {i + 1}: {a:.5g} to {b:.5g}</title></line>"
        )
    low, high = min(v for pair in values for v in pair), max(v for pair in values for v in pair)
    lines += [_text(left - 10, y(value) + 4, f"{value:.5g}", "end") for value in dict.fromkeys((low, high))]
    return _svg(height, "Each pair from A to B", lines)


def timeline(starts: Sequence[StartRecord]) -> str:
    """Order of the starts on a time axis in minutes; the dark part of a box is the time until the server was ready."""
    in_time = sorted(starts, key=lambda start: start.began_at)
    first, last = in_time[0].began_at, max(start.ended_at for start in in_time)
    x = _linear([0.0, (last - first) / 60], 30, WIDTH - 30)
    lines = [_text(4, 26, "A"), _text(4, 56, "B")]
    for start in in_time:
        top = 10 if start.arm == "A" else 40
        began, ready, ended = (x((t - first) / 60) for t in (start.began_at, start.ready_at, start.ended_at))
        box = f'x="{began:.1f}" y="{top}" height="22" fill="{COLOURS[start.arm]}"'
        title = f"<title>start {start.index}: {start.ended_at - start.began_at:.0f} s</title>"
        lines.append(
            f'<rect {box} width="{max(ended - began, 1.5):.1f}" fill-opacity=".55">{title}</rect>'
            f'<rect {box} width="{max(ready - began, 1):.1f}"/>'
        )
    end = (last - first) / 60
    digits = 0 if end >= 10 else 1
    lines += [_text(x(t), 84, f"{t:.{digits}f} min", "middle") for t in np.linspace(0.0, end, 5)]
    return _svg(92, "Order of the starts in time", lines)


def distributions(samples: Sequence[tuple[StartRecord, Any]], unit: str = "ms") -> str:
    """One row a start, in time order: thin p5 to p95, thick p25 to p75, a tick at the median, a dot at p99."""
    cuts = [np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95, 0.99]) for _, values in samples]
    floor = min(float(c[0]) for c in cuts)
    log = floor > 0 and max(float(c[-1]) for c in cuts) > 10 * floor
    plain = _linear([np.log10(v) if log else v for c in cuts for v in c], 80, WIDTH - 90)

    def x(value: float) -> float:
        return plain(float(np.log10(value)) if log else value)

    lines = []
    for i, ((start, _), cut) in enumerate(zip(samples, cuts, strict=True)):
        y, colour = ROW * (i + 1), COLOURS[start.arm]
        p5, p25, p50, p75, p95, p99 = (float(v) for v in cut)
        lines.append(
            _text(4, y + 4, f"{start.arm}, start {start.index}")
            + _bar(x(p5), x(p95), y, colour, 2)
            + _bar(x(p25), x(p75), y, colour, 9)
            + f'<line x1="{x(p50):.1f}" x2="{x(p50):.1f}" y1="{y - 7}" y2="{y + 7}" stroke="currentColor" '
            f'stroke-width="2"><title>median {p50:.4g} {unit}</title></line>'
            + _dot(x(p99), y, _INTERVAL, f"p99 {p99:.4g} {unit}", 3.5)
            + _text(WIDTH - 84, y + 4, f"{p50:.4g} / {p99:.4g}")
        )
    bottom = ROW * (len(samples) + 1)
    lines.append(
        _text(4, bottom + 4, "log scale" if log else "linear")
        + _text(WIDTH - 4, bottom + 4, f"median / p99, {unit}", "end")
    )
    return _svg(bottom + 12, "Distribution of the samples of each start", lines)


def _linear(values: Sequence[float], low: float, high: float) -> Callable[[float], float]:
    least, most = min(values), max(values)
    span = (most - least) or 1.0
    return lambda value: float(low + (value - least) / span * (high - low))


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'


def _dot(x: float, y: float, colour: str, title: str, radius: float = 4.5) -> str:
    return f'<circle cx="{x:.1f}" cy="{y}" r="{radius}" fill="{colour}"><title>{title}</title></circle>'


def _bar(x1: float, x2: float, y: float, colour: str, width: int) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="{width}"/>'


def _upright(x: float, bottom: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="14" y2="{bottom}" stroke="{colour}" stroke-dasharray="3"/>'


def _svg(height: float, label: str, lines: Sequence[str]) -> str:
    return (
        f'<div class="se-plot"><svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f"{''.join(lines)}</svg></div>"
    )
