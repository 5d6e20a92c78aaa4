"""A self-contained HTML page of a run: its numbers and its timeline, drawn. No script, no request, all text escaped.

One row a task, in the order of enqueueing: grey while queued, then its stages in their colours; a red bar over the
head's row is a head-of-line event. The compute thread's stalls are drawn on top. At most `MAX_STEPS` steps are drawn,
those with events first; the numbers are of the whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from layerwise_sched.hol import find
from layerwise_sched.show import number_text
from layerwise_sched.stages import Stage
from layerwise_sched.text import for_html

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from layerwise_sched.hol import HolEvent
    from layerwise_sched.runs import Run, Step, TaskRun

MAX_STEPS: Final = 4
_ROW, _LEFT, _WIDTH = 18, 150, 1_000
_COLOURS: Final[dict[str, str]] = {
    "queue": "#d5d8dc",
    "save_cpu": "#e59866",
    "save_npu": "#a04000",
    "gate_condition": "#f7dc6f",
    "gate_npu": "#b7950b",
    "build": "#85929e",
    "slot_release": "#af7ac5",
    "transfer": "#2e86c1",
    "stall": "#566573",
    "event": "#c0392b",
}
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:1200px;color:#1b2631;background:#fff}
table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #d5d8dc;padding:2px 8px;text-align:right}
td:first-child,th:first-child{text-align:left}svg{background:#fbfcfc;border:1px solid #d5d8dc;max-width:100%}
.key span{display:inline-block;margin-right:14px}
.key i{display:inline-block;width:1em;height:.8em;margin-right:4px}
text{font:11px system-ui,sans-serif}
"""


def page(run: Run, summary: Mapping[str, Any], title: str) -> str:
    """The page as text."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{for_html(title)}</title><style>{_STYLE}</style></head><body><h1>{for_html(title)}</h1>",
        _facts(summary),
        "<h2>Stages of a task</h2>",
        _stages(summary),
        "<h2>Timeline</h2>",
        '<p class="key">'
        + "".join(f'<span><i style="background:{colour}"></i>{name}</span>' for name, colour in _COLOURS.items())
        + "</p>",
    ]
    events = find(run).events
    for step in _chosen(run, events):
        parts.append(f"<h3>Step {step.step}: {number_text((step.end - step.begin) / 1e6)} ms</h3>")
        parts.append(_drawing(run, step, [event for event in events if event.step == step.step]))
    parts += ["<h2>Longest head-of-line events</h2>", _events(summary), "</body></html>"]
    return "\n".join(parts)


def _table(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    def line(tag: str, cells: Sequence[object]) -> str:
        return "<tr>" + "".join(f"<{tag}>{for_html(number_text(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line("th", header) + "".join(line("td", row) for row in rows) + "</table>"


def _facts(summary: Mapping[str, Any]) -> str:
    hol, plan = summary["hol"], summary["plan"] or {}
    rows: list[tuple[object, object]] = [
        ("policy", ", ".join(summary["policies"]) or "not recorded"),
        ("path", plan.get("path")),
        ("layerwise_prefetch_layers (in flight)", plan.get("prefetch_layers")),
        ("layerwise_num_shared_buffers (allocation)", plan.get("shared_buffers")),
        ("steps", summary["steps"]["count"]),
        ("median step, ms", summary["steps"]["median_ms"]),
        ("tasks", summary["tasks"]["count"]),
        ("head-of-line events", hol["events"]),
        ("their duration in all, ms", hol["duration"]["total_ms"]),
        ("their potential in all, ms (upper bound)", hol["potential"]["total_ms"]),
        ("structurally impossible", hol["impossible"] or "no"),
        ("tasks whose stages do not add up", summary["explained"]["problems"]),
        ("breaks of legal order", summary["legal"]["violations"]),
    ]
    return _table(("", "value"), rows)


def _stages(summary: Mapping[str, Any]) -> str:
    rows = [
        (name, row["p50_us"], row["p95_us"], row["p99_us"], row["max_us"], row["share_pct"])
        for name, row in summary["stages"].items()
    ]
    return _table(("stage", "p50 us", "p95 us", "p99 us", "max us", "share %"), rows)


def _events(summary: Mapping[str, Any]) -> str:
    rows = [
        (
            f"step {event['step']}: L{event['head']['layer']} misses {event['head']['missing']}",
            event["duration_us"],
            event["potential_us"],
            ", ".join(f"L{later['layer']}" for later in event["later"]),
        )
        for event in summary["hol"]["longest"]
    ]
    return _table(("head", "us", "potential us", "ready behind it"), rows) if rows else "<p>None.</p>"


def _chosen(run: Run, events: Sequence[HolEvent]) -> list[Step]:
    """The steps to draw: those with events first, then the first ones; in the order of time."""
    marked = {event.step for event in events}
    steps = sorted(run.steps, key=lambda step: (step.step not in marked, step.step))[:MAX_STEPS]
    return sorted(steps)


def _drawing(run: Run, step: Step, events: Sequence[HolEvent]) -> str:
    tasks = [task for task in run.tasks.values() if task.task.step == step.step]
    end = max([step.end, *(task.done or 0 for task in tasks)])
    scale = _WIDTH / max(1, end - step.begin)

    def bar(row: int, begin: int, until: int, colour: str, title: str, thin: bool = False) -> str:
        x, width = _LEFT + (begin - step.begin) * scale, max(0.4, (until - begin) * scale)
        y, height = row * _ROW + (13 if thin else 3), 4 if thin else _ROW - 6
        return (
            f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{height}" fill="{_COLOURS[colour]}">'
            f"<title>{for_html(title)}</title></rect>"
        )

    pieces = [_label(0, "compute thread waits")]
    stalls = [stall for stall in run.stalls if stall.step == step.step and stall.end > stall.begin]
    pieces += [
        bar(0, stall.begin, stall.end, "stall", f"wait for layer {stall.layer}: {_us(stall)}") for stall in stalls
    ]
    rows = {task.task.cid: number for number, task in enumerate(tasks, 1)}
    for number, task in enumerate(tasks, 1):
        pieces.append(_label(number, _name(task)))
        if task.dequeued is not None:
            pieces.append(bar(number, task.enqueued, task.dequeued, "queue", "queued"))
        for span in task.spans:
            if span.end > span.begin:
                name = Stage(span.code.name.lower()).value
                pieces.append(bar(number, span.begin, span.end, name, f"{name}: {_us(span)}"))
    for event in events:
        later = ", ".join(f"L{item.run.task.layer}" for item in event.later)
        what = f"head-of-line: L{event.layer} misses {event.missing.name.lower()} while {later} ready: {_us(event)}"
        pieces.append(bar(rows[event.head], event.begin, event.end, "event", what, thin=True))
    height = (len(tasks) + 1) * _ROW
    return (
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + 10} {height}" role="img" aria-label="timeline of step {step.step}">'
        + "".join(pieces)
        + "</svg>"
    )


def _us(span: Any) -> str:
    return f"{(span.end - span.begin) / 1e3:.1f} us"


def _label(row: int, text: str) -> str:
    return f'<text x="4" y="{row * _ROW + 13}">{for_html(text)}</text>'


def _name(task: TaskRun) -> str:
    facts = task.task
    source = f" after save L{facts.source}" if facts.source is not None else ""
    return f"L{facts.layer}{source}{'' if facts.has_io else ' (no I/O)'}"
