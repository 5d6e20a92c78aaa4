"""The receive thread's queue: `queue.Queue` itself under FIFO, and a chooser in place of the head otherwise.

Upstream uses `put`, `get`, `task_done`, `join`, `all_tasks_done` and `unfinished_tasks`; all stay `queue.Queue`'s. Only
the documented extension points `_init`, `_put` and `_get` are overridden, to keep each item's `Task` beside it and to
write ENQUEUE and DEQUEUE. Under a policy that reorders, the instance's `get` is replaced; going back deletes that
attribute, so that FIFO is `queue.Queue.get`, by identity.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any

from layerwise_sched.legal import HOLD
from layerwise_sched.timeline import ENQUEUE, Code, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.dispatch import Dispatcher
    from layerwise_sched.model import Task
    from layerwise_sched.policy import Policy
    from layerwise_sched.timeline import Timeline

logger = logging.getLogger(__name__)
_DEQUEUE, _HOLD = int(Code.DEQUEUE), int(Code.HOLD)


class TaskQueue(queue.Queue[Any]):
    """Stands in for `KVTransferThread.request_queue`; made after the thread's `__init__` and before its `start`.

    describe: makes the Task of an item, in the thread that enqueues it. Where it raises, the item has no Task and is a
        barrier: nothing passes it and it passes nothing.
    dispatcher: chooses; its policy may be changed at any time through `use`.
    timeline: where ENQUEUE and DEQUEUE go; None: nowhere.
    poll_s: time between two looks at a queue in which nothing is ready; `wake` cuts it short.

    taken, called with each task that is taken and its place in the queue, by the thread that takes it and with the lock
    held, writes DEQUEUE; the adapters put their own there. reorders: whether the present policy can. current is the
    task taken last; waiting is true from its dequeue until the adapter says otherwise at its first backend call or at
    its end, and is read by the sampler.
    """

    def __init__(
        self,
        describe: Callable[[Any], Task],
        dispatcher: Dispatcher,
        timeline: Timeline | None = None,
        poll_s: float = 1e-4,
    ) -> None:
        self.tasks: deque[Task | None] = deque()
        self.dispatcher = dispatcher
        self._describe = describe
        self._timeline = timeline
        self._poll_s = poll_s
        self._chosen = 0
        self._putting = 0
        self._noted: tuple[int, int] = (-1, -1)
        self.taken: Callable[[Task, int], None] = self._write_dequeue
        self.reorders = False
        self.current: Task | None = None
        self.waiting = False
        super().__init__()
        self._apply()

    def use(self, policy: Policy) -> None:
        """Put a policy in force now; `Fifo` is the roll-back to `queue.Queue.get` itself."""
        with self.mutex:
            self.dispatcher.use(policy)
            self._apply()
            self.not_empty.notify_all()
        if (timeline := self._timeline) is not None:
            try:
                timeline.policy(policy.name)
            except Exception:
                self._drop_timeline()

    def wake(self) -> None:
        """Something that a queued task waits for may have happened: look again now.

        May be called from anywhere, also while this very thread describes an item inside `put` (a gate that is open by
        then says so at once): that `put` notifies anyway, and its lock is not to be taken twice.
        """
        if self._putting == get_ident():
            return
        with self.mutex:
            self.not_empty.notify_all()

    def _apply(self) -> None:
        self.reorders = self.dispatcher.reorders
        if self.reorders:
            self.get = self._get_chosen  # type: ignore[method-assign]
        else:
            self.__dict__.pop("get", None)

    def _put(self, item: Any) -> None:
        task = None
        if item is not None:
            self._putting = get_ident()
            try:
                task = self._describe(item)
            except Exception:
                logger.exception("an enqueued item cannot be described: it is run in upstream's order")
            finally:
                self._putting = 0
        self.queue.append(item)
        self.tasks.append(task)
        if task is not None and self._timeline is not None:
            try:
                self._timeline.here.put((ENQUEUE, clock(), task, len(self.tasks)))
            except Exception:
                self._drop_timeline()

    def _get(self) -> Any:
        index, self._chosen = self._chosen, 0
        if index:
            item, task = self.queue[index], self.tasks[index]
            del self.queue[index], self.tasks[index]
        else:
            item, task = self.queue.popleft(), self.tasks.popleft()
        self.current = task
        self.waiting = task is not None
        if task is not None and self._timeline is not None:
            try:
                self.taken(task, index)
            except Exception:
                self._drop_timeline()
        return item

    def _write_dequeue(self, task: Task, index: int) -> None:
        if self._timeline is not None:
            self._timeline.here.put((_DEQUEUE, clock(), task.cid, index))

    def _note_hold(self) -> None:
        """A row for each head that is held and each thing it is held for, not for each look at it."""
        head = self.tasks[0]
        if head is None or self._timeline is None:
            return
        try:
            missing = self.dispatcher.ready.missing(head)
            if missing is not None and (head.cid, missing) != self._noted:
                self._noted = head.cid, missing
                self._timeline.here.put((_HOLD, clock(), head.cid, missing))
        except Exception:
            self._drop_timeline()

    def _drop_timeline(self) -> None:
        """A recorder's fault must not reach upstream: record no more, and say so once."""
        self._timeline = None
        logger.exception("the timeline of this queue ends here: its recorder failed")

    def _get_chosen(self, block: bool = True, timeout: float | None = None) -> Any:
        """`queue.Queue.get` with the dispatcher's choice: same arguments, same `queue.Empty`."""
        if timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        end = None if timeout is None else time.monotonic() + timeout
        with self.not_empty:
            while True:
                index = self.dispatcher.choose(self.tasks) if self.tasks else HOLD
                if index != HOLD:
                    break
                if self.tasks:
                    self._note_hold()
                left = None if end is None else end - time.monotonic()
                if not block or (left is not None and left <= 0):
                    raise queue.Empty
                waits = [self._poll_s] if self.tasks else []
                waits += [] if left is None else [left]
                self.not_empty.wait(min(waits, default=None))
            self._chosen = index
            item = self._get()
            self.not_full.notify()
            if not self.dispatcher.reorders:  # the policy broke a rule just now
                self._apply()
            return item
