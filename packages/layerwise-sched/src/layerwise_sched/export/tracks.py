"""A run as slices on tracks, before any format: what is drawn where.

Tracks: the compute thread (steps, stalls), the compute stream (attention windows, as far as NPU events were seen), the
send thread (its waits for the stream, its puts), the receive thread (waits, build, transfer, one after the other), each
task's whole life (these overlap), head-of-line events (these may overlap too), and counters. Times in ns from the run's
first row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from layerwise_sched.hol import find
from layerwise_sched.model import DependencyKind

if TYPE_CHECKING:
    from layerwise_sched.runs import Run


class Slice(NamedTuple):
    """A named stretch of time on a track. flow: cid that ties it to others, -1 for none. args: plain JSON values."""

    track: str
    name: str
    begin: int
    end: int
    flow: int
    args: dict[str, Any]


class Counter(NamedTuple):
    """A value from a time on."""

    track: str
    at: int
    value: int


class Tracks(NamedTuple):
    """nested: slices that do not overlap within a track, or lie in each other. overlapping: those that may.

    begin: the ns that time 0 stands for.
    """

    nested: list[Slice]
    overlapping: list[Slice]
    counters: list[Counter]
    begin: int


def tracks_of(run: Run) -> Tracks:
    """The run's slices and counters, each track in the order of time."""
    begin = min(
        [task.enqueued for task in run.tasks.values()]
        + [step.begin for step in run.steps]
        + [stall.begin for stall in run.stalls],
        default=0,
    )
    overlapping: list[Slice] = []
    nested = [
        Slice("compute thread", f"step {step.step}", step.begin, step.end, -1, {"requests": step.requests})
        for step in run.steps
    ]
    nested += [
        Slice("compute thread", f"wait L{stall.layer}", stall.begin, stall.end, -1, {"step": stall.step})
        for stall in run.stalls
    ]
    nested += _attention(run)
    nested += _puts(run)
    for task in run.tasks.values():
        facts = task.task
        args: dict[str, Any] = {
            "cid": facts.cid, "step": facts.step, "layer": facts.layer, "source": facts.source, "gate": facts.gate,
            "groups": list(facts.groups), "requests": list(facts.requests), "io": facts.has_io,
        }  # fmt: skip
        end = task.done if task.done is not None else task.failed
        if task.dequeued is not None and end is not None:
            nested.append(Slice("receive thread", f"L{facts.layer}", task.dequeued, end, facts.cid, args))
            overlapping.append(Slice("tasks", f"L{facts.layer}", task.enqueued, end, facts.cid, args))
        nested += [
            Slice("receive thread", span.code.name.lower(), span.begin, span.end, -1, {"cid": facts.cid})
            for span in task.spans
            if span.end > span.begin
        ]
    for event in find(run).events:
        later = [item.run.task.layer for item in event.later]
        blocked: dict[str, Any] = {"head": event.head, "missing": event.missing.name.lower(), "ready_layers": later}
        name = f"L{event.layer} blocks L{later[0]}"
        overlapping.append(Slice("head-of-line", name, event.begin, event.end, -1, blocked))
    nested = [piece for piece in nested if piece.end > piece.begin]
    order = sorted(nested, key=lambda piece: (piece.track, piece.begin, -piece.end))
    return Tracks(order, sorted(overlapping, key=lambda piece: piece.begin), _counters(run), begin)


def _puts(run: Run) -> list[Slice]:
    """The send thread: its wait for the stream, and from there to the save's CPU event."""
    found: list[Slice] = []
    for (step, layer), wait in run.sends.items():
        args = {"step": step}
        found.append(Slice("send thread", f"wait save L{layer}", wait.begin, wait.end, -1, args))
        found.append(Slice("send thread", f"save L{layer}", wait.end, run.save_set[step, layer], -1, args))
    return found


def _attention(run: Run) -> list[Slice]:
    """Windows on the stream from a gate's NPU event to the save's, where both were observed."""
    gate_npu: dict[int, int] = {}
    save_npu: dict[tuple[int, int], int] = {}
    for task in run.tasks.values():
        if task.task.gate is not None and (met := task.met.get(DependencyKind.GATE_NPU)) is not None:
            gate_npu[task.task.gate] = min(met.at, gate_npu.get(task.task.gate, met.at))
        if task.task.source is not None and (met := task.met.get(DependencyKind.SAVE_NPU)) is not None:
            save_npu[task.task.step, task.task.source] = met.at
    found: list[Slice] = []
    steps = sorted(run.steps)
    for gate, at in gate_npu.items():
        layer = run.gate_layers.get(gate)
        step = next((step.step for step in steps if step.begin <= run.gates.get(gate, -1) <= step.end), None)
        if layer is None or step is None or (end := save_npu.get((step, layer))) is None or end <= at:
            continue
        found.append(Slice("compute stream", f"attention L{layer}", at, end, -1, {"step": step}))
    # Observed ends may come late (a query's time), the stream is in order: a window begins after the one before.
    free = 0
    windows: list[Slice] = []
    for piece in sorted(found, key=lambda piece: piece.begin):
        begin = max(piece.begin, free)
        if piece.end > begin:
            windows.append(piece._replace(begin=begin))
            free = piece.end
    return windows


def _counters(run: Run) -> list[Counter]:
    changes: list[tuple[int, int]] = []
    for task in run.tasks.values():
        changes.append((task.enqueued, 1))
        if task.dequeued is not None:
            changes.append((task.dequeued, -1))
    level, found = 0, []
    # At one time what comes counts before what goes, so that the depth never falls below nothing.
    for at, change in sorted(changes, key=lambda item: (item[0], -item[1])):
        level += change
        found.append(Counter("queued tasks", at, level))
    return found + [Counter("leases", at, leases) for at, leases, _ in sorted(run.gauges)]
