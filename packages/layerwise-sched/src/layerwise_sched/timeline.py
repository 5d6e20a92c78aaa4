"""The recorder: integer nanoseconds into one preallocated ring per thread, and nothing else on the hot path.

Invariants:
- off is absent: nothing of this module is called, there is no `if enabled` in any hot path;
- a ring has one writer thread and one reader (the drainer); it never grows, and a row that does not fit is counted in
  `dropped` and nowhere else (a task with a dropped row is left out of sums, not guessed);
- no string is formatted, no file is touched and no NPU call is made in `event`, `span` and `task`.

Unit: nanoseconds of `time.perf_counter_ns` (CLOCK_MONOTONIC on Linux), one clock for all threads of a process;
`Timeline.offset_ns` turns them into wall-clock time.
"""

from __future__ import annotations

import threading
import time
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from layerwise_sched.model import DependencyKind

if TYPE_CHECKING:
    from layerwise_sched.model import LayerPlan, Task

clock = time.perf_counter_ns
NO_TASK: Final = -1
WIDTH: Final = 4
"""Integers a row: time, code, subject, value."""


class Code(IntEnum):
    """What a row says. `subject` is the task's cid unless stated; `value` as stated (0 where nothing is).

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
    """The rows of one thread. Only that thread calls `event`, `span` and `task`; only the drainer calls `take`.

    rows: capacity. Memory is bounded by it (about 160 bytes a row with its integers).
    """

    __slots__ = ("_cells", "_end", "_limit", "_read", "_size", "_tasks", "_write", "dropped", "name")

    def __init__(self, name: str, rows: int = 65_536) -> None:
        if rows < 1:
            raise ValueError(f"rows must be >= 1, got {rows!r}")
        self.name = name
        self.dropped = 0
        self._size = rows * WIDTH
        self._cells: list[int] = [0] * self._size
        self._tasks: list[Task | None] = [None] * rows
        self._write = 0  # cell that the writer fills next
        self._end = 0  # rows written so far; published last
        self._read = 0  # rows taken so far
        self._limit = rows

    def event(self, code: int, subject: int, value: int = 0, at: int | None = None) -> None:
        """Write one row, now or with the time `at` (ns); counts it as dropped where the ring is full."""
        if self._end - self._read >= self._limit:
            self.dropped += 1
            return
        i = self._write
        cells = self._cells
        cells[i] = clock() if at is None else at
        cells[i + 1] = code
        cells[i + 2] = subject
        cells[i + 3] = value
        i += WIDTH
        self._write = i if i != self._size else 0
        self._end += 1

    def span(self, code: int, subject: int, begin: int) -> int:
        """Write a span that began at `begin` (ns) and ends now; returns its end (ns)."""
        end = clock()
        self.event(code, subject, end, begin)
        return end

    def task(self, task: Task, queued: int, at: int | None = None) -> None:
        """Write ENQUEUE, and keep the task's facts for the drainer; both or neither."""
        if self._end - self._read >= self._limit:
            self.dropped += 1
            return
        self._tasks[self._write // WIDTH] = task
        self.event(Code.ENQUEUE, task.cid, queued, at)

    def take(self) -> tuple[list[int], list[Task]]:
        """Everything written since the last call: cells, flat, WIDTH a row, and the tasks enqueued in them."""
        begin, end = self._read, self._end
        cells: list[int] = []
        tasks: list[Task] = []
        for first, last in _parts(begin, end, self._limit):
            cells += self._cells[first * WIDTH : last * WIDTH]
            tasks += [task for task in self._tasks[first:last] if task is not None]
            self._tasks[first:last] = [None] * (last - first)
        self._read = end
        return cells, tasks


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


class Timeline:
    """The rings of one process and what they share.

    rows: capacity of each ring. plan: the worker's static facts, once known. policies: names in order of use.
    """

    def __init__(self, rows: int = 65_536, plan: LayerPlan | None = None) -> None:
        self.rows = rows
        self.plan = plan
        self.policies: list[str] = []
        self.offset_ns = time.time_ns() - clock()
        self._rings: list[Ring] = []
        self._lock = threading.Lock()
        self._local = threading.local()
        self._next_cid = 0

    def new_cid(self) -> int:
        """A correlation id that no other task of this process has. Called by the compute thread only."""
        cid = self._next_cid
        self._next_cid = cid + 1
        return cid

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
        try:
            ring: Ring = self._local.ring
        except AttributeError:
            ring = self._local.ring = self.ring(threading.current_thread().name)
        return ring

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
