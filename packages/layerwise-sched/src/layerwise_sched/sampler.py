"""Direct evidence that a later task was ready while the head was not: who asked, when, and what was answered.

CPU events are stamped by whoever sets them, but an NPU event tells nobody that it completed. So while the receive
thread is stuck and other tasks are queued, a side thread asks, without blocking, and writes MET and UNMET rows. It asks
only when there is something to compare, writes each dependency's MET once, and never touches the tasks.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from layerwise_sched.model import DependencyKind, Task, dependencies
from layerwise_sched.timeline import Code, Proof, Ring, clock, met

if TYPE_CHECKING:
    from layerwise_sched.legal import Readiness
    from layerwise_sched.task_queue import TaskQueue

logger = logging.getLogger(__name__)


class Sampler(threading.Thread):
    """A daemon thread for one queue; `close` ends it.

    queue: its `waiting` says whether the task that was taken last still waits (the adapter keeps it). period_s: time
    between two looks. ring: where the rows go; this thread is its only writer.
    """

    def __init__(self, queue: TaskQueue, ready: Readiness, ring: Ring, period_s: float = 3e-4) -> None:
        super().__init__(daemon=True, name=f"{ring.name}-sampler")
        self._queue = queue
        self._ready = ready
        self._ring = ring
        self._period_s = period_s
        self._closed = threading.Event()
        self._noted: dict[int, int] = {}  # cid -> bits of the kinds already written; emptied with the queue
        self.looks = 0

    def run(self) -> None:
        """Look until closed. A fault ends the sampling, with one message, and nothing else."""
        try:
            while not self._closed.wait(self._period_s):
                self.look()
        except Exception:
            logger.exception("no more evidence of head-of-line blocking is sampled here")

    def close(self) -> None:
        """End the thread, within one period."""
        self._closed.set()

    def look(self) -> None:
        """One look: the waiting head and the tasks queued behind it."""
        queue = self._queue
        taken, waiting = queue.current, queue.waiting
        try:
            pending = [task for task in tuple(queue.tasks) if task is not None]
        except RuntimeError:  # the deque changed while it was copied: the next look is soon
            return
        current = taken if waiting else None
        if not pending or (current is None and len(pending) < 2):
            self._noted.clear()
            return
        self.looks += 1
        head, later = (current, pending) if current is not None else (pending[0], pending[1:])
        asked = clock()  # a query may take long: seen incomplete is what it was when it was asked
        missing = self._ready.missing(head)
        # What a task waits for in its handler, or waited for, is no answer for a queued one, nor for one that is done.
        if queue.current is not taken or queue.waiting is not waiting:
            return
        if current is None:
            self._met(head, missing)
        if missing is None:
            return
        self._ring.event(Code.UNMET, head.cid, missing, asked)
        for task in later:
            missing = self._ready.missing(task)
            if queue.current is not taken:  # it may be this one
                return
            self._met(task, missing)

    def _met(self, task: Task, missing: DependencyKind | None) -> None:
        """Write the dependencies of a queued task that are met by now and were not before."""
        noted = self._noted.get(task.cid, 0)
        for need in dependencies(task):
            if need.kind is missing:
                break
            bit = 1 << need.kind
            if not noted & bit and need.kind is not DependencyKind.SLOT_RELEASE:
                noted |= bit
                self._ring.event(Code.MET, task.cid, met(need.kind, Proof.QUERY))
        self._noted[task.cid] = noted
