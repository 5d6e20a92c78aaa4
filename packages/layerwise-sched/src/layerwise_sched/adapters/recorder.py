"""Rows of a timeline, written from upstream's threads: nothing here raises, whatever happens to the timeline.

What a thread does is stamped as it happens and written when it comes to a stop: the receive thread at `task_done` and
behind a poll that timed out, the send thread when it sets a save's event, the compute thread at the end of a layer. So
a process that is killed loses what its threads were in the middle of, and the spool's last period.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from layerwise_sched import rows
from layerwise_sched.timeline import NO_TASK, Code, clock

if TYPE_CHECKING:
    from layerwise_sched.adapters.marks import GateMark
    from layerwise_sched.model import DependencyKind, Task
    from layerwise_sched.task_queue import TaskQueue
    from layerwise_sched.timeline import Timeline

logger = logging.getLogger(__name__)
# Bound once: a member is looked up through its class's metaclass, which costs as much as a row does.
_TRANSFER, _SEND_WAIT = int(Code.TRANSFER), int(Code.SEND_WAIT)
_SAVE_SET, _SAVE_RECORDED, _GATE_RECORDED = int(Code.SAVE_SET), int(Code.SAVE_RECORDED), int(Code.GATE_RECORDED)
_RECEIVED, _LAYER, _SAVED = rows.PACKED_RECEIVED, rows.PACKED_LAYER, rows.PACKED_SAVED
_CID, _PLACE, _DEQUEUED, _DONE, _QUEUED = rows.CID, rows.PLACE, rows.DEQUEUED, rows.DONE, rows.QUEUED
_BUILD, _BUILD_END, _CALL, _CALL_END = rows.BUILD, rows.BUILD_END, rows.CALL, rows.CALL_END
_SAVE_CPU_END, _GATE_END = rows.SAVE_CPU_END, rows.GATE_END
_EMPTY = [0] * (rows.RECEIVED_WIDTH - _PLACE)
_TIMES = (_DEQUEUED, _SAVE_CPU_END, rows.SAVE_NPU_END, _BUILD_END, _GATE_END, _CALL_END)


class _Nowhere:
    """Where rows go behind a recorder's first fault."""

    def put(self, row: tuple[int, ...]) -> None:
        """Nothing."""


class Recorder:
    """Writes into the calling thread's ring. After a first fault it writes nothing more, and has said so once.

    timeline: its `here.put` is called for every row, by whoever has one and keeps what is raised from upstream.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline: Any = timeline

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
        logger.exception("the layer-wise timeline of this process ends here: its recorder failed")


class _Ended:
    here = _Nowhere()


class Serving:
    """The task in the receive thread's handler: its stamps, and what it waits for at this moment.

    stamps: a RECEIVED row in the making; the views put their begins and ends there. Only the receive thread writes;
    the sampler reads `cid` and `missing`.
    """

    __slots__ = ("cid", "last", "missing", "queue", "recorder", "stamps")

    def __init__(self, recorder: Recorder, queue: TaskQueue) -> None:
        self.recorder = recorder
        self.queue = queue
        self.cid = NO_TASK
        self.missing: DependencyKind | None = None
        self.stamps = [_RECEIVED, NO_TASK, *_EMPTY]
        self.last = 0  # end of the latest span that is written already, ns

    def taken(self, task: Task, place: int) -> None:
        """The task left the queue; its handler begins here."""
        stamps = self.stamps
        self.missing = None
        self.cid = stamps[_CID] = task[0]
        stamps[_PLACE] = place
        stamps[_DEQUEUED] = clock()
        self.last = 0

    def spill(self) -> None:
        """Write what is stamped, in the middle of a task: something is to be stamped again."""
        self.last = self.finished()
        self.write_open()

    def finished(self) -> int:
        """The end of the task's latest span, or its dequeue, ns."""
        return max(self.last, *map(self.stamps.__getitem__, _TIMES))

    def built(self, begin: int, end: int) -> None:
        """One group's addresses or keys were built."""
        stamps = self.stamps
        if stamps[_BUILD_END]:
            self.spill()
        if self.cid != NO_TASK:
            stamps[_BUILD] = begin
            stamps[_BUILD_END] = end

    def called(self, begin: int, end: int) -> None:
        """A backend call returned or raised."""
        stamps = self.stamps
        if stamps[_CALL_END]:
            self.recorder.event(_TRANSFER, self.cid, stamps[_CALL_END], stamps[_CALL])
        if self.cid != NO_TASK:
            stamps[_CALL] = begin
            stamps[_CALL_END] = end

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
        stamps[_PLACE:] = _EMPTY
        self.cid = stamps[_CID] = NO_TASK
        try:
            self.recorder.timeline.here.put(row)
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
        """The handler is left."""
        self.queue.waiting = False
        if self.cid != NO_TASK or self.stamps[_SAVE_CPU_END] or self.stamps[_GATE_END]:
            self.write_open()
            self.cid = self.stamps[_CID] = NO_TASK
        self.missing = None


class Sending:
    """What the send thread did since it set an event last: its wait for a save's NPU event."""

    __slots__ = ("begin", "end", "layer", "recorder")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.layer = -1
        self.begin = self.end = 0

    def waited(self, layer: int, begin: int, end: int) -> None:
        """It waited for the save of a layer."""
        if self.layer >= 0:
            self.write_open()
        self.begin = begin
        self.end = end
        self.layer = layer

    def save_set(self, step: int, layer: int) -> None:
        """A save's CPU event was set, by the send thread or, where nothing is saved, by the compute thread."""
        if self.layer == layer:
            self.layer = -1
            try:
                self.recorder.timeline.here.put((_SAVED, step, layer, self.begin, self.end, clock()))
            except Exception:
                self.recorder.fail()
        else:
            self.recorder.put((_SAVE_SET, clock(), layer, step))

    def write_open(self) -> None:
        """Write a wait behind which no event was set."""
        if self.layer >= 0:
            layer, self.layer = self.layer, -1
            self.recorder.put((_SEND_WAIT, self.begin, layer, self.end))


class Computing:
    """The compute thread in one layer: its stall, the boundary of its attention, the record of its save."""

    __slots__ = ("begin", "end", "gate", "layer", "recorder", "step")

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.layer = -1
        self.step = self.begin = self.end = 0
        self.gate: GateMark | None = None

    def stalled(self, step: int, layer: int, begin: int) -> None:
        """It was in `wait_for_layer_load` since `begin` (ns)."""
        end = clock()
        if self.layer >= 0:
            self.write_open()  # a role that saves nothing comes here without `saved`
        self.begin = begin
        self.end = end
        self.step = step
        self.layer = layer

    def opened(self, mark: GateMark) -> None:
        """An attention boundary was recorded: with its layer's row where that is still to come."""
        if mark is not self.gate:
            self.recorder.put((_GATE_RECORDED, mark.opened or clock(), mark.ident, mark.layer))

    def saved(self, step: int, layer: int, at: int) -> None:
        """The NPU event of a layer's save was recorded at `at` (ns); the layer is over."""
        if self.layer == layer:
            self._write(at)
        else:
            self.recorder.put((_SAVE_RECORDED, at, layer, step))

    def write_open(self) -> None:
        """Write what is known of the layer."""
        if self.layer >= 0:
            self._write(0)

    def _write(self, saved: int) -> None:
        layer, gate = self.layer, self.gate
        self.layer = -1
        self.gate = None  # before its stamp is read: a boundary that comes later writes a row of its own
        if gate is None or gate.opened is None:
            row = (_LAYER, self.step, layer, self.begin, self.end, 0, 0, 0, saved)
        else:
            row = (_LAYER, self.step, layer, self.begin, self.end, gate.ident, gate.layer, gate.opened, saved)
        try:
            self.recorder.timeline.here.put(row)
        except Exception:
            self.recorder.fail()
