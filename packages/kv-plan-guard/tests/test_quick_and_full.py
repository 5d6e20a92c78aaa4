"""The quick comparison against the full one: what it calls clean has no finding, whatever is wrong with a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_make import guard, new, plan, step
from kv_plan_guard import GroupLayout, Guard, PlanFacts
from kv_plan_guard.diagnose import diagnose

GROUPS = {
    "full": GroupLayout("full", 8, 200, row_width=20),
    "int32": GroupLayout("full", 8, 200, row_width=20, slot_dtype="int32"),
    "kernel": GroupLayout("full", 16, 200, kernel_block_size=4, row_width=80),
    "sliding": GroupLayout("sliding", 8, 200, window=20),
    "chunked": GroupLayout("chunked_local", 8, 200, window=24),
    "sharded": GroupLayout("full", 8, 200, shards=2, shard_rank=1, interleave=2),
    "ring": GroupLayout("ring", 8, 200),
    "disabled": GroupLayout("full", 8, 200, slots="disabled"),
}
Requests = list[tuple[int, int]]


def build(group: GroupLayout, requests: Requests, pads: tuple[int, int], seed: int) -> tuple[Guard, PlanFacts]:
    """A guard that took in (ncomp, n) requests with shuffled blocks, and the right plan of the step."""
    free = np.random.default_rng(seed).permutation(group.pool_blocks - 1) + 1
    g = guard(group)
    news, rows, used = [], [], 0
    for at, (ncomp, count) in enumerate(requests):
        need = 1 if group.kind == "ring" else -(-(ncomp + count) // group.span)
        blocks = [int(b) for b in free[used : used + need]]
        used += need
        news.append(new(f"r{at}", blocks, ncomp))
        kernel = [b * group.ratio + j for b in blocks for j in range(group.ratio)]
        rows.append((f"r{at}", kernel, ncomp, count))
    assert g.observe(step(1, {f"r{at}": count for at, (_, count) in enumerate(requests)}, news)).ok
    right = plan(1, rows, group, width=80 if group.ratio > 1 else 20, pad_rows=pads[0], pad_tokens=pads[1])
    if group.slots == "disabled":
        assert right.slot_mapping is not None
        right = replace(right, slot_mapping=np.full_like(right.slot_mapping, -1))
    return g, right


def full(g: Guard, facts: PlanFacts) -> set[str]:
    return {v.code.value for v in diagnose(facts, g.mirror, g.layout, tail=False)}


requests = st.lists(st.tuples(st.integers(0, 60), st.one_of(st.just(1), st.integers(1, 40))), min_size=1, max_size=6)
pads = st.tuples(st.integers(0, 2), st.integers(0, 5))
PARTS = ("block_table", "slot_mapping", "seq_lens", "query_start_loc", "positions")


@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(sorted(GROUPS)), requests=requests, pads=pads, seed=st.integers(0, 99))
def test_a_right_plan_is_clean_for_both(kind: str, requests: Requests, pads: tuple[int, int], seed: int) -> None:
    g, right = build(GROUPS[kind], requests, pads, seed)
    assert g.audit(right).ok
    assert g.stats.slow_audits == 0, "a right plan must not need the full comparison"
    assert full(g, right) == set()


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(GROUPS)),
    requests=requests,
    pads=pads,
    seed=st.integers(0, 99),
    part=st.sampled_from(PARTS),
    place=st.integers(0, 10_000),
    value=st.one_of(st.integers(-3, 300), st.sampled_from([2**31 - 1, -(2**31), 0, -1])),
)
def test_what_the_quick_comparison_calls_clean_has_no_finding(
    kind: str, requests: Requests, pads: tuple[int, int], seed: int, part: str, place: int, value: int
) -> None:
    g, right = build(GROUPS[kind], requests, pads, seed)
    array = getattr(right, part).copy()
    if array.size:
        array.flat[place % array.size] = value
    wrong = replace(right, **{part: array})
    found = full(g, wrong)
    assert {v.code.value for v in g.audit(wrong).violations} == found
    if not found:
        assert not g.latched


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(GROUPS)),
    requests=requests,
    pads=pads,
    part=st.sampled_from(PARTS),
    kept=st.integers(0, 60),
    wide=st.booleans(),
)
def test_parts_of_another_length_or_type_are_judged_alike(
    kind: str, requests: Requests, pads: tuple[int, int], part: str, kept: int, wide: bool
) -> None:
    g, right = build(GROUPS[kind], requests, pads, 1)
    array = getattr(right, part)[:kept]
    wrong = replace(right, **{part: array.astype(np.int64) if wide else array})
    found = full(g, wrong)
    assert {v.code.value for v in g.audit(wrong).violations} == found
    whole = replace(right, **{part: getattr(right, part).astype(np.int64)})
    assert g.audit(whole).ok


@settings(max_examples=60, deadline=None)
@given(requests=requests, seed=st.integers(0, 99), column=st.integers(0, 10_000), other=st.integers(0, 10_000))
def test_every_change_of_a_used_entry_is_found(requests: Requests, seed: int, column: int, other: int) -> None:
    """Whatever is changed in the entries that are used, something is found: no hole between the checks."""
    group = GROUPS["full"]
    g, right = build(group, requests, (0, 0), seed)
    assert right.block_table is not None
    table = right.block_table.copy()
    row = column % len(requests)
    used = -(-sum(requests[row]) // group.block_size)
    at = other % used
    table[row, at] = (table[row, at] + 1 + other % 50) % 200
    assert "ROW" in full(g, replace(right, block_table=table))
    assert right.slot_mapping is not None
    slots = right.slot_mapping.copy()
    token = other % len(slots)
    slots[token] += 1 + column % 7
    assert "SLOT" in full(g, replace(right, slot_mapping=slots))
    assert "ROW" in {v.code.value for v in g.audit(replace(right, block_table=table)).violations}
    assert "SLOT" in {v.code.value for v in g.audit(replace(right, slot_mapping=slots)).violations}


def _parts(facts: PlanFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_an_absent_part_is_not_judged(part: str) -> None:
    g, right = build(GROUPS["full"], [(3, 10), (20, 1)], (1, 2), 0)
    assert g.audit(replace(right, **{part: None})).ok
    assert _parts(right)[part] is not None


def test_int32_wrap_is_a_fault_of_its_own() -> None:
    group = GroupLayout("full", 1024, 3_000_000, slot_dtype="int32")
    g = guard(group)
    block = (1 << 31) // 1024 + 5
    g.observe(step(1, {"A": 3}, [new("A", [block])]))
    wide = plan(1, [("A", [block], 0, 3)], replace(group, slot_dtype="int64"))
    assert wide.slot_mapping is not None
    with np.errstate(over="ignore"):
        wrapped = replace(wide, slot_mapping=wide.slot_mapping.astype(np.int32))
    assert {v.code.value for v in g.audit(wrapped).violations} == {"SLOT", "INT32"}
    assert g.audit(wide).ok


def test_a_shared_prefix_may_be_read_and_not_written() -> None:
    group = GROUPS["full"]
    g = guard(group)
    assert g.observe(step(1, {"A": 20, "B": 4}, [new("A", [1, 2, 3]), new("B", [1, 2, 9], 16)])).ok
    rows = [("A", [1, 2, 3], 0, 20), ("B", [1, 2, 9], 16, 4)]
    assert g.audit(plan(1, rows, group)).ok  # the same step fills what the other reads: ordered by the stream
    g = guard(group)
    g.observe(step(1, {"A": 20, "C": 4}, [new("A", [1, 2, 3]), new("C", [3], 0)]))
    rows = [("A", [1, 2, 3], 0, 20), ("C", [3], 0, 4)]
    assert "XWRITE" in {v.code.value for v in g.audit(plan(1, rows, group)).violations}


def test_tails_of_longer_rows_do_not_matter() -> None:
    g, right = build(GROUPS["full"], [(0, 5), (0, 40)], (0, 0), 3)
    assert right.block_table is not None
    table = right.block_table.copy()
    table[0, 1:] = 77
    assert g.audit(replace(right, block_table=table)).ok
    assert g.stats.slow_audits == 0


def test_states_are_compared_quickly_and_in_full() -> None:
    group = GroupLayout("mamba", 64, 100, row_width=18, mamba_mode="align", slots="unused")
    g = guard(group)
    blocks = [0, 0, 0, 7, 8]
    g.observe(step(1, {"A": 10}, [new("A", blocks, 256)]))
    right = plan(1, [("A", blocks, 256, 10)], group, width=18)
    right = replace(right, state_columns=np.array([3]), state_blocks=np.array([7, 0], np.int32))
    assert g.audit(right).ok
    assert g.stats.slow_audits == 0
    assert {v.code.value for v in g.audit(replace(right, state_blocks=np.array([8]))).violations} == {"STATE"}
    assert {v.code.value for v in g.audit(replace(right, state_blocks=np.array([0]))).violations} == {"NULL_USE"}
    assert {v.code.value for v in g.audit(replace(right, state_columns=np.array([4]))).violations} == {"STATE"}
