"""What passing cost: the thread serves without preemption, so a head that gets ready meanwhile is late."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from layerwise_sched.runs import Run, TaskRun


class Pass(NamedTuple):
    """One task that was taken before an earlier one.

    cid: of the task taken. passed: cid of the first task that it passed. at: ns. late_ns: how much later the passed
    task could begin than it would have: from when it was ready to the end of the passing one; 0 where it was not ready
    by then, None where that is not known.
    """

    cid: int
    passed: int
    at: int
    late_ns: int | None


def passes(run: Run) -> list[Pass]:
    """Every reorder of a run, in the order in which they happened."""
    found: list[Pass] = []
    waiting: list[TaskRun] = sorted(run.tasks.values(), key=lambda task: task.task.cid)
    place = 0
    taken: set[int] = set()
    for task in run.served:
        at = task.dequeued or 0
        while place < len(waiting) and waiting[place].task.cid in taken:
            place += 1
        for earlier in waiting[place:]:
            if earlier.task.cid >= task.task.cid:
                break
            if earlier.task.cid not in taken and earlier.enqueued <= at:
                found.append(Pass(task.task.cid, earlier.task.cid, at, _late(earlier, task)))
                break
        taken.add(task.task.cid)
    return found


def _late(earlier: TaskRun, task: TaskRun) -> int | None:
    ready = earlier.ready_at()
    if ready is None or task.done is None:
        return None
    return max(0, task.done - max(ready, task.dequeued or 0))
