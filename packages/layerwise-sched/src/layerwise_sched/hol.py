"""Head-of-line blocking, told apart from mere waiting.

An event exists only while (a) the thread is stuck on a head whose dependencies are unmet, and (b) at least one later
task is in the queue, may legally pass everything before it, has I/O to do, and has all of its own dependencies met.
Both sides carry their evidence with times. A head that waits while every later task waits too is no event.

The head is the task the thread has taken and waits in, or, where a policy holds, the first task of the queue: the
finder looks at the queue, so that it works under every policy. A later task's readiness counts from the earliest
*proof*: a stamp of the setter, a query that said so, or the return of its own wait, which comes too late to be one -
so without stamps and queries the finder finds too little, never too much.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from layerwise_sched.legal import order_rule
from layerwise_sched.model import DataPath, DependencyKind, LayerPlan, dependencies
from layerwise_sched.timeline import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layerwise_sched.runs import Met, Run, TaskRun

_WAITS = {
    Code.SAVE_CPU: DependencyKind.SAVE_CPU,
    Code.SAVE_NPU: DependencyKind.SAVE_NPU,
    Code.GATE_CONDITION: DependencyKind.GATE_CONDITION,
    Code.GATE_NPU: DependencyKind.GATE_NPU,
    Code.SLOT_RELEASE: DependencyKind.SLOT_RELEASE,
}


class Waiting(NamedTuple):
    """The thread was stuck on `head` because `missing` was not met, from `begin` to `end` (ns); held: by a policy."""

    head: TaskRun
    missing: DependencyKind
    begin: int
    end: int
    held: bool


class Later(NamedTuple):
    """A task that could have run: since when it was ready (ns), by which proofs, and its own transfer time (ns)."""

    run: TaskRun
    ready_at: int
    proofs: tuple[tuple[DependencyKind, Met], ...]
    transfer_ns: int


class HolEvent(NamedTuple):
    """One head-of-line event.

    step, head, layer: of the blocked head. missing: what it waited for when the event began. begin, end: ns, the time
    in which head and at least one later task are proven to be unmet and ready. later: those tasks, first ready first.
    potential_ns: what a reorder could have saved at most: the transfers that would have fitted into the event, never
    more than its duration. held: under a policy that held the queue.
    """

    step: int
    head: int
    layer: int
    missing: DependencyKind
    begin: int
    end: int
    later: tuple[Later, ...]
    potential_ns: int
    held: bool

    @property
    def duration_ns(self) -> int:
        """How long it lasted, ns."""
        return self.end - self.begin


class Found(NamedTuple):
    """What the finder saw. waits: times the thread was stuck at all, and for how long (ns).

    empty: heads that waited while only tasks without I/O were ready (running those early gains nothing).
    unknown: heads that waited while a later task's readiness could not be known (slot waiter, or no proof in time).
    """

    events: tuple[HolEvent, ...]
    waits: int
    waits_ns: int
    empty: int
    unknown: int


def find(run: Run, min_ns: int = 0) -> Found:
    """Every head-of-line event of a run that lasted more than `min_ns` nanoseconds."""
    waits = sorted(_waits(run), key=lambda wait: wait.begin)
    pieces: list[HolEvent] = []
    empty = unknown = 0
    order = sorted(run.tasks.values(), key=lambda found: found.task.cid)
    for wait in waits:
        waiting = _behind(order, wait)
        ready, only_empty, not_known = _ready(waiting, wait)
        if ready:
            pieces.append(_event(wait, ready))
        else:
            empty += only_empty
            unknown += not_known
    events = tuple(event for event in _joined(pieces) if event.duration_ns > min_ns)
    return Found(events, len(waits), sum(wait.end - wait.begin for wait in waits), empty, unknown)


def _waits(run: Run) -> Iterable[Waiting]:
    """Every time the thread was stuck: in a wait of the task it serves, or with a queue that a policy held."""
    for found in run.tasks.values():
        for span in found.spans:
            kind = _WAITS.get(span.code)
            # A thread comes back from a wait some time after what it waited for: no blocking any more.
            met = None if kind is None else found.met.get(kind)
            end = span.end if met is None else min(span.end, max(met.at, span.begin))
            if kind is not None and end > span.begin:
                yield Waiting(found, kind, span.begin, end, held=False)
    starts = [found.dequeued or 0 for found in run.served]
    holds = sorted(run.holds)
    for number, hold in enumerate(holds):
        at = bisect_left(starts, hold.at)
        ends = starts[at : at + 1] + [following.at for following in holds[number + 1 : number + 2]]
        head = run.tasks.get(hold.head)
        if head is not None and ends and min(ends) > hold.at:
            yield Waiting(head, hold.missing, hold.at, min(ends), held=True)


def _behind(order: Sequence[TaskRun], wait: Waiting) -> list[TaskRun]:
    """The head and the tasks queued behind it during the wait, in the order of enqueueing."""
    cid, step = wait.head.task.cid, wait.head.task.step
    found: list[TaskRun] = [wait.head]
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if order[middle].task.cid <= cid:
            low = middle + 1
        else:
            high = middle
    for task in order[low:]:
        if task.task.step != step or task.enqueued >= wait.end:
            break
        if task.dequeued is None or task.dequeued > wait.begin:
            found.append(task)
    return found


def _ready(waiting: Sequence[TaskRun], wait: Waiting) -> tuple[list[Later], bool, bool]:
    """The passable tasks ready before the wait's end; whether only empty ones were; whether any is unknown."""
    ready: list[Later] = []
    only_empty = not_known = False
    for index in range(1, len(waiting)):
        later = waiting[index]
        if any(order_rule(earlier.task, later.task) is not None for earlier in waiting[:index]):
            continue
        at = later.ready_at()
        if at is None or later.task.slot_waiter:
            not_known = True
            continue
        if at >= wait.end:
            continue
        if not later.task.has_io:
            only_empty = True
            continue
        proofs = tuple((need.kind, later.met[need.kind]) for need in dependencies(later.task))
        insort(ready, Later(later, at, proofs, later.transfer_ns), key=lambda item: item.ready_at)
    return ready, only_empty and not ready, not_known and not ready


def _event(wait: Waiting, ready: list[Later]) -> HolEvent:
    task = wait.head.task
    begin = max(wait.begin, ready[0].ready_at)
    return HolEvent(
        task.step, task.cid, task.layer, wait.missing, begin, wait.end, tuple(ready),
        _fits(begin, wait.end, ready), wait.held,
    )  # fmt: skip


def _fits(begin: int, end: int, ready: Sequence[Later]) -> int:
    """Transfer time of the ready tasks that would have fitted, one after the other, ns; the last may fit in part."""
    at = begin
    used = 0
    for later in ready:
        at = max(at, later.ready_at)
        took = min(later.transfer_ns, max(0, end - at))
        used += took
        at += took
    return used


def _joined(pieces: Sequence[HolEvent]) -> list[HolEvent]:
    """Waits of one head that follow each other (save CPU, then save NPU, or polls of one hold) are one event."""
    joined: list[HolEvent] = []
    for piece in sorted(pieces, key=lambda event: (event.head, event.begin)):
        last = joined[-1] if joined else None
        if last is not None and last.head == piece.head and piece.begin - last.end <= 1_000_000 and _same(last, piece):
            later = {item.run.task.cid: item for item in (*piece.later, *last.later)}
            ready = tuple(sorted(later.values(), key=lambda item: item.ready_at))
            joined[-1] = last._replace(
                end=piece.end, later=ready, potential_ns=_fits(last.begin, piece.end, ready), held=last.held
            )
        else:
            joined.append(piece)
    return sorted(joined, key=lambda event: event.begin)


def _same(last: HolEvent, piece: HolEvent) -> bool:
    """Whether the task that made the earlier piece an event was still waiting in the later one."""
    return bool({item.run.task.cid for item in last.later} & {item.run.task.cid for item in piece.later})


class Impossible(StrEnum):
    """Why a configuration cannot have head-of-line blocking of tasks with I/O, whatever the times."""

    NO_REUSE = "no buffer reuse: no load waits for a save, and gates open in the order of the queue"
    RANGE = "range path: no load waits for a save, and tasks of one group keep their order"
    KEY = "key-based path: no load waits for a save, and gates open in the order of the queue"
    PREFETCH = "prefetch depth of at most 2: no task behind the head can have an open gate"
    NO_SAVES = (
        "this rank saves nothing and the prefetch depth is at most the number of buffers: the NPU event of a source "
        "comes before the gate of any task behind the one that waits for it"
    )
    MONOTONE = (
        "one cache spec and no independent layer but the first or the last: sources ascend with the layer, saves end "
        "in order, so whatever the head waits for, later tasks wait for too"
    )


def impossible(plan: LayerPlan, saves: Sequence[bool] | None = None) -> Impossible | None:
    """The reason why this plan cannot have an event, or None where it can.

    saves: whether each layer has a save task in this step, shape [num_layers]; None: all have. A layer without one has
    its CPU event set at once, out of the send thread's order, which makes events possible again.
    """
    if plan.path is DataPath.RANGE:
        return Impossible.RANGE
    if plan.path is DataPath.KEY:
        return Impossible.KEY
    sources = plan.prefetch_layer_map
    if not sources:
        return Impossible.NO_REUSE
    if plan.prefetch_layers <= 2:
        return Impossible.PREFETCH
    if saves is not None and not any(saves):
        # Only NPU events count there, and they come in stream order.
        return Impossible.NO_SAVES if plan.prefetch_layers <= (plan.shared_buffers or plan.num_layers) else None
    if saves is not None and any(not saves[source] for source in sources.values()):
        return None
    reused = [sources.get(layer) for layer in range(min(sources), plan.num_layers - 1)]
    waits = [source for source in reused if source is not None]
    return Impossible.MONOTONE if len(waits) == len(reused) and waits == sorted(waits) else None
