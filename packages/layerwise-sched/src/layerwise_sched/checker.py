"""Checks a finished run against the legal orders, from what is on record and not from what a policy claimed.

It knows nothing of policies or dispatchers: it reads who was taken before whom, when transfers began and when the
things they depend on were met. A correct run gives no violation; tests plant one of each kind and see it named.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from layerwise_sched.legal import Rule, order_rule
from layerwise_sched.model import DataPath, DependencyKind
from layerwise_sched.timeline import Code, Proof

if TYPE_CHECKING:
    from layerwise_sched.runs import Met, Run, TaskRun


class Broken(StrEnum):
    """What a run did that no schedule may do, beyond the order rules of `legal.Rule`."""

    GATE = "gate"
    """A transfer began before its attention boundary was reached."""
    REUSE = "reuse"
    """A transfer overwrote a slot before the former owner's save was over, on the CPU or on the NPU side."""
    LOST = "lost"
    """A task was never taken, or taken and never reported done."""
    TWICE = "twice"
    """A task was taken or reported done more than once."""
    EARLY_DONE = "early_done"
    """A task was reported done before its transfer ended."""


class Violation(NamedTuple):
    """One broken rule: which, the task's cid, the other task's (-1: none), and what happened, in words."""

    rule: Rule | Broken
    cid: int
    other: int
    detail: str


def check_run(run: Run, *, finished: bool = True) -> list[Violation]:
    """Every violation in a run, in the order of enqueueing.

    finished: the run was let to its end, so that a task that was not served is lost. Give False for a run that was cut
    off or whose thread died of a backend's fault (upstream reports neither that task nor those behind it done).
    """
    found: list[Violation] = []
    found += _orders(run)
    for task in run.tasks.values():
        found += _waits(task)
        found += _ends(task, finished)
    return found


def _orders(run: Run) -> list[Violation]:
    """Every task that was taken while an earlier one that it may not pass was still queued, or while not ready."""
    found: list[Violation] = []
    served = run.served
    pending = sorted(run.tasks.values(), key=lambda task: task.task.cid)
    place = 0
    taken: set[int] = set()
    for later in served:
        cid, at = later.task.cid, later.dequeued or 0
        while place < len(pending) and pending[place].task.cid in taken:
            place += 1
        passed = False
        for earlier in pending[place:]:
            if earlier.task.cid >= cid:
                break
            if earlier.task.cid in taken or earlier.enqueued > at:
                continue
            passed = True
            if (rule := order_rule(earlier.task, later.task)) is not None:
                what = f"layer {later.task.layer} was taken before layer {earlier.task.layer}"
                found.append(Violation(rule, cid, earlier.task.cid, what))
        ready = later.ready_at()
        if passed and ready is not None and ready > at and not _waited_only(later):
            what = f"layer {later.task.layer} passed others {ready - at} ns before it was ready"
            found.append(Violation(Rule.NOT_READY, cid, -1, what))
        taken.add(cid)
    return found


def _waited_only(task: TaskRun) -> bool:
    """Whether readiness is known from the task's own waits only, which return after the fact."""
    return all(met.proof is Proof.WAIT for met in task.met.values())


def _waits(task: TaskRun) -> list[Violation]:
    begin = task.submitted
    if begin is None:
        return []
    found: list[Violation] = []
    facts, cid = task.task, task.task.cid
    if facts.source is not None:
        kinds = [DependencyKind.SAVE_CPU] + ([DependencyKind.SAVE_NPU] if facts.path is not DataPath.KEY else [])
        for kind in kinds:
            if (why := _late(task.met.get(kind), begin)) is not None:
                what = f"layer {facts.layer} overwrote the slot of layer {facts.source}: {kind.name} {why}"
                found.append(Violation(Broken.REUSE, cid, -1, what))
    if facts.gate is not None and facts.has_io:
        for kind in (DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU):
            if (why := _late(task.met.get(kind), begin)) is not None:
                what = f"layer {facts.layer} passed its gate: {kind.name} {why}"
                found.append(Violation(Broken.GATE, cid, -1, what))
    return found


def _late(met: Met | None, begin: int) -> str | None:
    if met is None:
        return "was never seen met"
    return f"was met {met.at - begin} ns after the transfer began" if met.at > begin else None


def _ends(task: TaskRun, finished: bool) -> list[Violation]:
    cid, layer = task.task.cid, task.task.layer
    found: list[Violation] = []
    if task.takes > 1 or task.dones > 1:
        what = f"layer {layer} was taken {task.takes} times and reported done {task.dones} times"
        found.append(Violation(Broken.TWICE, cid, -1, what))
    if finished and task.failed is None and not task.complete:
        what = "never taken" if task.dequeued is None else "taken and never reported done"
        found.append(Violation(Broken.LOST, cid, -1, f"layer {layer} was {what}"))
    ends = [span.end for span in task.spans if span.code is Code.TRANSFER]
    if task.done is not None and ends and max(ends) > task.done:
        what = f"layer {layer} was reported done {max(ends) - task.done} ns before its transfer ended"
        found.append(Violation(Broken.EARLY_DONE, cid, -1, what))
    return found
