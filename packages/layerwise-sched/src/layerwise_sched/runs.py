"""A recorded or simulated timeline, assembled: what happened to each task, and when each thing it waited for was met.

All times are integer nanoseconds of one clock. `assemble` is the only reader of rows; the stage sums, the finder, the
checkers, the exports and the replay work on the `Run` that it makes, whether real threads or the simulator wrote it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from layerwise_sched.model import DependencyKind, Task, dependencies
from layerwise_sched.timeline import Code, Proof, Record, split_met

if TYPE_CHECKING:
    from collections.abc import Iterable

    from layerwise_sched.model import LayerPlan


class Span(NamedTuple):
    """A part of a task's time: what (`Code`), begin and end in ns."""

    code: Code
    begin: int
    end: int


class Met(NamedTuple):
    """When a dependency was met (ns), and how that is known."""

    at: int
    proof: Proof


class Stall(NamedTuple):
    """The compute thread inside `wait_for_layer_load` of one layer of one step, ns."""

    step: int
    layer: int
    begin: int
    end: int


class Step(NamedTuple):
    """One forward pass in the compute thread, ns; requests: how many it carried."""

    step: int
    begin: int
    end: int
    requests: int


class Hold(NamedTuple):
    """A policy left the queue alone at `at` (ns) because the head's `missing` was not met."""

    at: int
    head: int
    missing: DependencyKind


@dataclass(slots=True)
class TaskRun:
    """One task's life. Times in ns; None where the row is missing (dropped, or the run ended before).

    takes, dones: how often it was dequeued and reported done; once each in any right run.
    """

    task: Task
    enqueued: int
    queued: int
    dequeued: int | None = None
    position: int = 0
    done: int | None = None
    failed: int | None = None
    takes: int = 0
    dones: int = 0
    spans: list[Span] = field(default_factory=list)
    met: dict[DependencyKind, Met] = field(default_factory=dict)
    unmet: dict[DependencyKind, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Enqueued, dequeued and done."""
        return self.dequeued is not None and self.done is not None

    @property
    def submitted(self) -> int | None:
        """Entry of its first backend call, ns; None without one."""
        return min((span.begin for span in self.spans if span.code is Code.TRANSFER), default=None)

    @property
    def transfer_ns(self) -> int:
        """Time inside its backend calls."""
        return sum(span.end - span.begin for span in self.spans if span.code is Code.TRANSFER)

    def ready_at(self) -> int | None:
        """When the last of its dependencies was met and it was in the queue, ns; None where that is not known."""
        latest = self.enqueued
        for need in dependencies(self.task):
            found = self.met.get(need.kind)
            if found is None:
                return None
            latest = max(latest, found.at)
        return latest


@dataclass(slots=True)
class Run:
    """One process's timeline.

    tasks: cid -> TaskRun, in the order of enqueueing. save_set: (step, layer) -> ns of the save's CPU event.
    sends: (step, layer) -> the send thread's wait for the save's NPU event, behind which it puts.
    gates: gate id -> ns at which its boundary was recorded. dropped: rows that did not fit a ring; orphans: rows of
    tasks whose ENQUEUE is missing. compute_saves: (step, layer) whose CPU event the compute thread itself set, because
    the layer had no save task.
    """

    tasks: dict[int, TaskRun] = field(default_factory=dict)
    plan: LayerPlan | None = None
    policies: list[tuple[int, str, bool]] = field(default_factory=list)
    save_set: dict[tuple[int, int], int] = field(default_factory=dict)
    save_recorded: dict[tuple[int, int], int] = field(default_factory=dict)
    sends: dict[tuple[int, int], Span] = field(default_factory=dict)
    gates: dict[int, int] = field(default_factory=dict)
    gate_layers: dict[int, int] = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    gauges: list[tuple[int, int, int]] = field(default_factory=list)
    compute_thread: str | None = None
    compute_saves: set[tuple[int, int]] = field(default_factory=set)
    dropped: int = 0
    orphans: int = 0

    @property
    def served(self) -> list[TaskRun]:
        """The dequeued tasks in the order in which the thread took them."""
        taken = [run for run in self.tasks.values() if run.dequeued is not None]
        return sorted(taken, key=lambda run: run.dequeued or 0)

    @property
    def complete(self) -> list[TaskRun]:
        """The tasks with a whole life on record, in the order of enqueueing."""
        return [run for run in self.tasks.values() if run.complete]


_TASK_SPANS = {
    Code.SAVE_CPU,
    Code.SAVE_NPU,
    Code.GATE_CONDITION,
    Code.GATE_NPU,
    Code.BUILD,
    Code.SLOT_RELEASE,
    Code.TRANSFER,
}
_WAITS = {
    Code.SAVE_CPU: DependencyKind.SAVE_CPU,
    Code.SAVE_NPU: DependencyKind.SAVE_NPU,
    Code.GATE_CONDITION: DependencyKind.GATE_CONDITION,
    Code.GATE_NPU: DependencyKind.GATE_NPU,
    Code.SLOT_RELEASE: DependencyKind.SLOT_RELEASE,
}


def assemble(
    records: Iterable[Record],
    tasks: Iterable[Task],
    plan: LayerPlan | None = None,
    policies: Iterable[str] = (),
    dropped: int = 0,
) -> Run:
    """Put the rows of all threads together. They need not be sorted; rows of equal time keep their order."""
    known = {task.cid: task for task in tasks}
    names = list(policies)
    run = Run(plan=plan, dropped=dropped)
    step = (0, 0, 0)  # number, begin, requests
    ordered = sorted(records, key=lambda record: record.t)
    sends: dict[int, list[Span]] = {}
    # First, so that a wrong stamp (a row before its own ENQUEUE) is kept for `stages.check` to see.
    for row in ordered:
        if row.code == Code.ENQUEUE and (task := known.get(row.subject)) is not None:
            run.tasks[row.subject] = TaskRun(task, row.t, row.value)
            run.compute_thread = run.compute_thread or row.thread
    for row in ordered:
        code = Code(row.code)
        if code is Code.ENQUEUE:
            run.orphans += row.subject not in known
        elif code is Code.STEP:
            step = (row.subject, row.t, row.value)
            run.compute_thread = run.compute_thread or row.thread
        elif code is Code.STEP_END:
            run.steps.append(Step(row.subject, step[1], row.t, step[2]))
        elif code is Code.STALL:
            run.stalls.append(Stall(step[0], row.subject, row.t, row.value))
        elif code is Code.SAVE_SET:
            run.save_set[row.value, row.subject] = row.t
            if row.thread == run.compute_thread:
                run.compute_saves.add((row.value, row.subject))
        elif code is Code.SEND_WAIT:
            sends.setdefault(row.subject, []).append(Span(code, row.t, row.value))
        elif code is Code.SAVE_RECORDED:
            run.save_recorded[row.value, row.subject] = row.t
        elif code is Code.GATE_RECORDED:
            run.gates.setdefault(row.subject, row.t)
            run.gate_layers.setdefault(row.subject, row.value)
        elif code is Code.POLICY:
            name = names[row.subject] if row.subject < len(names) else str(row.subject)
            run.policies.append((row.t, name, bool(row.value)))
        elif code is Code.LEASES:
            run.gauges.append((row.t, row.subject, row.value))
        elif code is Code.HOLD:
            run.holds.append(Hold(row.t, row.subject, DependencyKind(row.value)))
        elif (found := run.tasks.get(row.subject)) is None:
            run.orphans += 1
        else:
            _task_row(found, code, row)
    _give_sends(run, sends)
    for found in run.tasks.values():
        _derive_met(run, found)
    _apply_stream_order(run)
    return run


def _give_sends(run: Run, sends: dict[int, list[Span]]) -> None:
    """Each save's wait: the first one of its layer that ended between its record and its CPU event."""
    ends = {layer: sorted(span.end for span in spans) for layer, spans in sends.items()}
    of = {(layer, span.end): span for layer, spans in sends.items() for span in spans}
    for (step, layer), at in run.save_set.items():
        known = ends.get(layer, [])
        place = bisect_left(known, run.save_recorded.get((step, layer), at))
        if place < len(known) and known[place] <= at:
            run.sends[step, layer] = of[layer, known[place]]


def _task_row(found: TaskRun, code: Code, row: Record) -> None:
    if code in _TASK_SPANS:
        found.spans.append(Span(code, row.t, row.value))
    elif code is Code.DEQUEUE:
        found.dequeued, found.position = row.t, row.value
        found.takes += 1
    elif code is Code.DONE:
        found.done = row.t
        found.dones += 1
    elif code is Code.FAILED:
        found.failed = row.t
    elif code is Code.MET:
        kind, proof = split_met(row.value)
        _earliest(found, kind, Met(row.t, proof))
    elif code is Code.UNMET:
        found.unmet[DependencyKind(row.value)] = row.t


def _earliest(found: TaskRun, kind: DependencyKind, met: Met) -> None:
    before = found.met.get(kind)
    if before is None or met.at < before.at:
        found.met[kind] = met


def _derive_met(run: Run, found: TaskRun) -> None:
    """Stamps of the setters, and returns of the thread's own waits; the earliest proof of each dependency counts."""
    task = found.task
    for need in dependencies(task):
        at: int | None = None
        if need.kind is DependencyKind.SAVE_CPU:
            at = run.save_set.get((task.step, need.subject))
        elif need.kind is DependencyKind.GATE_CONDITION:
            at = run.gates.get(need.subject)
        if at is not None:
            _earliest(found, need.kind, Met(at, Proof.SET))
    # A wait may be one of several polls: only behind the last of them the thread went on.
    waited: dict[DependencyKind, int] = {}
    for span in found.spans:
        if (kind := _WAITS.get(span.code)) is not None:
            waited[kind] = max(span.end, waited.get(kind, 0))
    for kind, end in waited.items():
        _earliest(found, kind, Met(end, Proof.WAIT))


def _apply_stream_order(run: Run) -> None:
    """NPU events complete in the order in which they were recorded, since there is one compute stream.

    So the proof that one is complete is a proof for every one recorded before it. Without this a head whose event is
    complete would seem to wait until its thread is given a core again, with a later task's query as false evidence.
    """
    proofs: list[tuple[int, Met]] = []
    for found in run.tasks.values():
        for kind, met in found.met.items():
            if (recorded := _recorded(run, found.task, kind)) is not None:
                proofs.append((recorded, met))
    proofs.sort(key=lambda proof: proof[0], reverse=True)
    latest_first = [-recorded for recorded, _ in proofs]
    earliest: list[Met] = []
    for _, met in proofs:
        earliest.append(met if not earliest or met.at < earliest[-1].at else earliest[-1])
    for found in run.tasks.values():
        for need in dependencies(found.task):
            recorded = _recorded(run, found.task, need.kind)
            # How many proofs belong to events recorded at that time or later.
            count = 0 if recorded is None else bisect_right(latest_first, -recorded)
            if count:
                _earliest(found, need.kind, earliest[count - 1])


def _recorded(run: Run, task: Task, kind: DependencyKind) -> int | None:
    """When the NPU event that the task needs was recorded, ns; None for another kind, or where that is not known."""
    if kind is DependencyKind.SAVE_NPU and task.source is not None:
        return run.save_recorded.get((task.step, task.source))
    if kind is DependencyKind.GATE_NPU and task.gate is not None:
        return run.gates.get(task.gate)
    return None
