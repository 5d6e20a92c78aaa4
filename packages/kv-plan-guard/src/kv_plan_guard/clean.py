"""The quick comparison: whether a plan is clean, in as few passes as it takes.

It is sound and not complete: what it calls clean has no fault that `diagnose` would find, and what it does not call
clean goes to `diagnose`, which has the last word. Slots are built by runs: within one kernel block a request's slots
are consecutive, so that a token costs one addition and no division.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard import rules
from kv_plan_guard.arrays import any_true, bounds, equal, ramp

if TYPE_CHECKING:
    from kv_plan_guard.blocks import GroupBlocks
    from kv_plan_guard.expect import Batch, Rows
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.mirror import Mirror

I64: TypeAlias = NDArray[np.int64]


#: Block table entries up to which a mask over all of them is quicker than a plain part and a masked rest.
SMALL: Final = 4096


def clean_batch(plan: PlanFacts, batch: Batch) -> bool:
    """Whether query_start_loc, positions, lengths and their padding are as expected."""
    size, total = len(batch.slots), batch.num_tokens
    rows = size if plan.num_reqs is None else plan.num_reqs
    tokens = total if plan.num_tokens is None else plan.num_tokens
    if rows < size or tokens < total:
        return False
    offsets = plan.query_start_loc
    if offsets is not None:
        if len(offsets) <= size or not equal(offsets[: size + 1], batch.offsets):
            return False
        if len(offsets) > size + 1 and rows > size and not _pad_offsets_fine(offsets[size : rows + 1], tokens):
            return False
    positions = plan.positions
    if positions is not None and (len(positions) < total or not equal(positions[:total], batch.positions)):
        return False
    for lengths in (plan.seq_lens, plan.seq_lens_host):
        if lengths is None:
            continue
        if len(lengths) < rows or not equal(lengths[:size], batch.ends32):
            return False
        if rows > size and any_true(lengths[size:rows] != 0):
            return False
    return True


def _pad_offsets_fine(tail: NDArray[Any], tokens: int) -> bool:
    """Padded rows may keep places for queries, inside of the padded batch."""
    return not any_true(tail[1:] < tail[:-1]) and int(tail[-1]) <= tokens


def clean_extra(plan: PlanFacts, batch: Batch, mirror: Mirror) -> bool:
    """Whether the parts that only some layouts have are as expected: local lengths, accepted counts."""
    size = len(batch.slots)
    layout = mirror.groups[plan.group].layout
    part = plan.local_seq_lens
    if part is not None:
        expected = rules.local_length(batch.end, layout.shards, layout.shard_rank, layout.interleave)
        if len(part) < size or not equal(part[:size], expected) or any_true(part[size:] != 0):
            return False
    if plan.num_accepted is not None:
        kept = mirror.kept[batch.slots]
        if len(plan.num_accepted) < size or any_true((plan.num_accepted[:size] != kept) & (kept > 0)):
            return False
    return True


def clean_group(plan: PlanFacts, batch: Batch, rows: Rows, group: GroupBlocks) -> bool:
    """Whether the block table and the slots of one group are as expected."""
    layout = group.layout
    first, stop = rules.needed_columns(layout, batch.start, batch.end)
    if group.conflicts or group.flagged or group.nulls:
        if group.conflicts or not group.flagged.isdisjoint(batch.slots.tolist()):
            return False
        if _null_needed(batch, group, first, stop):
            return False
    if any_true(group.count[batch.slots] < stop):
        return False
    table = plan.block_table
    if table is not None and not _clean_table(plan, batch, rows, group, table, first, stop):
        return False
    if layout.kind == "mamba" and not _clean_state(plan, batch, rows, group):
        return False
    if layout.slots == "unused":
        return True
    slots = plan.slot_mapping
    total = batch.num_tokens
    if slots is None:
        return layout.slots == "disabled" or expected_slots(batch, rows, group) is not None
    tokens = total if plan.num_tokens is None else plan.num_tokens
    if len(slots) < tokens or (plan.slot_capacity is not None and tokens > plan.slot_capacity):
        return False
    if tokens > total and any_true(slots[total:tokens] != -1):
        return False
    if layout.slots == "disabled":
        return not any_true(slots[:total] != -1)
    expected = expected_slots(batch, rows, group)
    if expected is None:
        return False
    if slots.dtype == np.int32 and layout.slots_fit_int32:
        # No slot of this group can wrap, so that nothing is lost by comparing in the plan's own type.
        expected = expected.astype(np.int32)
    return equal(slots[:total], expected)


def _clean_table(
    plan: PlanFacts, batch: Batch, rows: Rows, group: GroupBlocks, table: NDArray[Any], first: I64 | None, stop: I64
) -> bool:
    size = len(batch.slots)
    padded = size if plan.num_reqs is None else plan.num_reqs
    ratio = group.layout.ratio
    if len(table) < padded:
        return False
    least, most = bounds(stop)
    least, most = least * ratio, most * ratio
    if table.shape[1] < most:
        return False
    if first is not None and not any_true(first != 0):
        first = None
    if first is not None or (least != most and size * most <= SMALL):
        least = 0  # one comparison under a mask instead of two
    for width, at, where in rows.parts:
        mine = group.tables[width].rows
        if least and not equal(table[at, :least], mine[where, :least]):
            return False
        if least == most:
            continue
        columns = ramp(min(most, width))[least:]
        differs = table[at, least : least + len(columns)] != mine[where, least : least + len(columns)]
        if any_true(differs):
            used = columns < (stop[at] * ratio)[:, None]
            if first is not None:
                used &= columns >= (first[at] * ratio)[:, None]
            if any_true(differs & used):
                return False
    if padded > size and group.layout.null_block == 0 and any_true(table[size:padded, : max(most, 1)] != 0):
        return False
    shared = plan.num_common_prefix_blocks
    return not shared or (shared <= table.shape[1] and not any_true(table[:size, :shared] != table[0, :shared]))


def _null_needed(batch: Batch, group: GroupBlocks, first: I64 | None, stop: I64) -> bool:
    """Whether a row that holds the null block holds it in a needed column; few rows do."""
    for at, slot in enumerate(batch.slots.tolist()):
        if slot in group.nulls:
            row = group.manager_row(slot)[0 if first is None else int(first[at]) : int(stop[at])]
            if group.layout.kind == "mamba":
                row = row[states_needed(len(row), int(batch.start[at]))]
            if any_true(row == group.layout.null_block):
                return True
    return False


def _clean_state(plan: PlanFacts, batch: Batch, rows: Rows, group: GroupBlocks) -> bool:
    """Whether recurrent states are read where they lie."""
    size = len(batch.slots)
    if plan.state_columns is None and plan.state_blocks is None:
        return True
    columns = rules.state_column(group.layout, batch.start)
    if plan.state_columns is not None and not _starts_with(plan.state_columns, columns):
        return False
    if plan.state_blocks is None:
        return True
    if any_true(columns >= group.count[batch.slots]):
        return False
    return _starts_with(plan.state_blocks, _pick(rows, group, ramp(size), columns * group.layout.ratio))


def _starts_with(actual: NDArray[Any], expected: I64) -> bool:
    return len(actual) >= len(expected) and equal(actual[: len(expected)], expected)


def states_needed(columns: int, computed: int) -> list[int]:
    """Which of a row's needed columns hold a state: the one read, if there is any yet, and the one written."""
    return [0, columns - 1] if computed else [columns - 1]


def expected_slots(batch: Batch, rows: Rows, group: GroupBlocks) -> I64 | None:
    """The slots [num_tokens] that the step writes; None where a block is not its request's own to write."""
    layout = group.layout
    size, kernel = len(batch.slots), layout.kernel_size
    if layout.shards > 1 or layout.kind == "ring":
        return _slots_by_token(batch, rows, group)
    if batch.single:
        columns = batch.start // kernel
        blocks = _pick(rows, group, ramp(size), columns)
        if not _own(batch.lives, blocks, group):
            return None
        return (blocks - columns) * kernel + batch.start
    if size == 1:
        return _slots_of_one(batch, rows, group, kernel)
    # Runs: one per (row, kernel block). A slot is its position plus what its block lies ahead of its column.
    head = batch.start // kernel
    count = (batch.end + (kernel - 1)) // kernel - head
    row = np.repeat(ramp(size), count)
    runs = len(row)
    after = np.add.accumulate(count)
    columns = ramp(runs) - (after - count - head)[row]
    blocks = _pick(rows, group, row, columns)
    if not _own(batch.lives[row], blocks, group):
        return None
    # Every run is a whole block but a row's first and last, which lose what lies outside of the step.
    length = np.full(runs, kernel, np.int64)
    length[after - count] -= batch.start - head * kernel
    length[after - 1] -= (head + count) * kernel - batch.end
    expected = np.repeat((blocks - columns) * kernel, length)
    expected += batch.positions
    return expected


def _slots_of_one(batch: Batch, rows: Rows, group: GroupBlocks, kernel: int) -> I64 | None:
    width, _, where = rows.parts[0]
    start, total = int(batch.start[0]), batch.num_tokens
    head, stop = start // kernel, -(-(start + total) // kernel)
    line = where.start if isinstance(where, slice) else int(where[0])
    blocks = group.tables[width].rows[line, head:stop].astype(np.int64)
    if not _own(batch.lives, blocks, group):
        return None
    base = (blocks * kernel)[:, None] + ramp(kernel)
    skip = start - head * kernel
    return base.ravel()[skip : skip + total]


def _slots_by_token(batch: Batch, rows: Rows, group: GroupBlocks) -> I64 | None:
    layout = group.layout
    mine, columns, offsets = rules.kernel_column_and_offset(layout, batch.positions)
    row = ramp(len(batch.slots)) if batch.single else np.repeat(ramp(len(batch.slots)), batch.scheduled)
    blocks = _pick(rows, group, row, columns)
    if not _own(batch.lives[row[mine]], blocks[mine], group):
        return None
    return np.where(mine, blocks * layout.kernel_size + offsets, -1)


def _pick(rows: Rows, group: GroupBlocks, row: I64, columns: I64) -> I64:
    """Kernel blocks at (batch row, kernel column) pairs."""
    if len(rows.parts) == 1:
        width, _, where = rows.parts[0]
        lines = row + where.start if isinstance(where, slice) else where[row]
        picked: I64 = group.tables[width].rows[lines, columns].astype(np.int64)
        return picked
    found = np.zeros(len(row), np.int64)
    size = sum(at.stop - at.start if isinstance(at, slice) else len(at) for _, at, _ in rows.parts)
    for width, at, where in rows.parts:
        place = np.full(size, -1, np.int64)
        place[at] = np.arange(where.start, where.stop) if isinstance(where, slice) else where
        here = place[row]
        chosen = np.flatnonzero(here >= 0)
        found[chosen] = group.tables[width].rows[here[chosen], columns[chosen]]
    return found


def _own(lives: I64, blocks: I64, group: GroupBlocks) -> bool:
    """Whether the blocks were last given to these lives. Ids out of range make a row flagged, and never come here."""
    ratio = group.layout.ratio
    return not any_true(group.writer[blocks if ratio == 1 else blocks // ratio] != lives)
