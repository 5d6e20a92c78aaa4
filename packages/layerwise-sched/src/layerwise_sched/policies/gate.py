"""Gate-grouped: tasks that one attention boundary opens are a group, and only inside it may one pass another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerwise_sched.legal import HOLD
from layerwise_sched.policies.ready import _SAVES, ReadyFirst, first_ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task


class GateGrouped(ReadyFirst):
    """As `ready`, but only a task of the head's own gate may pass it.

    Upstream gives every task but the first burst its own gate, so that groups have one member and this is upstream's
    order nearly everywhere. It exists because the question was asked; the study shows the answer.
    """

    name = "gate"

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        """The head if ready, else the first ready task of its gate, else HOLD where another of the gate may come."""
        head = queue[0]
        if head is None or head.slot_waiter:
            return 0
        missing = ready.missing(head)
        if missing is None:
            return 0
        index = first_ready(queue, head, ready, self.lookahead, self.polls, gate=True)
        if index:
            return index
        return HOLD if missing in _SAVES else 0
