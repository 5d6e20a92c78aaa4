"""The expected batch of one step: made from the mirror once, in batch row order, and used by every group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard.arrays import MAX_RAMP, any_true, ramp, ramp32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kv_plan_guard.blocks import GroupBlocks
    from kv_plan_guard.mirror import Mirror
    from kv_plan_guard.requests import StepRecord

I64: TypeAlias = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)
_NONE32 = np.zeros(0, np.int32)


@dataclass(slots=True, eq=False)
class Rows:
    """Which rows of which width table hold a batch's blocks: `parts` of (table width, batch rows, table rows).

    Rows that follow each other are a slice, so that nothing is gathered. `moves` tells whether this still holds.
    """

    moves: int
    parts: list[tuple[int, Any, Any]]


@dataclass(slots=True, eq=False)
class Batch:
    """The expectation of one step in batch row order. Arrays [num_reqs] int64 unless said otherwise."""

    step: int
    version: int
    req_ids: Sequence[str]
    slots: NDArray[np.intp]
    lives: I64
    num_tokens: int = 0
    single: bool = False  # one token for every row
    bounded: bool = False  # some start is known as a range only
    scheduled: I64 = field(default_factory=lambda: _NONE)
    start: I64 = field(default_factory=lambda: _NONE)
    end: I64 = field(default_factory=lambda: _NONE)
    ends32: NDArray[np.int32] = field(default_factory=lambda: _NONE32)
    offsets: NDArray[np.int32] = field(default_factory=lambda: _NONE32)  # [num_reqs + 1]
    positions: I64 = field(default_factory=lambda: _NONE)  # [num_tokens]
    rows: dict[int, Rows] = field(default_factory=dict)


class Expectation:
    """Batches of the newest step. The composition of a batch is kept while the same requests come in the same order."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._batch: Batch | None = None

    def batch(self, req_ids: Sequence[str]) -> Batch | None:
        """The expectation for rows in this order; None where a request is unknown, or comes twice, or is missing."""
        mirror = self.mirror
        record = mirror.current
        assert record is not None
        batch = self._batch
        if batch is None or batch.version != mirror.version or batch.req_ids != req_ids:
            batch = self._compose(req_ids, record)
            if batch is None:
                return None
        elif batch.step == record.step:
            return batch
        if len(req_ids) != len(record.req_ids) or any_true(mirror.stamp[batch.slots] != record.step):
            return None
        batch.step = record.step
        self._batch = batch
        self._fill(batch, record)
        return batch

    def refresh(self) -> None:
        """The current step's start was corrected: its numbers are made anew, its composition stays."""
        if self._batch is not None:
            self._batch.step = -1

    def _compose(self, req_ids: Sequence[str], record: StepRecord) -> Batch | None:
        mirror = self.mirror
        slots = list(map(mirror.index.get, req_ids))
        if None in slots or len(set(slots)) != len(slots):
            return None
        where = np.array(slots, np.intp)
        return Batch(-1, mirror.version, list(req_ids), where, mirror.life[where])

    def _fill(self, batch: Batch, record: StepRecord) -> None:
        mirror, slots = self.mirror, batch.slots
        size, total = len(slots), record.num_tokens
        start = mirror.low[slots]
        batch.bounded = mirror.speculates and any_true(mirror.high[slots] != start)
        batch.start, batch.num_tokens, batch.single = start, total, record.single
        if record.single:
            batch.scheduled = record.scheduled
            end = start + 1
            batch.offsets = ramp32(size + 1)
            batch.positions = start
        elif size == 1:
            batch.scheduled = record.scheduled
            end = start + total
            batch.offsets = np.array([0, total], np.int32)
            first = int(start[0])
            batch.positions = ramp(first + total)[first:] if first + total <= MAX_RAMP else ramp(total) + first
        else:
            scheduled = batch.scheduled = mirror.scheduled[slots]
            end = start + scheduled
            offsets = batch.offsets = np.zeros(size + 1, np.int32)
            np.add.accumulate(scheduled, dtype=np.int32, out=offsets[1:])
            batch.positions = np.repeat(start - offsets[:-1], scheduled)
            batch.positions += ramp(total)
        batch.end = end
        batch.ends32 = end.astype(np.int32)

    def rows(self, batch: Batch, number: int, group: GroupBlocks) -> Rows:
        """Where the batch's rows of one group lie."""
        rows = batch.rows.get(number)
        if rows is not None and rows.moves == group.moves:
            return rows
        widths, places = group.width[batch.slots].tolist(), group.row[batch.slots].tolist()
        at: dict[int, list[int]] = {}
        for row, width in enumerate(widths):
            at.setdefault(width, []).append(row)
        parts = [(width, _slice(which), _slice([places[row] for row in which])) for width, which in at.items()]
        rows = batch.rows[number] = Rows(group.moves, parts)
        return rows


def _slice(numbers: list[int]) -> Any:
    """The numbers as a slice where they follow each other."""
    first, size = numbers[0], len(numbers)
    if numbers[-1] - first == size - 1 and numbers == list(range(first, first + size)):
        return slice(first, first + size)
    return np.array(numbers, np.intp)
