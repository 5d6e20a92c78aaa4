"""Rows of a timeline, written from upstream's threads: nothing here raises, whatever happens to the timeline.

What a thread does is stamped as it happens and written when it comes to a stop: the receive thread at `task_done` and
behind a poll that timed out, the send thread when it sets a save's event, the compute thread at the end of a layer. So
a process that is killed loses what its threads were in the middle of, and the spool's last period.
"""

from __future__ import annotations

import logging
from threading import get_ident
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from layerwise_sched import rows
from layerwise_sched.timeline import NO_TASK, Code, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.adapters.marks import GateMark
    from layerwise_sched.model import DependencyKind, Task
    from layerwise_sched.task_queue import TaskQueue
    from layerwise_sched.timeline import Timeline

logger = logging.getLogger(__name__)
# Bound once: a member is looked up through its class's metaclass, which costs as much as a row does.
_SEND_WAIT = int(Code.SEND_WAIT)
_SAVE_SET, _SAVE_RECORDED, _GATE_RECORDED = int(Code.SAVE_SET), int(Code.SAVE_RECORDED), int(Code.GATE_RECORDED)
_RECEIVED, _LAYER, _SAVED = rows.PACKED_RECEIVED, rows.PACKED_LAYER, rows.PACKED_SAVED
_CID, _PLACE, _DEQUEUED, _DONE, _QUEUED = rows.CID, rows.PLACE, rows.DEQUEUED, rows.DONE, rows.QUEUED
_BUILD, _BUILD_END, _CALL_END = rows.BUILD, rows.BUILD_END, rows.CALL_END
_EMPTY = [0] * (rows.RECEIVED_WIDTH - _PLACE)
_TIMES = (_DEQUEUED, rows.SAVE_CPU_END, rows.SAVE_NPU_END, _BUILD_END, rows.GATE_END, _CALL_END)


def _nowhere(row: tuple[int, ...]) -> None:
    """Where rows go behind a recorder's first fault."""


class _Ended:
    here = SimpleNamespace(put=_nowhere)


class Recorder:
    """Writes into the calling thread's ring. After a first fault it writes nothing more, and has said so once.

    writers: what writes for one thread each and has looked up its ring.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline: Any = timeline
        self.writers: list[_Writer] = []

    def put(self, row: tuple[int, ...]) -> None:
        """One row."""
        try:
            self.timeline.here.put(row)
        except Exception:
            self.fail()

    def event(self, code: int, subject: int, value: int = 0, at: int | None = None) -> None:
        """One event, now or with the time `at` (ns)."""
        self.put((int(code), clock() if at is None else at, subject, value))

    def fail(self) -> None:
        """End the recording here; upstream goes on."""
        self.timeline = _Ended
        for writer in self.writers:
            writer.put = _nowhere
        logger.exception("the layer-wise timeline of this process ends here: its recorder failed")


class _Writer:
    """What one thread is doing. `put` is that thread's, found with its first row: looking a thread's ring up costs as
    much as the row. Whoever calls it keeps what it raises from upstream.
    """

    __slots__ = ("put", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.put: Callable[[tuple[int, ...]], None] = self._first
        recorder.writers.append(self)

    def _first(self, row: tuple[int, ...]) -> None:
        self.put = put = self.recorder.timeline.here.put
        put(row)
        if self.recorder.timeline is _Ended:  # meanwhile, by another thread
            self.put = _nowhere


class Serving(_Writer):
    """The task in the receive thread's handler: its stamps, and what it waits for at this moment.

    stamps: a RECEIVED row in the making; the views put their begins and ends there. Only the receive thread writes;
    the sampler reads `cid` and `missing`.
    """

    __slots__ = ("cid", "last", "missing", "queue", "stamps")

    def __init__(self, recorder: Recorder, queue: TaskQueue) -> None:
        super().__init__(recorder)
        self.queue = queue
        self.cid = NO_TASK
        self.missing: DependencyKind | None = None
        self.stamps = [_RECEIVED, NO_TASK, *_EMPTY]
        self.last = 0  # end of the latest span that is written already, ns; of this task or of one before

    def taken(self, task: Task, place: int) -> None:
        """The task left the queue; its handler begins here."""
        stamps = self.stamps
        self.cid = stamps[_CID] = task[0]
        stamps[_PLACE] = place
        stamps[_DEQUEUED] = clock()

    def spill(self) -> None:
        """Write what is stamped, in the middle of a task: something is to be stamped again."""
        self.last = self.finished()
        self.write_open()

    def finished(self) -> int:
        """The end of the task's latest span, or its dequeue, ns."""
        return max(self.last, *map(self.stamps.__getitem__, _TIMES))

    def built(self, begin: int, end: int) -> None:
        """One group's keys were built."""
        stamps = self.stamps
        if stamps[_BUILD_END]:
            self.spill()
        stamps[_BUILD] = begin
        stamps[_BUILD_END] = end

    def span(self, code: Code, begin: int, end: int) -> None:
        """A span that has no place among the stamps."""
        if self.cid != NO_TASK:
            self.last = end
            self.recorder.event(code, self.cid, end, begin)

    def done(self, cid: int, queued: int) -> None:
        """`task_done` was called for the task that was taken last: its row."""
        stamps = self.stamps
        self.queue.waiting = False  # first: the sampler must not ask what a task without a cid waits for
        stamps[_CID] = cid
        stamps[_QUEUED] = queued
        stamps[_DONE] = clock()
        row = tuple(stamps)
        stamps[_PLACE:] = _EMPTY  # before it is written: whoever ends the recording writes what is stamped
        self.cid = stamps[_CID] = NO_TASK
        try:
            self.put(row)
        except Exception:
            self.recorder.fail()

    def write_open(self) -> None:
        """Write what is stamped of a task that is not done."""
        stamps = self.stamps
        if any(stamps[_DEQUEUED:]):
            row = tuple(stamps)
            stamps[_PLACE:] = _EMPTY
            if row[_CID] != NO_TASK:  # else of an item without a task: it is to stand in no row
                self.recorder.put(row)

    def over(self) -> None:
        """The handler is left, and what is stamped is in no row yet."""
        self.write_open()
        self.cid = self.stamps[_CID] = NO_TASK
        self.missing = None


class Sending(_Writer):
    """What the send thread did since it set an event last: its wait for a save's NPU event.

    thread: the send thread's, as the view has seen it. The compute thread sets events of layers without a save.
    """

    __slots__ = ("begin", "end", "layer", "thread")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.layer = -1
        self.begin = self.end = self.thread = 0

    def save_set(self, step: int, layer: int) -> None:
        """A save's CPU event was set, by the send thread or, where nothing is saved, by the compute thread."""
        if self.layer == layer and self.thread == get_ident():
            self.layer = -1
            try:
                self.put((_SAVED, step, layer, self.begin, self.end, clock()))
            except Exception:
                self.recorder.fail()
        else:
            self.recorder.put((_SAVE_SET, clock(), layer, step))

    def write_open(self) -> None:
        """Write a wait behind which no event was set."""
        if self.layer >= 0:
            layer, self.layer = self.layer, -1
            self.recorder.put((_SEND_WAIT, self.begin, layer, self.end))


class Computing(_Writer):
    """The compute thread in one layer: its stall, the boundary of its attention, the record of its save."""

    __slots__ = ("begin", "end", "gate", "layer", "step")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.layer = -1
        self.step = self.begin = self.end = 0
        self.gate: GateMark | None = None

    def begin_step(self, step: int, requests: int) -> None:
        """A forward pass begins."""
        self.write_open()  # of a step that was given up
        self.step = step
        self.recorder.event(Code.STEP, step, requests)

    def end_step(self) -> None:
        """It ended."""
        self.write_open()
        self.recorder.event(Code.STEP_END, self.step)

    def stalled(self, layer: int, begin: int) -> None:
        """It was in `wait_for_layer_load` of this layer since `begin` (ns)."""
        end = clock()
        if self.layer >= 0:
            self.write_open()  # a role that saves nothing comes here without `saved`
        self.begin = begin
        self.end = end
        self.layer = layer

    def opened(self, mark: GateMark) -> None:
        """An attention boundary was recorded that is not the present layer's: a row of its own."""
        self.recorder.put((_GATE_RECORDED, mark.opened or clock(), mark.ident, mark.layer))

    def saved(self, layer: int, at: int) -> None:
        """The NPU event of this layer's save was recorded at `at` (ns); the layer is over."""
        if self.layer != layer:
            self.recorder.put((_SAVE_RECORDED, at, layer, self.step))
            return
        gate = self.gate
        self.layer = -1
        self.gate = None  # before its stamp is read: a boundary that comes later writes a row of its own
        if gate is None or gate.opened is None:
            row = (_LAYER, self.step, layer, self.begin, self.end, 0, 0, 0, at)
        else:
            row = (_LAYER, self.step, layer, self.begin, self.end, gate.ident, gate.layer, gate.opened, at)
        try:
            self.put(row)
        except Exception:
            self.recorder.fail()

    def write_open(self) -> None:
        """Write what is known of the layer, from whatever thread."""
        layer = self.layer
        if layer >= 0:
            self.layer = -1
            gate, self.gate = self.gate, None
            opened = (0, 0, 0) if gate is None or gate.opened is None else (gate.ident, gate.layer, gate.opened)
            self.recorder.put((_LAYER, self.step, layer, self.begin, self.end, *opened, 0))
