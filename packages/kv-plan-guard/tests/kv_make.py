"""Builders that the tests share: short ways to say a step, a plan and what was found.

A plan is built token by token in plain Python, by none of the guard's own rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from kv_plan_guard import (
    Audit,
    CachedRequests,
    Code,
    Config,
    ConnectorFacts,
    GroupLayout,
    Guard,
    Layout,
    NewRequest,
    PlanFacts,
    StepFacts,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

CONFIG = Config(enabled=True, action="log", replay_files=0)


def guard(*groups: GroupLayout, config: Config = CONFIG, without: Iterable[Code] = (), **layout: Any) -> Guard:
    return Guard(config, Layout(groups, **layout), without=frozenset(without))


def full(block_size: int = 16, pool: int = 1000, **rest: Any) -> GroupLayout:
    return GroupLayout("full", block_size, pool, **rest)


def new(name: str, blocks: Sequence[Any], ncomp: int = 0, known: int | None = None, encoder: int = 0) -> NewRequest:
    """`blocks`: one list of ids (one group) or a list of lists (several)."""
    rows = blocks if blocks and isinstance(blocks[0], list) else [list(blocks)]
    return NewRequest(name, rows, ncomp, known, encoder)


def step(
    number: int,
    scheduled: Mapping[str, int],
    new: Sequence[NewRequest] = (),
    cached: Sequence[tuple[str, int, Any]] = (),
    resumed: Iterable[str] = (),
    **rest: Any,
) -> StepFacts:
    """`cached`: (request, ncomp, new ids or None)."""
    ids = [None if b is None else (b if b and isinstance(b[0], list) else [list(b)]) for _, _, b in cached]
    requests = CachedRequests([c[0] for c in cached], ids, [c[1] for c in cached], frozenset(resumed))
    for key in ("finished", "preempted"):
        if key in rest:
            rest[key] = frozenset(rest[key])
    return StepFacts(number, dict(scheduled), new, requests, **rest)


def plan(
    number: int,
    rows: Sequence[tuple[str, list[int], int, int]],
    group: GroupLayout,
    index: int = 0,
    width: int | None = None,
    pad_rows: int = 0,
    pad_tokens: int = 0,
    **override: Any,
) -> PlanFacts:
    """`rows`: (request, kernel blocks, ncomp, n) in batch order. `override` replaces single parts."""
    size = len(rows)
    columns = width or max([len(blocks) for _, blocks, _, _ in rows] + [1])
    table = np.zeros((size + pad_rows, columns), np.int32)
    slots, positions, offsets, lengths = [], [], [0], []
    kernel = group.kernel_size
    for at, (_, blocks, ncomp, count) in enumerate(rows):
        table[at, : len(blocks)] = blocks[:columns]
        for position in range(ncomp, ncomp + count):
            positions.append(position)
            slots.append(_slot(group, blocks, position, kernel))
        offsets.append(offsets[-1] + count)
        lengths.append(ncomp + count)
    total = len(slots)
    parts: dict[str, Any] = {
        "query_start_loc": np.array(offsets + [total] * pad_rows, np.int32),
        "block_table": table,
        "slot_mapping": np.array(slots + [-1] * pad_tokens, group.slot_dtype),
        "seq_lens": np.array(lengths + [0] * pad_rows, np.int32),
        "positions": np.array(positions + [0] * pad_tokens, np.int64),
        "num_tokens": total + pad_tokens,
        "num_reqs": size + pad_rows,
    }
    return PlanFacts(number, index, [row[0] for row in rows], **(parts | override))


def _slot(group: GroupLayout, blocks: list[int], position: int, kernel: int) -> int:
    if group.kind == "ring":
        return blocks[0] * kernel + position % kernel
    if group.shards > 1:
        mine = [p for p in range(position + 1) if p // group.interleave % group.shards == group.shard_rank]
        if not mine or mine[-1] != position:
            return -1
        position = len(mine) - 1
    return blocks[position // kernel] * kernel + position % kernel


def codes(*audits: Audit) -> set[str]:
    """Codes of everything found."""
    return {violation.code.value for audit in audits for violation in audit.violations}


def found(audit: Audit, code: str) -> Any:
    """The one violation of this code."""
    (violation,) = [v for v in audit.violations if v.code.value == code]
    return violation


def connector(**facts: Any) -> ConnectorFacts:
    return ConnectorFacts("TestConnector", **facts)


CONNECTED: dict[str, Any] = {"connector": "TestConnector", "connector_checks": ("LIFETIME", "CONN")}
