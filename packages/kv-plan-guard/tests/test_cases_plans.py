"""Public cases A13 to A25: graph padding, context parallelism, hybrid groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from kv_make import CONNECTED, codes, connector, found, full, guard, new, plan, step
from kv_plan_guard import GroupLayout, Transfer

G = full(16)


def _a13(pad_length: int) -> set[str]:
    """Ranks of one sequence-parallel group of 8, 10 tokens each: rank 6 owns [60, 70), a padded place is [68, 72)."""
    g = guard(G)
    g.observe(step(1, {"A": 8}, [new("A", [1])]))
    local = np.array([8, pad_length], np.int32)
    return codes(g.audit(plan(1, [("A", [1], 0, 8)], G, pad_rows=1, pad_tokens=4, local_seq_lens=local)))


def test_a13_negative_local_length_on_padded_rows() -> None:
    assert _a13(0 - 2) == {"PAD"}


def test_a13_any_length_on_a_padded_row() -> None:
    assert _a13(2) == {"PAD"}


def test_a13_control() -> None:
    assert _a13(0) == set()


def _a14(table_rows: int, places: int) -> set[str]:
    g = guard(G)
    names = [f"r{at}" for at in range(5)]
    g.observe(step(1, dict.fromkeys(names, 10), [new(n, [at + 1]) for at, n in enumerate(names)]))
    rows = [(n, [at + 1], 10, 6) for at, n in enumerate(names)]
    right = plan(1, rows, G, pad_rows=1, pad_tokens=6, draft=True)
    assert right.block_table is not None
    assert right.query_start_loc is not None
    cut = replace(
        right, block_table=right.block_table[:table_rows], query_start_loc=right.query_start_loc[: places + 1]
    )
    return codes(g.audit(cut))


def test_a14_row_count_of_the_block_table_in_the_draft_plan() -> None:
    assert _a14(table_rows=6, places=5) == {"ROWMAP"}


def test_a14_control_padded_in_both() -> None:
    assert _a14(table_rows=6, places=6) == set()


def _a15(lengths: list[int]) -> set[str]:
    g = guard(G)
    g.observe(step(1, {"A": 50, "B": 60}, [new("A", [1, 2, 3, 4]), new("B", [5, 6, 7, 8])]))
    rows = [("A", [1, 2, 3, 4], 0, 50), ("B", [5, 6, 7, 8], 0, 60)]
    return codes(g.audit(plan(1, rows, G, pad_rows=6, seq_lens=np.array(lengths, np.int32))))


def test_a15_draft_lengths_at_graph_size() -> None:
    assert _a15([50, 60, 91, 92, 93, 94, 95, 96]) == {"PAD"}
    assert _a15([50, 60]) == {"CAPACITY"}


def test_a15_control() -> None:
    assert _a15([50, 60, 0, 0, 0, 0, 0, 0]) == set()


def _a16(tokens: int) -> set[str]:
    g = guard(full(128))
    g.observe(step(1, {"A": 100, "B": 51}, [new("A", [1]), new("B", [2])]))
    return codes(g.audit(plan(1, [("A", [1], 0, 100), ("B", [2], 0, 51)], full(128), num_tokens=tokens)))


def test_a16_real_batch_cut_to_the_graph_size() -> None:
    assert _a16(76) == {"QSL"}


def test_a16_control() -> None:
    assert _a16(151) == set()


def test_a17_padding_slot_minus_one_used_as_an_index_is_not_visible() -> None:
    """Slot -1 is the right plan; what a consumer makes of it no plan shows."""
    g = guard(G)
    g.observe(step(1, {"A": 8}, [new("A", [1])]))
    assert g.audit(plan(1, [("A", [1], 0, 8)], G, pad_rows=1, pad_tokens=8)).ok
    assert "using slot -1 as an index" in g.finish()


def _a18(shards: int, slots: list[int]) -> set[str]:
    group = full(16, shards=shards)
    g = guard(group)
    g.observe(step(1, {"A": 8}, [new("A", [5])]))
    return codes(g.audit(plan(1, [("A", [5], 0, 8)], group, slot_mapping=np.array(slots, np.int64))))


def test_a18_rank_local_transform_applied_to_every_group() -> None:
    assert _a18(1, [80, -1, 81, -1, 82, -1, 83, -1]) == {"SLOT"}


def test_a18_control() -> None:
    assert _a18(1, list(range(80, 88))) == set()
    assert _a18(2, [80, -1, 81, -1, 82, -1, 83, -1]) == set()


def _a19(blocks: list[int]) -> set[str]:
    indexer = full(128, pool=100, kernel_block_size=16, kernel_pool_blocks=64)
    g = guard(indexer)
    g.observe(step(1, {"A": 200}, [new("A", blocks)]))
    kernel = [b * 8 + j for b in blocks for j in range(8)]
    return codes(g.audit(plan(1, [("A", kernel, 0, 200)], indexer)))


def test_a19_replicated_view_ids_beyond_the_pool() -> None:
    assert _a19([7, 9]) == {"RANGE"}


def test_a19_control() -> None:
    assert _a19([3, 7]) == set()


def _a20(rank: int, rows: list[int]) -> Any:
    group = full(16, shards=2, shard_rank=rank)
    g = guard(group, **CONNECTED)
    transfer = Transfer("j", "A", 0, "store", [1, 2], logical_rows=[10, 11, 41], local_rows=rows, pool_rows=32)
    return g.observe(step(1, {"A": 8}, [new("A", [1, 2])], connector=connector(started=[transfer])))


def test_a20_widened_logical_index_used_on_a_rank_local_buffer() -> None:
    for rank in (0, 1):
        audit = _a20(rank, [10, 11, 41])
        assert codes(audit) == {"RANGE", "CONN"}
        assert found(audit, "RANGE").actual == 41
    assert codes(_a20(0, [10])) == {"CONN"}  # in range, and wrong


def test_a20_control() -> None:
    assert _a20(0, [5]).ok
    assert _a20(1, [5, 20]).ok


def _a21(hit: int, column: int) -> set[str]:
    mamba = GroupLayout("mamba", 64, 100, row_width=18, mamba_mode="align", slots="unused")
    g = guard(mamba)
    columns = hit // 64
    blocks = [0] * (columns - 1) + [7, 8]
    g.observe(step(1, {"A": 10}, [new("A", blocks, hit)]))
    row = [("A", blocks, hit, 10)]
    return codes(g.audit(plan(1, row, mamba, width=18, state_columns=np.array([column], np.int32))))


def test_a21_state_column_seeded_with_the_wrong_block_size() -> None:
    assert _a21(256, (256 - 1) // 8) == {"STATE", "RANGE"}
    assert _a21(64, (64 - 1) // 8) == {"STATE"}


def test_a21_control() -> None:
    assert _a21(256, 3) == set()
    assert _a21(64, 0) == set()


def _a22(width: int) -> set[str]:
    mamba = GroupLayout("mamba", 128, 1000, row_width=width, mamba_mode="all", state_blocks=3, slots="unused")
    g = guard(mamba)
    blocks = list(range(1, 12))
    g.observe(step(1, {"A": 1000}, [new("A", blocks)]))
    return codes(g.audit(plan(1, [("A", blocks, 0, 1000)], mamba, width=width)))


def test_a22_row_too_narrow_for_speculative_state_blocks() -> None:
    assert _a22(8) == {"ROW_OVERFLOW"}


def test_a22_control() -> None:
    assert _a22(11) == set()


def _a23(slots: list[int]) -> Any:
    ring = GroupLayout("ring", 4, 100, row_width=1)
    g = guard(ring)
    g.observe(step(1, {"A": 16}, [new("A", [7])]))
    return g.audit(plan(1, [("A", [7], 0, 16)], ring, width=1, slot_mapping=np.array(slots, np.int64)))


def test_a23_generic_slot_rule_run_on_a_ring_group() -> None:
    generic = [7 * 4 + at for at in range(4)] + [900 + at for at in range(12)]
    audit = _a23(generic)
    assert {"SLOT", "RANGE"} <= codes(audit)
    assert found(audit, "SLOT").token == 4
    guarded = _a23([28, 29, 30, 31] + [-1] * 12)  # the silent form
    assert codes(guarded) == {"SLOT"}


def test_a23_control() -> None:
    assert _a23([28, 29, 30, 31] * 4).ok


def _a24(row: list[int]) -> set[str]:
    group = full(640, kernel_block_size=128)
    g = guard(group)
    g.observe(step(1, {"A": 1280}, [new("A", [2, 3])]))
    wide = list(range(10, 20))
    right = plan(1, [("A", wide, 0, 1280)], group)
    table = np.array([row], np.int32)
    return codes(g.audit(replace(right, block_table=table)))


def test_a24_manager_blocks_given_where_pages_are_expected() -> None:
    assert {"ROW_SHORT", "ROW"} <= _a24([2, 3])


def test_a24_control() -> None:
    assert _a24(list(range(10, 20))) == set()


def _a25(slot: int) -> set[str]:
    group = GroupLayout("sliding", 4, 100, window=4)
    g = guard(group)
    g.observe(step(1, {"A": 1}, [new("A", [0, 0, 9], 11)]))
    right = plan(1, [("A", [0, 0, 9], 11, 1)], group)
    return codes(g.audit(replace(right, slot_mapping=np.array([slot]))))


def test_a25_two_groups_overlap_in_memory() -> None:
    """The write into the null block is seen; that two groups overlap in memory no plan shows."""
    assert _a25(3) == {"SLOT", "NULL_USE"}


def test_a25_control_and_what_is_not_visible() -> None:
    assert _a25(39) == set()
    assert "overlap in memory" in guard(G).finish()
