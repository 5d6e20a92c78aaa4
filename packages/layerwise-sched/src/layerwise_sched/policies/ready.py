"""Dependency-aware: run the head if it is ready, else the first later task that may pass it and is ready."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from layerwise_sched.legal import HOLD, passing_rule
from layerwise_sched.model import DependencyKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task

GATE_CONDITION, GATE_NPU = DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU
_SAVES = (DependencyKind.SAVE_CPU, DependencyKind.SAVE_NPU)


class ReadyFirst:
    """Never commits to a task whose save is missing while another may come.

    lookahead: tasks looked at behind the head. polls: of them, how many are asked whether they are ready, in one call;
    both bound the cost of `select` whatever the depth. Upstream queues as many tasks as its prefetch depth, 8 or fewer
    unless it is set by hand.

    A head that waits for its gate only is run at once: upstream's handler builds its addresses while the gate is
    closed, which holding it here would put behind the gate, and a later task's gate opens no earlier. Where
    another connector's slot waiter is installed readiness is unknowable, so the head is run at once, always.
    """

    name = "ready"
    reorders = True

    def __init__(self, lookahead: int = 16, polls: int = 6, **_options: Any) -> None:
        self.lookahead = lookahead
        self.polls = polls

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        """The head if ready, else the first ready task that may pass all before it, else HOLD (see the class)."""
        head = queue[0]
        if head is None or head.slot_waiter:
            return 0
        missing = ready.missing(head)
        if missing is None:
            return 0
        index = first_ready(queue, head, ready, self.lookahead, self.polls)
        if index:
            return index
        return HOLD if missing in _SAVES else 0


def first_ready(
    queue: Sequence[Task | None], head: Task, ready: Readiness, lookahead: int, polls: int, *, gate: bool = False
) -> int:
    """Index of the first task behind the head that is ready and may pass all before it; 0 for none.

    In the walk only the owner chains are looked at, which rule out most; `legal.passing_rule` is asked about a task
    that is ready. Tasks without I/O stay where they are: running them early gains nothing. gate: only tasks of the
    head's gate.
    """
    if head.final or head.key_major:
        return 0
    missing_in = ready.missing
    group = head.gate
    chains = {head.chain}
    index = 0
    for task in islice(queue, 1, lookahead + 1):
        index += 1
        if task is None:
            return 0
        chain = task.chain
        if chain in chains:
            continue
        chains.add(chain)
        if not task.has_io or (gate and task.gate != group):
            continue
        missing = missing_in(task)
        if missing is None:
            if passing_rule(queue, index) is None:
                return index
            continue
        polls -= 1
        # Gates open in the order of their ids, and ids ascend along the queue: the rest need not be asked.
        if missing is GATE_CONDITION or missing is GATE_NPU or not polls:
            return 0
    return 0
