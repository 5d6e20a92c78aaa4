"""Dependency-aware: run the head if it is ready, else the first later task that may pass it and is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerwise_sched.legal import HOLD
from layerwise_sched.model import DependencyKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task

_GATES = (DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU)
_SAVES = (DependencyKind.SAVE_CPU, DependencyKind.SAVE_NPU)


class ReadyFirst:
    """Never commits to a task whose save is missing while another may come; looks at `lookahead` tasks at most.

    A head that waits for its gate only is run at once: upstream's handler builds its addresses while the gate is
    closed, which holding it here would put behind the gate, and a later task's gate opens no earlier. A head whose
    slot waiter is installed is run at once too: readiness is unknowable then, so the order stays upstream's.
    """

    name = "ready"
    reorders = True

    def __init__(self, lookahead: int = 32, **_options: Any) -> None:
        self.lookahead = lookahead

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        """The head if ready, else the first ready task that may pass all before it, else HOLD (see the class)."""
        head = queue[0]
        if head is None:
            return 0
        missing = ready.missing(head)
        if missing is None or missing is DependencyKind.SLOT_RELEASE:
            return 0
        index = first_ready(queue, head, ready, self.lookahead)
        if index:
            return index
        return HOLD if missing in _SAVES else 0


def first_ready(
    queue: Sequence[Task | None], head: Task, ready: Readiness, lookahead: int, *, gate: bool = False
) -> int:
    """Index of the first task behind the head that is ready and may pass all before it; 0 for none.

    The same rules as `legal.passing_rule`, in one walk: what earlier tasks own is gathered on the way. Tasks without
    I/O are left in place (running them early gains nothing). gate: only tasks of the head's gate.
    """
    if head.final:
        return 0
    step = head.step
    chains = {head.chain}
    layers = {head.layer}
    groups = set(head.groups)
    ordered = head.key_major
    gate_closed = False
    for index in range(1, min(len(queue), lookahead + 1)):
        task = queue[index]
        if task is None or task.final or task.step != step:
            return 0
        ordered = ordered or task.key_major
        if not (
            task.chain in chains
            or task.source in layers
            or (ordered and not groups.isdisjoint(task.groups))
            or not task.has_io
            or (gate and task.gate != head.gate)
            or (gate_closed and task.gate is not None)
        ):
            missing = ready.missing(task)
            if missing is None:
                return index
            # Gates open in the order of their ids, and ids ascend along the queue: the rest need not be asked.
            gate_closed = gate_closed or missing in _GATES
        chains.add(task.chain)
        layers.add(task.layer)
        groups.update(task.groups)
    return 0
