"""The requests of a worker as flat arrays: a request's numbers stand at its slot, so that a batch is one gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kv_plan_guard.facts import StepFacts

#: Known tokens of a request whose number of tokens nobody told: no bound.
UNBOUNDED: Final = 1 << 60
#: The arrays by slot, int64. scheduled: tokens of its last step. low, high: bounds of the tokens computed before it.
#: end: high + scheduled. known: tokens the worker has or will have when all steps in flight are through, at most.
#: encoder: tokens of the encoder. life: number of its life, 0 for a free slot. drafts: of its last step. frontier:
#: tokens computed after its last step, where `exact`. stamp: its last step. kept: what its last settled step kept.
NUMBERS: Final = ("scheduled", "low", "high", "end", "known", "encoder", "life", "drafts", "frontier", "stamp", "kept")


@dataclass(slots=True)
class StepRecord:
    """One step as it was scheduled. Arrays [num_reqs] in the order of `req_ids` (not the batch's row order).

    `sampled` is what the step adds to each request at most; `single` says that every request has one token.
    """

    step: int
    settled: int
    req_ids: list[str]
    slots: NDArray[np.intp]
    lives: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    scheduled: NDArray[np.int64]
    drafts: NDArray[np.int64] | None
    sampled: NDArray[np.int64]
    summary: StepFacts
    num_tokens: int
    single: bool


@dataclass(slots=True)
class Limbo:
    """A request that was given up while a step in flight still uses its blocks."""

    request: str
    life: int
    last_step: int
    rows: list[NDArray[np.int32]]


class RequestTable:
    """Slots, names and numbers. `version` grows when a request comes or goes."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.names: list[str | None] = []
        self.free_slots: list[int] = []
        self.scheduled = self.low = self.high = self.end = np.zeros(0, np.int64)
        self.known = self.encoder = self.life = self.drafts = np.zeros(0, np.int64)
        self.frontier = self.stamp = self.kept = np.zeros(0, np.int64)
        self.exact = np.zeros(0, np.bool_)
        self.version = 0
        self.num_lives = 0

    def resize(self, size: int) -> None:
        """Make room for `size` slots."""
        old = len(self.names)
        for name in NUMBERS:
            array = getattr(self, name)
            grown = np.zeros(size, np.int64)
            grown[: len(array)] = array
            setattr(self, name, grown)
        self.exact = np.concatenate([self.exact, np.zeros(size - len(self.exact), np.bool_)])
        self.names += [None] * (size - old)
        self.free_slots += range(size - 1, old - 1, -1)

    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return int(self.exact.nbytes + sum(getattr(self, name).nbytes for name in NUMBERS))
