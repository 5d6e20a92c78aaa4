"""Slots and recurrent states of one group, judged one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard import rules
from kv_plan_guard.diagnose_table import holder
from kv_plan_guard.lines import Lines
from kv_plan_guard.violation import Code

if TYPE_CHECKING:
    from kv_plan_guard.blocks import GroupBlocks
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.findings import Findings
    from kv_plan_guard.layout import GroupLayout, Layout
    from kv_plan_guard.mirror import Mirror

I64: TypeAlias = NDArray[np.int64]


def judge_slots(plan: PlanFacts, lines: Lines, mirror: Mirror, layout: Layout, found: Findings) -> None:
    """SLOT, INT32, NULL_USE, RANGE, OWN, XWRITE and PAD of the slot mapping; XWRITE also of the expected writes."""
    group = mirror.groups[plan.group]
    rule = group.layout
    if rule.slots == "unused":
        return
    if rule.kind == "cross":
        lines = _encoder_lines(lines, mirror)
    positions, row = lines.positions(), lines.row_of_token()
    mine, columns, offsets = rules.kernel_column_and_offset(rule, positions)
    blocks = _blocks_at(group, lines, row, columns)
    expected = np.where(mine, np.where(blocks >= 0, blocks * rule.kernel_size + offsets, -2), -1)
    if plan.draft and layout.max_model_len is not None:
        expected = _behind_the_limit(plan, lines, layout.max_model_len, positions, expected, columns, rule, found)
    if rule.slots == "disabled":
        expected = np.full_like(expected, -1)
    else:
        _exclusive(lines, mirror, group, row, blocks, mine, expected, found)
    slots = plan.slot_mapping
    if slots is None:
        return
    total = len(expected)
    if len(slots) < total:
        found.add(Code.CAPACITY, "slot_mapping", total, len(slots), why="fewer slots than tokens")
        return
    actual = slots[:total].astype(np.int64)
    for token in np.flatnonzero(actual != expected).tolist():
        wanted, value, at = int(expected[token]), int(actual[token]), int(row[token])
        why = ""
        if value == -1:
            why = "a real token is not written"
        elif wanted == -1:
            why = "another rank's token is written here" if rule.shards > 1 else "nothing is written here"
        elif wanted == -2:
            why, wanted = "the request has no block for this position", -1
        found.add(Code.SLOT, "slot_mapping", wanted, value, row=at, token=token, why=why)
        _judge_slot(plan, lines, group, at, token, value, wanted, found)
    tokens = total if plan.num_tokens is None else plan.num_tokens
    if rule.kind == "cross":
        tokens = len(slots)
    for token in np.flatnonzero(slots[total:tokens] != -1).tolist():
        value = int(slots[total + token])
        if rule.kind == "cross":
            why = "a cross attention slot in a step that encodes nothing here"
            found.add(Code.SLOT, "slot_mapping", -1, value, token=total + token, why=why)
        else:
            found.add(Code.PAD, "slot_mapping", -1, value, token=total + token, why="a padded token is written")


def _encoder_lines(lines: Lines, mirror: Mirror) -> Lines:
    """Cross attention keys are written once, in the step that encodes."""
    record = mirror.current
    assert record is not None
    encoded = record.summary.encoder_tokens
    counts = np.array([encoded.get(mirror.names[slot] or "", 0) for slot in lines.slots.tolist()], np.int64)
    zero = np.zeros(len(counts), np.int64)
    return Lines(lines.slots, zero, zero, counts)


def _blocks_at(group: GroupBlocks, lines: Lines, row: I64, columns: I64) -> I64:
    """Expected kernel block of each token; -1 where the request has none."""
    found = np.full(len(row), -1, np.int64)
    for at, slot in enumerate(lines.slots.tolist()):
        mask = row == at
        line = group.kernel_row(slot)
        wanted = columns[mask]
        inside = wanted < len(line)
        values = np.full(len(wanted), -1, np.int64)
        values[inside] = line[wanted[inside]]
        found[mask] = values
    return found


def _behind_the_limit(
    plan: PlanFacts,
    lines: Lines,
    limit: int,
    positions: I64,
    expected: I64,
    columns: I64,
    rule: GroupLayout,
    found: Findings,
) -> I64:
    """A draft block that reaches behind the model's length is not written at all: its tokens are judged jointly."""
    row = lines.row_of_token()
    over = np.zeros(len(lines.slots), np.bool_)
    np.logical_or.at(over, row, positions >= limit)
    width = rule.row_width
    slots = plan.slot_mapping
    written = np.ones(len(row), np.bool_) if slots is None else slots[: len(row)] != -1
    beyond = np.flatnonzero(written & (columns >= (width if width is not None else 1 << 62)))
    if len(beyond):
        token = int(beyond[0])
        why = f"position {int(positions[token])} is at or behind the model's length {limit}"
        found.add(Code.RANGE, "slot_mapping", width, int(columns[token]), row=int(row[token]), token=token, why=why)
    return np.where(over[row], -1, expected)


def _exclusive(
    lines: Lines,
    mirror: Mirror,
    group: GroupBlocks,
    row: I64,
    blocks: I64,
    mine: NDArray[np.bool_],
    expected: I64,
    found: Findings,
) -> None:
    """Blocks that the step rightly writes must be the request's own to write, and no null block."""
    layout = group.layout
    seen: set[tuple[int, int]] = set()
    for token in np.flatnonzero(mine & (blocks >= 0) & (expected >= 0)).tolist():
        at, block = int(row[token]), int(blocks[token]) // layout.ratio
        if (at, block) in seen:
            continue
        seen.add((at, block))
        slot = int(lines.slots[at])
        where: dict[str, Any] = {"row": at, "token": token, "block": block}
        if layout.null_block is not None and block == layout.null_block:
            found.add(Code.NULL_USE, "scheduler", None, block, why="a write to the null block", **where)
        elif block < len(group.writer) and (
            group.writer[block] != mirror.life[slot] or (block in group.conflicts and group.refs[block] > 1)
        ):
            _shared(mirror, group, slot, block, "scheduler", found, where)


def _shared(
    mirror: Mirror, group: GroupBlocks, slot: int, block: int, what: str, found: Findings, where: dict[str, Any]
) -> None:
    """XWRITE, if another live request holds the block in a column that it has not given up."""
    live = [other for other in mirror.index.values() if other != slot]
    for other, _ in group.holders(block, live):
        name = mirror.names[other]
        found.add(Code.XWRITE, what, "a block of its own", block, why=f"held by {name!r}", **where)
        return
    if len(group.holders(block, [slot])) > 1:
        found.add(Code.XWRITE, what, "each block once", block, why="stands twice in the request's own row", **where)


def _judge_slot(
    plan: PlanFacts, lines: Lines, group: GroupBlocks, row: int, token: int, value: int, wanted: int, found: Findings
) -> None:
    """Where a wrong slot leads to."""
    layout = group.layout
    where: dict[str, Any] = {"row": row, "token": token}
    if wanted >= 1 << 31 and value == (wanted + (1 << 31)) % (1 << 32) - (1 << 31):
        why = f"{wanted} does not fit {layout.slot_dtype}"
        found.add(Code.INT32, "slot_mapping", wanted, value, why=why, **where)
        return
    if value == -1:
        return
    block = value // layout.kernel_size
    if not 0 <= block < layout.kernel_pool:
        why = f"the group's pool has {layout.kernel_pool} blocks"
        found.add(Code.RANGE, "slot_mapping", layout.kernel_pool, block, block=block, why=why, **where)
        return
    manager = block // layout.ratio
    if manager == layout.null_block:
        found.add(Code.NULL_USE, "slot_mapping", wanted, value, block=block, why="a write to the null block", **where)
        return
    mirror_row = group.kernel_row(int(lines.slots[row]))
    if block not in mirror_row:
        why = holder(group, block)
        found.add(Code.OWN, "slot_mapping", "a block of the request", block, block=block, why=why, **where)
        held = manager < len(group.refs) and group.refs[manager] > 0
        if held:
            why = f"held by another live request: {why}"
            found.add(Code.XWRITE, "slot_mapping", "a block of its own", block, block=block, why=why, **where)


def judge_state(plan: PlanFacts, lines: Lines, mirror: Mirror, found: Findings) -> None:
    """Recurrent states: column, block and accepted count."""
    group = mirror.groups[plan.group]
    layout = group.layout
    size = len(lines.slots)
    if layout.kind == "mamba":
        column = rules.state_column(layout, lines.start)
        if plan.state_columns is not None:
            actual = plan.state_columns[:size].astype(np.int64)
            found.compare(Code.STATE, "state_columns", column, actual, f"in blocks of {layout.block_size} tokens")
            width = layout.row_width
            for row in np.flatnonzero(actual != column).tolist():
                if width is not None and not 0 <= actual[row] < width:
                    why = "outside of the row"
                    found.add(Code.RANGE, "state_columns", width, int(actual[row]), row=row, why=why)
        if plan.state_blocks is not None:
            for row in range(size):
                line = group.kernel_row(int(lines.slots[row]))
                at = int(column[row]) * layout.ratio
                wanted = int(line[at]) if at < len(line) else -1
                block = int(plan.state_blocks[row])
                if block == wanted:
                    continue
                if layout.null_block is not None and block == layout.null_block:
                    found.add(Code.NULL_USE, "state_blocks", wanted, block, row=row, why="a live state", block=block)
                else:
                    found.add(Code.STATE, "state_blocks", wanted, block, row=row, why=holder(group, block), block=block)
    if plan.num_accepted is not None:
        kept = mirror.kept[lines.slots]
        actual = plan.num_accepted[:size].astype(np.int64)
        for row in np.flatnonzero((kept > 0) & (actual != kept)).tolist():
            why = "what the request's last step kept"
            found.add(Code.STATE, "num_accepted", int(kept[row]), int(actual[row]), row=row, why=why)
