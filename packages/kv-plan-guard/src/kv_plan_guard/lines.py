"""What each batch row of a plan must be, for the full comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.findings import Findings

I64: TypeAlias = NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Lines:
    """What each batch row is: `slots` of the requests, least and greatest first position, tokens of this step.

    `start` is the first position that the rest is judged by: the least one, or, where several are possible, the one
    that the plan's own positions name (if it is possible at all), so that one cause is reported once.
    """

    slots: NDArray[np.intp]
    low: I64
    high: I64
    counts: I64
    empty: bool = False
    fixed: bool = False
    start: I64 = field(init=False)
    _row: I64 = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.low
        self._row = np.repeat(np.arange(len(self.slots)), self.counts)

    def offsets(self) -> I64:
        """Running sum of the tokens, [rows + 1]."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    def row_of_token(self) -> I64:
        """Batch row of each token."""
        return self._row

    def within(self) -> I64:
        """Number of each token within its row's tokens."""
        return np.arange(len(self._row)) - self.offsets()[:-1][self._row]

    def positions(self) -> I64:
        """Position of each token."""
        return self.start[self._row] + self.within()

    def settle_start(self, plan: PlanFacts, found: Findings) -> None:
        """Choose `start` where drafts in flight leave several possible."""
        if bool((self.low == self.high).all()):
            self.fixed = True
            return
        total = int(self.counts.sum())
        if plan.positions is not None and len(plan.positions) >= total:
            first = plan.positions[np.minimum(self.offsets()[:-1], max(total - 1, 0))].astype(np.int64)
            self.start = np.clip(first, self.low, self.high)
            self.fixed = True
        elif plan.seq_lens is not None and len(plan.seq_lens) >= len(self.slots):
            first = plan.seq_lens[: len(self.slots)].astype(np.int64) - self.counts
            self.start = np.clip(first, self.low, self.high)
