"""Block table rows of one group, judged one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard import rules
from kv_plan_guard.clean import states_needed
from kv_plan_guard.violation import Code

if TYPE_CHECKING:
    from kv_plan_guard.blocks import GroupBlocks
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.findings import Findings
    from kv_plan_guard.layout import GroupLayout
    from kv_plan_guard.lines import Lines
    from kv_plan_guard.mirror import Mirror

I64: TypeAlias = NDArray[np.int64]


def judge_table(plan: PlanFacts, lines: Lines, mirror: Mirror, found: Findings, tail: bool) -> None:
    """ROW, ROW_SHORT, ROW_OVERFLOW, RANGE, NULL_USE, OWN, PAD, TAIL, and the common prefix."""
    group = mirror.groups[plan.group]
    layout = group.layout
    size = len(lines.slots)
    first, stop = _columns(plan, lines, mirror, layout)
    for row in range(size):
        _judge_row(plan, lines, group, row, int(first[row]), int(stop[row]), found, tail)
    table = plan.block_table
    if table is None:
        return
    padded = size if plan.num_reqs is None else plan.num_reqs
    if layout.null_block == 0 and len(table) >= padded:
        most = max(1, int(stop.max(initial=0)) * layout.ratio)
        rows, columns = np.nonzero(table[size:padded, :most])
        if len(rows):
            at, column = size + int(rows[0]), int(columns[0])
            why = f"padded row {at} is not a null row"
            found.add(Code.PAD, "block_table", 0, int(table[at, column]), why=why, column=column, count=len(rows))
    shared = plan.num_common_prefix_blocks
    if shared > 0 and size:
        part = table[:size, :shared]
        differs = np.argwhere(part != part[0])
        if part.shape[1] < shared:
            why = "the common prefix is longer than a row"
            found.add(Code.RANGE, "common_prefix", shared, part.shape[1], why=why)
        if len(differs):
            row, column = (int(v) for v in differs[0])
            why = f"{shared} columns are declared common, and this one differs from row 0"
            found.add(
                Code.ROW,
                "common_prefix",
                int(part[0, column]),
                int(part[row, column]),
                row=row,
                column=column,
                why=why,
                count=len(differs),
            )


def _columns(plan: PlanFacts, lines: Lines, mirror: Mirror, layout: GroupLayout) -> tuple[I64, I64]:
    if layout.kind == "cross":
        stop = -(-mirror.encoder[lines.slots] // layout.block_size)
        return np.zeros_like(stop), stop
    ends = lines.start + lines.counts
    if lines.empty:
        return np.zeros_like(ends), np.zeros_like(ends)
    limit = mirror.layout.max_model_len
    if plan.draft and limit is not None:
        ends = np.minimum(ends, limit)  # what lies behind is not written, see `_behind_the_limit`
    first, stop = rules.needed_columns(layout, lines.start, ends)
    return np.zeros_like(stop) if first is None else first, stop


def _judge_row(
    plan: PlanFacts, lines: Lines, group: GroupBlocks, row: int, first: int, stop: int, found: Findings, tail: bool
) -> None:
    layout = group.layout
    slot = int(lines.slots[row])
    expected = group.kernel_row(slot)
    ratio = layout.ratio
    have, need = int(group.count[slot]), stop
    where: dict[str, Any] = {"row": row, "block_unit": "kernel"}
    if layout.row_width is not None and have * ratio > layout.row_width:
        why = "more blocks than a row has columns"
        found.add(Code.ROW_OVERFLOW, "block_table", layout.row_width, have * ratio, why=why, row=row)
    if have < need:
        why = f"{have} blocks cover {have * layout.span} tokens, {need * layout.span} are needed"
        found.add(Code.ROW_SHORT, "block_table", need * ratio, have * ratio, why=why, row=row)
    used = slice(first * ratio, min(need, have) * ratio)
    needed = expected[used]
    outside = np.flatnonzero((needed < 0) | (needed >= layout.kernel_pool))
    if len(outside):
        at = int(outside[0])
        why = f"the group's pool has {layout.kernel_pool} blocks"
        value = int(needed[at])
        found.add(
            Code.RANGE, "scheduler", layout.kernel_pool, value, column=used.start + at, block=value, why=why, **where
        )
    nulls = needed[:: max(ratio, 1)] == (-1 if layout.null_block is None else layout.null_block * ratio)
    if layout.kind == "mamba" and len(nulls):
        kept = states_needed(len(nulls), int(lines.start[row]))
        nulls[[column for column in range(len(nulls)) if column not in kept]] = False
    if nulls.any():
        column = first + int(np.flatnonzero(nulls)[0])
        why = "the scheduler's own list has the null block in a needed column"
        found.add(Code.NULL_USE, "scheduler", None, layout.null_block, column=column * ratio, why=why, **where)
    table = plan.block_table
    if table is None:
        return
    if table.shape[1] < need * ratio:
        covers = table.shape[1] * layout.kernel_size * layout.shards
        why = f"{table.shape[1]} columns cover {covers} tokens, {need * layout.span} are needed"
        found.add(Code.ROW_SHORT, "block_table", need * ratio, int(table.shape[1]), why=why, row=row)
    actual = table[row, used.start : min(used.stop, table.shape[1])]
    differs = np.flatnonzero(actual != expected[used.start : used.start + len(actual)])
    if len(differs):
        at = int(differs[0])
        column, block = used.start + at, int(actual[at])
        wanted = int(expected[column])
        found.add(
            Code.ROW,
            "block_table",
            wanted,
            block,
            column=column,
            block=block,
            why=holder(group, block),
            count=len(differs),
            **where,
        )
        own = set(expected.tolist())
        for at in differs.tolist():
            _judge_block(found, group, layout, int(actual[at]), own, used.start + at, where)
    if tail:
        behind = table[row, need * ratio :]
        live = np.flatnonzero(behind)
        if len(live):
            column = need * ratio + int(live[0])
            why = "behind the used columns"
            found.add(
                Code.TAIL, "block_table", 0, int(behind[live[0]]), column=column, why=why, count=len(live), **where
            )


def _judge_block(
    found: Findings,
    group: GroupBlocks,
    layout: GroupLayout,
    block: int,
    own: set[int],
    column: int,
    where: dict[str, Any],
) -> None:
    """A block that stands in a needed column where another one belongs."""
    if not 0 <= block < layout.kernel_pool:
        why = f"the group's pool has {layout.kernel_pool} blocks"
        found.add(Code.RANGE, "block_table", layout.kernel_pool, block, column=column, block=block, why=why, **where)
    elif layout.null_block is not None and block // layout.ratio == layout.null_block:
        found.add(Code.NULL_USE, "block_table", None, block, column=column, block=block, why="", **where)
    elif block not in own:
        why = holder(group, block)
        found.add(
            Code.OWN, "block_table", "a block of the request", block, column=column, block=block, why=why, **where
        )


def holder(group: GroupBlocks, block: int) -> str:
    """Who was last given a kernel block."""
    manager = block // group.layout.ratio
    events = group.events(manager, 1)
    if not events:
        return "never given to a request"
    event = events[-1]
    verb = "given to" if event.what == "given" else "freed by"
    return f"{verb} {event.request!r} in step {event.step}"
