"""The recorder: integer nanoseconds into one preallocated ring per thread, and nothing else on the hot path.

Invariants:
- off is absent: nothing of this module is called, there is no `if enabled` in any hot path;
- a ring has one writer thread and one reader (the drainer); it never grows, and a row that does not fit is counted in
  `dropped` and nowhere else (a task with a dropped row is left out of sums, not guessed);
- no string is formatted, no file is touched and no NPU call is made in what writes a row.

Unit: nanoseconds of `time.perf_counter_ns` (CLOCK_MONOTONIC on Linux), one clock for all threads of a process;
`Timeline.offset_ns` turns them into wall-clock time.
"""

from __future__ import annotations

import threading
import time
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from layerwise_sched.model import DependencyKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.model import LayerPlan, Task

clock = time.perf_counter_ns
NO_TASK: Final = -1


class Code(IntEnum):
    """What an event says. `subject` is the task's cid unless stated; `value` as stated (0 where nothing is).

    A *span* has its begin as time and its end as value: it is written once, when it is over.
    """

    ENQUEUE = 0
    """The compute thread put the task in the queue; value: tasks queued, this one included."""
    DEQUEUE = 1
    """The receive thread took it; value: its place in the queue, 0 for the head."""
    SAVE_CPU = 2
    """Span: the receive thread in `layer_save_finished_events[source].wait`."""
    SAVE_NPU = 3
    """Span: in `sync_save_events[source].synchronize`."""
    GATE_CONDITION = 4
    """Span: in the gate's condition, until the boundary was recorded."""
    GATE_NPU = 5
    """Span: in the synchronisation of the gate's event."""
    BUILD = 6
    """Span: building addresses or keys of one group."""
    SLOT_RELEASE = 7
    """Span: in `external_slot_release_waiter`."""
    TRANSFER = 8
    """Span: one backend call. Submit is its entry, completion its return: an NPU-side completion is not seen here."""
    DONE = 9
    """`task_done` was called; value: tasks still queued."""
    FAILED = 10
    """The handler raised and upstream's thread ends; no DONE follows on the GVA and key paths."""
    MET = 11
    """A dependency is met; time: when (see `Proof`); value: kind * 4 + proof."""
    UNMET = 12
    """A dependency was seen unmet at this time; value: kind."""
    HOLD = 13
    """The policy left every task queued: subject is the head's cid, value the missing kind."""
    SAVE_SET = 14
    """A save's CPU event was set: subject is the layer, value the step."""
    SAVE_RECORDED = 15
    """`sync_save_events[layer].record()` was issued: subject is the layer, value the step."""
    GATE_RECORDED = 16
    """An attention boundary was recorded: subject is the gate's id, value the layer whose attention it is."""
    STALL = 17
    """Span: the compute thread in `wait_for_layer_load`: subject is the layer; the step is that of the STEP before."""
    STEP = 18
    """A forward pass begins in the compute thread: subject is the step, value the number of its requests."""
    STEP_END = 19
    """It ended: subject is the step."""
    POLICY = 20
    """Another policy is in force: subject is its number in `Timeline.policies`, value 1 for a fall-back."""
    LEASES = 21
    """Gauge: subject is the number of leases held, value the depth of the backend's own queue (-1: not known)."""
    SEND_WAIT = 22
    """Span: the send thread in `sync_save_events[layer].synchronize`, before it puts: subject is the layer. Its end is
    when the compute stream got there; of no length where the stream was there already."""


ENQUEUE: Final = int(Code.ENQUEUE)
"""A plain integer: a row holds no objects of a class, but for a task that is enqueued."""


class Proof(IntEnum):
    """How the time of a MET row is known."""

    SET = 0
    """Stamped by whoever set it: exact."""
    QUERY = 1
    """A query said so at this time: not later than this."""
    WAIT = 2
    """A blocking wait returned at this time: not later than this."""
    MODEL = 3
    """The simulator's own: exact."""


class Ring:
    """The rows of one thread. Only that thread calls `put`, `event`, `span` and `task`; only the drainer calls `take`.

    rows: capacity, rounded up to a power of two. Memory is bounded by it: one preallocated column, and a row's
    integers until they are taken. `put` is a closure over the column, not a method: half the cost of a row.
    """

    __slots__ = ("_dropped", "_take", "capacity", "name", "put")

    put: Callable[[tuple[Any, ...]], None]
    """put(row): a row as `layerwise_sched.rows` defines it, or (ENQUEUE, time, the Task itself, tasks queued); dropped,
    and counted, where the ring is full."""

    def __init__(self, name: str, rows: int = 16_384) -> None:
        if rows < 1:
            raise ValueError(f"rows must be >= 1, got {rows!r}")
        self.name = name
        self.capacity = 1 << (rows - 1).bit_length()
        self.put, self._take, self._dropped = _column(self.capacity)

    def event(self, code: int, subject: int, value: int = 0, at: int | None = None) -> None:
        """A row of one event, now or with the time `at` (ns)."""
        self.put((code, clock() if at is None else at, subject, value))

    def span(self, code: int, subject: int, begin: int) -> int:
        """A row of a span that began at `begin` (ns) and ends now; returns its end (ns)."""
        until = clock()
        self.put((code, begin, subject, until))
        return until

    def task(self, task: Task, queued: int, at: int | None = None) -> None:
        """ENQUEUE, and with it the task's facts for the drainer: both or neither."""
        self.put((ENQUEUE, clock() if at is None else at, task, queued))

    def take(self) -> tuple[list[tuple[int, ...]], list[Task]]:
        """The rows written since the last call, of integers only, and the tasks enqueued in them."""
        taken, found = self._take(), []
        for place, row in enumerate(taken):
            if row[0] == ENQUEUE:
                _, at, task, queued = row
                found.append(task)
                taken[place] = ENQUEUE, at, task[0], queued
        return taken, found

    @property
    def dropped(self) -> int:
        """Rows that did not fit."""
        return self._dropped()


def _column(
    capacity: int,
) -> tuple[Callable[[tuple[Any, ...]], None], Callable[[], list[tuple[Any, ...]]], Callable[[], int]]:
    """The writer and the reader of one ring, and how much was dropped.

    The ring is written lap by lap, row `write` of the lap that began at row `base`, until `stop`: there the writer asks
    how far the reader is. A row costs one comparison, one assignment into a column that is there, and one addition. No
    lock: each variable has one writer. `write` moves when the row is in place; a new lap sets `write` before `base`,
    and the reader reads `base` before `write`, so that it sees too little at most.
    """
    rows: list[tuple[Any, ...]] = [()] * capacity
    base = write = read = dropped = 0
    stop = capacity

    def room() -> bool:
        nonlocal base, write, stop, dropped
        if write == capacity:
            write = 0
            base += capacity
        stop = min(capacity, read + capacity - base)
        if write < stop:
            return True
        dropped += 1
        return False

    def put(row: tuple[Any, ...]) -> None:
        nonlocal write
        if write == stop and not room():
            return
        rows[write] = row
        write += 1

    def take() -> list[tuple[Any, ...]]:
        nonlocal read
        lap = base
        end = max(read, lap + write)
        taken: list[tuple[Any, ...]] = []
        for first, last in _parts(read, end, capacity):
            taken += rows[first:last]
            rows[first:last] = [()] * (last - first)
        read = end
        return taken

    return put, take, lambda: dropped


def _parts(begin: int, end: int, size: int) -> list[tuple[int, int]]:
    """The rows begin..end of a ring as at most two slices of its storage."""
    if begin == end:
        return []
    first, last = begin % size, (end - 1) % size + 1
    return [(first, last)] if first < last else [(first, size), (0, last)]


class Record(NamedTuple):
    """One row of a timeline, as `timeline_file` reads it.

    t: ns. code, subject, value: see `Code`. thread: name of the ring it came from.
    """

    t: int
    code: int
    subject: int
    value: int
    thread: str


class Here(threading.local):
    """The calling thread's ring, made and named after the thread at first use, and its `put`."""

    def __init__(self, timeline: Timeline) -> None:
        self.ring = timeline.ring(threading.current_thread().name)
        self.put = self.ring.put


class Timeline:
    """The rings of one process and what they share.

    rows: capacity of each ring. plan: the worker's static facts, once known. policies: names in order of use. here: the
    calling thread's ring; `here.put` is how every row is written on a hot path. closing: called, by the thread that
    ends the recording, to write what a thread has stamped and has not come to write.
    """

    def __init__(self, rows: int = 16_384, plan: LayerPlan | None = None) -> None:
        self.rows = rows
        self.plan = plan
        self.policies: list[str] = []
        self.offset_ns = time.time_ns() - clock()
        self._rings: list[Ring] = []
        self._lock = threading.Lock()
        self.closing: list[Callable[[], None]] = []

    @cached_property
    def here(self) -> Here:
        """See the class."""
        return Here(self)

    def policy(self, name: str, fallback: bool = False) -> None:
        """Note that another policy is in force, or that a fault ended one (`fallback`). Rare, so it may allocate."""
        self.policies.append(name)
        self.local().event(Code.POLICY, len(self.policies) - 1, int(fallback))

    def ring(self, name: str) -> Ring:
        """A new ring, for one thread that keeps it; `name` is shown as the track's name."""
        ring = Ring(name, self.rows)
        with self._lock:
            self._rings.append(ring)
        return ring

    def local(self) -> Ring:
        """The calling thread's ring, made at its first call and named after the thread."""
        return self.here.ring

    @property
    def rings(self) -> tuple[Ring, ...]:
        """Every ring made so far."""
        return tuple(self._rings)

    @property
    def dropped(self) -> int:
        """Rows that did not fit, over all rings."""
        return sum(ring.dropped for ring in self._rings)


def met(kind: DependencyKind, proof: Proof) -> int:
    """The value of a MET row."""
    return kind * 4 + proof


def split_met(value: int) -> tuple[DependencyKind, Proof]:
    """Kind and proof of a MET row's value."""
    return DependencyKind(value // 4), Proof(value % 4)
