"""The stages of a task's time, kept apart, and the check that they explain all of it.

Every nanosecond from enqueue to `task_done` belongs to exactly one stage. Eight are the investigation's, one is the
slot-release wait, and two are what is left of the handler's own host time before and after the transfer, so that
nothing is hidden in another stage's name. `check` is not true by construction: overlapping, reversed or outlying spans
(a wrong stamp, a wrapper put in twice) make it fail.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from layerwise_sched.timeline import Code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from layerwise_sched.runs import Run, TaskRun


class Stage(StrEnum):
    """One part of a task's time. `docs/layerwise.md` has the field page."""

    QUEUE = "queue"
    """Enqueue to dequeue, a policy's hold included."""
    SAVE_CPU = "save_cpu"
    """Waiting for the CPU event of the former owner's save."""
    SAVE_NPU = "save_npu"
    """Synchronising the NPU event of that save."""
    GATE_CONDITION = "gate_condition"
    """Waiting, on the host, until the attention boundary is recorded."""
    GATE_NPU = "gate_npu"
    """Synchronising that boundary's NPU event."""
    BUILD = "build"
    """Metadata and addresses."""
    SLOT_RELEASE = "slot_release"
    """Inside another connector's `external_slot_release_waiter`."""
    SUBMIT = "submit"
    """From the end of the last wait or build to the entry of the first backend call: concatenation, stagger."""
    TRANSFER = "transfer"
    """Inside the backend calls. They block, so the return is the completion; the NPU's own is not seen here."""
    HANDLER = "handler"
    """The handler's other host time before the transfer, and all of it for a task without I/O."""
    FINISH = "finish"
    """From the first backend call's entry on, outside the calls: between packets, lease release, events."""


_STAGE = {
    Code.SAVE_CPU: Stage.SAVE_CPU,
    Code.SAVE_NPU: Stage.SAVE_NPU,
    Code.GATE_CONDITION: Stage.GATE_CONDITION,
    Code.GATE_NPU: Stage.GATE_NPU,
    Code.BUILD: Stage.BUILD,
    Code.SLOT_RELEASE: Stage.SLOT_RELEASE,
    Code.TRANSFER: Stage.TRANSFER,
}


class Problem(NamedTuple):
    """Why a task's stages do not explain its time: its cid, and what is wrong in words."""

    cid: int
    reason: str


def stage_sums(run: TaskRun) -> dict[Stage, int]:
    """Nanoseconds of each stage of a complete task; every stage is present. Raises ValueError for an incomplete one."""
    if run.dequeued is None or run.done is None:
        raise ValueError(f"task {run.task.cid!r} is not complete: it has no dequeue or no task_done on record")
    sums = dict.fromkeys(Stage, 0)
    sums[Stage.QUEUE] = run.dequeued - run.enqueued
    submitted = run.submitted
    at = run.dequeued
    for span in sorted(run.spans, key=lambda span: (span.begin, span.end)):
        gap = _gap_stage(submitted, span.code, span.begin)
        sums[gap] += span.begin - at
        sums[_STAGE[span.code]] += span.end - span.begin
        at = span.end
    sums[Stage.HANDLER if submitted is None else Stage.FINISH] += run.done - at
    return sums


def _gap_stage(submitted: int | None, code: Code, begin: int) -> Stage:
    """The stage of the host time before a span."""
    if submitted is None or begin < submitted:
        return Stage.HANDLER
    return Stage.SUBMIT if code is Code.TRANSFER and begin == submitted else Stage.FINISH


def check(run: Run) -> list[Problem]:
    """Every complete task whose stages do not add up to its total, exactly, with the reason; empty: all is explained.

    Checked without `stage_sums`: each span lies within dequeue and task_done, spans do not overlap, no stage is
    negative, and the sum is `done - enqueued` to the nanosecond.
    """
    problems: list[Problem] = []
    for found in run.complete:
        cid = found.task.cid
        begin, end = found.dequeued or 0, found.done or 0
        if begin < found.enqueued:
            problems.append(Problem(cid, f"dequeued {found.enqueued - begin} ns before it was enqueued"))
        last = begin
        for span in sorted(found.spans, key=lambda span: (span.begin, span.end)):
            if span.end < span.begin:
                problems.append(Problem(cid, f"{span.code.name} ends {span.begin - span.end} ns before it begins"))
            if span.begin < last:
                what = "before the dequeue" if last == begin else "inside the span before it"
                problems.append(Problem(cid, f"{span.code.name} begins {last - span.begin} ns {what}"))
            if span.end > end:
                problems.append(Problem(cid, f"{span.code.name} ends {span.end - end} ns after task_done"))
            last = max(last, span.end)
        sums = stage_sums(found)
        problems += [Problem(cid, f"stage {name} is {ns} ns") for name, ns in sums.items() if ns < 0]
        if (total := sum(sums.values())) != end - found.enqueued:
            problems.append(Problem(cid, f"stages sum to {total} ns, the task took {end - found.enqueued} ns"))
    return problems


def totals(run: Run) -> Mapping[Stage, list[int]]:
    """Each stage's nanoseconds, one number a complete task, in the order of enqueueing."""
    found: dict[Stage, list[int]] = {stage: [] for stage in Stage}
    for task in run.complete:
        for stage, ns in stage_sums(task).items():
            found[stage].append(ns)
    return found
