"""The expected batch of one step, and the quick comparison: whether a plan is clean, in as few passes as it takes.

The quick comparison is sound and not complete: what it calls clean has no fault that `diagnose` would find, and what it
does not call clean goes to `diagnose`, which has the last word. Slots are built by runs: within one kernel block a
request's slots are consecutive, so that a token costs one addition and no division.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kv_plan_guard.blocks import GroupBlocks
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.mirror import Mirror

I64: TypeAlias = NDArray[np.int64]

#: Longest shared array of running numbers (32 MiB); longer ones are added up where they are needed.
MAX_RAMP: Final = 1 << 22
_RAMP = np.arange(1 << 12, dtype=np.int64)


def ramp(size: int) -> I64:
    """0, 1, 2, ...: a view of a shared array; not to be written."""
    global _RAMP
    if size > len(_RAMP):
        _RAMP = np.arange(max(size, 2 * len(_RAMP)), dtype=np.int64)
        _RAMP.flags.writeable = False
    return _RAMP[:size]


_RAMP32 = np.arange(1 << 12, dtype=np.int32)


def ramp32(size: int) -> NDArray[np.int32]:
    """The same in int32, the type of query_start_loc."""
    global _RAMP32
    if size > len(_RAMP32):
        _RAMP32 = np.arange(max(size, 2 * len(_RAMP32)), dtype=np.int32)
        _RAMP32.flags.writeable = False
    return _RAMP32[:size]


@dataclass(slots=True, eq=False)
class Rows:
    """Which rows of which width table hold a batch's blocks: `parts` of (table width, batch rows, table rows).

    A part whose rows follow each other is a slice, so that nothing is gathered.
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
    scheduled: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    start: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    end: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    ends32: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    offsets: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))  # [num_reqs + 1]
    positions: I64 = field(default_factory=lambda: np.zeros(0, np.int64))  # [num_tokens]
    rows: dict[int, Rows] = field(default_factory=dict)


class Expectation:
    """Batches of the newest step, made from the mirror once and used by every group."""

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        self._batch: Batch | None = None

    def batch(self, req_ids: Sequence[str]) -> Batch | None:
        """The expectation for rows in this order; None where a request is unknown, or comes twice, or is missing."""
        mirror = self.mirror
        record = mirror.current
        assert record is not None
        known = self._batch
        same = known is not None and known.version == mirror.version and known.req_ids == req_ids
        if same and known is not None and known.step == record.step:
            return known
        if same and known is not None:
            batch = known
        else:
            slots = list(map(mirror.index.get, req_ids))
            if None in slots or len(set(slots)) != len(slots):
                return None
            where = np.array(slots, np.intp)
            batch = Batch(record.step, mirror.version, list(req_ids), where, mirror.life[where])
        if len(req_ids) != len(record.req_ids) or (mirror.stamp[batch.slots] != record.step).any():
            return None
        batch.step = record.step
        self._batch = batch
        self._fill(batch)
        return batch

    def refresh(self) -> None:
        """The current step's start was corrected: make the expectation anew."""
        self._batch = None

    def _fill(self, batch: Batch) -> None:
        mirror, slots = self.mirror, batch.slots
        size = len(slots)
        start = mirror.low[slots]
        scheduled = mirror.scheduled[slots]
        end = start + scheduled
        total = int(np.add.reduce(scheduled))
        batch.start, batch.scheduled, batch.end = start, scheduled, end
        batch.ends32 = end.astype(np.int32)
        batch.num_tokens = total
        batch.single = total == size
        if batch.single:
            batch.offsets = ramp32(size + 1)
            batch.positions = start
            return
        offsets = np.zeros(size + 1, np.int32)
        np.cumsum(scheduled, dtype=np.int32, out=offsets[1:])
        batch.offsets = offsets
        if size == 1:
            first = int(start[0])
            batch.positions = ramp(first + total)[first:] if first + total <= MAX_RAMP else ramp(total) + first
        else:
            batch.positions = np.repeat(start - offsets[:-1], scheduled)
            batch.positions += ramp(total)

    def rows(self, batch: Batch, number: int, group: GroupBlocks) -> Rows:
        """Where the batch's rows of one group lie."""
        rows = batch.rows.get(number)
        if rows is not None and rows.moves == group.moves:
            return rows
        widths, places = group.width[batch.slots], group.row[batch.slots]
        parts: list[tuple[int, Any, Any]] = []
        for width in np.unique(widths).tolist():
            at = np.flatnonzero(widths == width)
            parts.append((width, _slice(at), _slice(places[at])))
        rows = Rows(group.moves, parts)
        batch.rows[number] = rows
        return rows


def _slice(numbers: NDArray[np.intp]) -> Any:
    """The numbers as a slice where they follow each other."""
    first, size = int(numbers[0]), len(numbers)
    if int(numbers[-1]) - first == size - 1 and bool((np.diff(numbers) == 1).all()):
        return slice(first, first + size)
    return numbers


def bounded(mirror: Mirror, batch: Batch) -> bool:
    """Whether some start is known as a range only (a rejection in flight that nobody reported)."""
    return mirror.speculates and bool((mirror.low[batch.slots] != mirror.high[batch.slots]).any())


def equal(actual: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether both hold the same numbers; the quick way for small arrays of one type is to compare their bytes."""
    if actual.dtype == expected.dtype and actual.nbytes <= 2048:
        return actual.tobytes() == expected.tobytes()
    return bool((actual == expected).all())


def clean_batch(plan: PlanFacts, batch: Batch) -> bool:
    """Whether query_start_loc, positions, lengths and their padding are as expected."""
    size, total = len(batch.slots), batch.num_tokens
    offsets = plan.query_start_loc
    if offsets is not None:
        if len(offsets) < size + 1 or not equal(offsets[: size + 1], batch.offsets):
            return False
        if len(offsets) > size + 1 and not _pad_offsets_fine(plan, offsets, size, total):
            return False
    positions = plan.positions
    if positions is not None and (len(positions) < total or not equal(positions[:total], batch.positions)):
        return False
    rows = size if plan.num_reqs is None else plan.num_reqs
    tokens = total if plan.num_tokens is None else plan.num_tokens
    if rows < size or tokens < total:
        return False
    for lengths in (plan.seq_lens, plan.seq_lens_host):
        if lengths is None:
            continue
        if len(lengths) < rows or not equal(lengths[:size], batch.ends32):
            return False
        if rows > size and lengths[size:rows].any():
            return False
    return True


def clean_extra(plan: PlanFacts, batch: Batch, mirror: Mirror) -> bool:
    """Whether the parts that only some layouts have are as expected: local lengths, states, accepted counts."""
    size = len(batch.slots)
    layout = mirror.groups[plan.group].layout
    part = plan.local_seq_lens
    if part is not None:
        expected = rules.local_length(batch.end, layout.shards, layout.shard_rank, layout.interleave)
        if len(part) < size or not equal(part[:size], expected) or part[size:].any():
            return False
    if plan.num_accepted is not None:
        kept = mirror.kept[batch.slots]
        if len(plan.num_accepted) < size or ((plan.num_accepted[:size] != kept) & (kept > 0)).any():
            return False
    return plan.state_columns is None and plan.state_blocks is None


def _pad_offsets_fine(plan: PlanFacts, offsets: NDArray[Any], size: int, total: int) -> bool:
    """Padded rows may keep places for queries, inside of the padded batch."""
    tail = offsets[size:]
    most = total if plan.num_tokens is None else max(plan.num_tokens, total)
    rows = size if plan.num_reqs is None else plan.num_reqs
    return bool((tail[1:] >= tail[:-1]).all()) and int(offsets[min(rows, len(offsets) - 1)]) <= most


def clean_group(plan: PlanFacts, batch: Batch, rows: Rows, group: GroupBlocks) -> bool:
    """Whether the block table and the slots of one group are as expected."""
    layout = group.layout
    first, stop = rules.needed_columns(layout, batch.start, batch.end)
    if group.conflicts or group.flagged or group.nulls:
        if group.conflicts or not group.flagged.isdisjoint(batch.slots.tolist()):
            return False
        if _null_needed(batch, group, first, stop):
            return False
    if (group.count[batch.slots] < stop).any():
        return False
    table = plan.block_table
    if table is not None and not _clean_table(plan, batch, rows, group, table, first, stop):
        return False
    if layout.slots == "unused":
        return True
    slots = plan.slot_mapping
    total = batch.num_tokens
    if slots is None:
        return layout.slots == "disabled" or _writes_own(batch, rows, group)[0]
    tokens = total if plan.num_tokens is None else plan.num_tokens
    if len(slots) < tokens or (plan.slot_capacity is not None and tokens > plan.slot_capacity):
        return False
    if tokens > total and (slots[total:tokens] != -1).any():
        return False
    if layout.slots == "disabled":
        return not (slots[:total] != -1).any()
    own, expected = _writes_own(batch, rows, group)
    return own and equal(slots[:total], expected)


def _clean_table(
    plan: PlanFacts,
    batch: Batch,
    rows: Rows,
    group: GroupBlocks,
    table: NDArray[Any],
    first: I64,
    stop: I64,
) -> bool:
    size = len(batch.slots)
    padded = size if plan.num_reqs is None else plan.num_reqs
    ratio = group.layout.ratio
    if len(table) < padded:
        return False
    least, most = int(stop.min()) * ratio, int(stop.max()) * ratio
    if table.shape[1] < most:
        return False
    ragged = least != most
    if int(first.max()):
        least, ragged = 0, True
    for width, at, where in rows.parts:
        mine = group.tables[width].rows
        if least and not bool((table[at, :least] == mine[where, :least]).all()):
            return False
        if not ragged:
            continue
        columns = ramp(min(most, width) - least) + least
        differs = table[at, least : least + len(columns)] != mine[where, least : least + len(columns)]
        if differs.any():
            used = (columns < (stop[at] * ratio)[:, None]) & (columns >= (first[at] * ratio)[:, None])
            if (differs & used).any():
                return False
    if padded > size and group.layout.null_block == 0 and table[size:padded, : max(most, 1)].any():
        return False
    shared = plan.num_common_prefix_blocks
    return not shared or bool((table[:size, :shared] == table[0, :shared]).all())


def _null_needed(batch: Batch, group: GroupBlocks, first: I64, stop: I64) -> bool:
    """Whether a row that holds the null block holds it in a needed column; few rows do."""
    for at, slot in enumerate(batch.slots.tolist()):
        if slot in group.nulls:
            row = group.manager_row(slot)[int(first[at]) : int(stop[at])]
            if group.layout.kind == "mamba":
                row = row[[0, -1]]  # states in between are not kept
            if (row == group.layout.null_block).any():
                return True
    return False


def _writes_own(batch: Batch, rows: Rows, group: GroupBlocks) -> tuple[bool, I64]:
    """(whether each block written is the request's own to write, expected slots [num_tokens])."""
    layout = group.layout
    size, kernel = len(batch.slots), layout.kernel_size
    if layout.shards > 1 or layout.kind == "ring":
        return _writes_by_token(batch, rows, group)
    if batch.single:
        columns = batch.start // kernel
        blocks = _pick(rows, group, ramp(size), columns)
        if not _own(batch.lives, blocks, group):
            return False, batch.start
        return True, blocks * kernel + (batch.start - columns * kernel)
    head = batch.start // kernel
    count = (batch.end - 1) // kernel - head + 1
    if size == 1:
        number = int(count[0])
        at = int(head[0])
        blocks = _pick(rows, group, None, slice(at, at + number))
        if not _own(batch.lives[0], blocks, group):
            return False, batch.start
        first, stop = int(batch.start[0]), int(batch.end[0])
        if number == 1:
            return True, ramp(stop - first) + (int(blocks[0]) - at) * kernel + first
        base = (blocks * kernel)[:, None] + ramp(kernel)
        return True, base.ravel()[first - at * kernel : stop - at * kernel]
    # Runs: one per (row, kernel block); a run's slots are its block's first slot plus the offset of its first token.
    runs = int(np.add.reduce(count))
    row = np.repeat(ramp(size), count)
    before = np.add.accumulate(count) - count
    columns = ramp(runs) - (before - head)[row]
    blocks = _pick(rows, group, row, columns)
    if not _own(batch.lives[row], blocks, group):
        return False, batch.start
    edge = columns * kernel
    low = np.maximum(edge, batch.start[row])
    length = np.minimum(edge + kernel, batch.end[row]) - low
    token = np.add.accumulate(length) - length
    expected = np.repeat(blocks * kernel + low - edge - token, length)
    expected += ramp(batch.num_tokens)
    return True, expected


def _writes_by_token(batch: Batch, rows: Rows, group: GroupBlocks) -> tuple[bool, I64]:
    layout = group.layout
    mine, columns, offsets = rules.kernel_column_and_offset(layout, batch.positions)
    row = np.repeat(ramp(len(batch.slots)), batch.scheduled)
    blocks = _pick(rows, group, row, columns)
    if not _own(batch.lives[row[mine]], blocks[mine], group):
        return False, batch.start
    return True, np.where(mine, blocks * layout.kernel_size + offsets, -1)


def _pick(rows: Rows, group: GroupBlocks, row: I64 | None, columns: Any) -> I64:
    """Kernel blocks at (batch row, kernel column) pairs; with `row` None, of the only row."""
    if len(rows.parts) == 1:
        width, _, where = rows.parts[0]
        table = group.tables[width].rows
        if row is None:
            line = where.start if isinstance(where, slice) else int(where[0])
            return np.asarray(table[line, columns], np.int64)
        lines = row + where.start if isinstance(where, slice) else where[row]
        return np.asarray(table[lines, columns], np.int64)
    assert row is not None
    found = np.zeros(len(row), np.int64)
    for width, at, where in rows.parts:
        place = np.full(int(row.max()) + 1 if len(row) else 1, -1, np.int64)
        numbers = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        lines = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        inside = numbers < len(place)
        place[numbers[inside]] = lines[inside]
        here = place[row]
        chosen = here >= 0
        found[chosen] = group.tables[width].rows[here[chosen], columns[chosen]]
    return found


def _own(lives: Any, blocks: I64, group: GroupBlocks) -> bool:
    ratio = group.layout.ratio
    managers = blocks if ratio == 1 else blocks // ratio
    if len(managers) == 0:
        return True
    if int(managers.max()) >= len(group.writer) or int(managers.min()) < 0:
        return False
    return bool((group.writer[managers] == lives).all())
