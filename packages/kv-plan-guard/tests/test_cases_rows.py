"""Public cases A1 to A12: preemption and row identity, asynchronous scheduling and speculation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from kv_make import CONFIG, CONNECTED, codes, connector, found, full, guard, new, plan, step
from kv_plan_guard import GroupLayout, OutputFacts, PlanFacts

G = full(16)


def test_a1_block_table_out_of_range_in_priority_scheduling() -> None:
    g = guard(G)
    assert g.observe(step(1, {"A": 32}, [new("A", [1, 2])])).ok
    faulty = g.observe(step(2, {"A": 1, "B": 4}, [new("B", [7])], [("A", 32, [3])], preempted={"A"}))
    assert codes(faulty) == {"CYCLE"}
    assert found(faulty, "CYCLE").request == "A"
    g.observe(step(3, {"A": 33}, cached=[("A", 0, [3])], resumed={"A"}))
    short = g.audit(plan(3, [("A", [3, 0, 0], 0, 33)], G, width=4))
    assert "ROW_SHORT" in codes(short)
    assert "16 tokens" in found(short, "ROW_SHORT").why


def test_a1_control_full_replacement() -> None:
    g = guard(G)
    g.observe(step(1, {"A": 32}, [new("A", [1, 2])]))
    g.observe(step(2, {"B": 4}, [new("B", [5])], preempted={"A"}))
    assert g.observe(step(3, {"A": 33}, cached=[("A", 0, [7, 8, 9])], resumed={"A"})).ok
    assert g.audit(plan(3, [("A", [7, 8, 9], 0, 33)], G)).ok


def _a2() -> tuple[object, PlanFacts]:
    g = guard(G)
    g.observe(step(1, {"A": 8}, [new("A", [4])]))
    g.observe(step(2, {"B": 8}, [new("B", [5])], preempted={"A"}))
    g.observe(step(3, {"A": 20, "B": 1}, cached=[("A", 0, [8, 9]), ("B", 8, None)], resumed={"A"}))
    return g, plan(3, [("A", [8, 9], 0, 20), ("B", [5], 8, 1)], G, width=4)


def test_a2_clear_stranded_kv_block_stash_on_preemption() -> None:
    g, _ = _a2()
    audit = g.audit(plan(3, [("A", [5, 8, 9], 0, 20), ("B", [5], 8, 1)], G, width=4))
    assert codes(audit) == {"ROW", "OWN", "SLOT", "XWRITE"}
    assert found(audit, "ROW").column == 0
    assert "'B'" in found(audit, "XWRITE").why


def test_a2_control_without_the_stash() -> None:
    g, right = _a2()
    assert g.audit(right).ok


def _a3(table: list[int]) -> set[str]:
    g = guard(G, **CONNECTED)
    g.observe(step(1, {"A": 48}, [new("A", [1, 2, 3])], connector=connector()))
    g.observe(step(2, {}, preempted={"A"}, connector=connector()))
    g.observe(step(3, {"A": 48}, cached=[("A", 0, [7, 8, 9])], resumed={"A"}, connector=connector()))
    facts = connector(tables={("A", 0): table}, token_counts={("A", 0): 64})
    last = g.observe(step(4, {"A": 16}, cached=[("A", 48, [10])], connector=facts))
    assert g.audit(plan(4, [("A", [7, 8, 9, 10], 48, 16)], G)).ok
    return codes(last)


def test_a3_mooncake_store_uses_the_schedulers_resumed_list() -> None:
    assert _a3([10]) == {"CONN"}


def test_a3_control_appended() -> None:
    assert _a3([7, 8, 9, 10]) == set()


def test_a4_async_scheduling_and_preemption_is_not_visible_in_addresses() -> None:
    """Only input ids are stale: the guard must be silent, and lists what it cannot see."""
    g = guard(G, steps_in_flight=1)
    g.observe(step(1, {"A": 20}, [new("A", [1, 2])]))
    g.observe(step(2, {"A": 1, "B": 4}, [new("B", [3])], [("A", 20, None)]))
    g.observe(step(3, {"B": 1}, cached=[("B", 4, None)]))
    assert g.observe(step(4, {"A": 1, "B": 1}, cached=[("A", 21, None), ("B", 5, None)])).ok
    assert g.audit(plan(4, [("A", [1, 2], 21, 1), ("B", [3], 5, 1)], G)).ok
    assert "input token ids" in g.finish()


def _a5() -> object:
    g = guard(G, config=replace(CONFIG, tail=True))
    g.observe(step(1, {"A": 64, "B": 40}, [new("A", [1, 2, 3, 4]), new("B", [5, 6, 7])]))
    return g


def test_a5_stale_row_tails() -> None:
    g = _a5()
    g.observe(step(2, {"B": 24}, cached=[("B", 40, None)]))
    audit = g.audit(plan(2, [("B", [5, 6, 7, 4], 40, 24)], G, width=4))
    assert {"ROW_SHORT", "XWRITE"} <= codes(audit)
    assert codes(audit) <= {"ROW_SHORT", "XWRITE", "OWN", "SLOT"}


def test_a5_control_tail_behind_the_width_that_is_read() -> None:
    g = _a5()
    g.observe(step(2, {"B": 8}, cached=[("B", 40, None)]))
    audit = g.audit(plan(2, [("B", [5, 6, 7, 4], 40, 8)], G, width=4))
    assert audit.ok
    assert [note.code.value for note in audit.notes] == ["TAIL"]


def _a6() -> object:
    """Context parallel: the replicated view of positions; step 1 has three drafts, one accepted."""
    g = guard(full(16, shards=2, shard_rank=0), num_speculative_tokens=3, steps_in_flight=1)
    g.observe(step(1, {"A": 100}, [new("A", [1, 2, 3, 4], 0, 101)]))
    g.observe(step(2, {"A": 4}, cached=[("A", 100, None)], spec_tokens={"A": [5, 6, 7]}))
    g.settle(OutputFacts(2, ["A"], [2], [2]))
    g.observe(step(3, {"A": 4}, cached=[("A", 104, None)], spec_tokens={"A": [-1, -1, -1]}))
    return g


def test_a6_rebuild_decode_state_after_token_correction() -> None:
    g = _a6()
    sharded = full(16, shards=2, shard_rank=0)
    audit = g.audit(plan(3, [("A", [1, 2, 3, 4], 104, 4)], sharded))
    assert codes(audit) == {"POS", "SLOT", "LEN"}
    assert (found(audit, "POS").expected, found(audit, "POS").actual) == (102, 104)


def test_a6_control_corrected() -> None:
    g = _a6()
    assert g.audit(plan(3, [("A", [1, 2, 3, 4], 102, 4)], full(16, shards=2, shard_rank=0))).ok


def _a7(known: int = 101) -> object:
    g = guard(full(16), num_speculative_tokens=3, steps_in_flight=1)
    g.observe(step(1, {"A": 100}, [new("A", list(range(1, 9)), 0, known)]))
    g.observe(step(2, {"A": 4}, cached=[("A", 100, None)], spec_tokens={"A": [5, 6, 7]} if known == 101 else {}))
    g.settle(OutputFacts(2, ["A"], [2] if known == 101 else [0], [2] if known == 101 else [0]))
    facts = {"A": [-1, -1, -1]} if known == 101 else {}
    g.observe(step(3, {"A": 4}, cached=[("A", 104, None)], spec_tokens=facts))
    return g


def test_a7_non_last_pipeline_ranks_mrv2_and_mtp() -> None:
    g = _a7()
    row = [("A", list(range(1, 9)), 102, 4)]
    rank0 = g.audit(plan(3, row, G, seq_lens_host=np.array([108], np.int32)))
    assert codes(rank0) == {"LEN_HOST_DEV"}
    assert (found(rank0, "LEN_HOST_DEV").expected, found(rank0, "LEN_HOST_DEV").actual) == (106, 108)
    assert g.audit(plan(3, row, G, seq_lens_host=np.array([106], np.int32))).ok


def test_a7_control_inside_the_prompt() -> None:
    g = _a7(known=300)
    assert g.audit(plan(3, [("A", list(range(1, 9)), 104, 4)], G, seq_lens_host=np.array([108], np.int32))).ok


def test_a7_an_upper_bound_is_lawful_where_it_is_declared() -> None:
    g = _a7()
    row = [("A", list(range(1, 9)), 102, 4)]
    bound = {"host_exact": False}
    assert g.audit(plan(3, row, G, seq_lens_host=np.array([108], np.int32), **bound)).ok
    assert codes(g.audit(plan(3, row, G, seq_lens_host=np.array([105], np.int32), **bound))) == {"LEN_HOST_DEV"}
    assert codes(g.audit(plan(3, row, G, seq_lens_host=np.array([120], np.int32), **bound))) == {"LEN_HOST_DEV"}


def _a8(accepted: list[int]) -> set[str]:
    mamba = GroupLayout("mamba", 64, 100, mamba_mode="align", slots="unused")
    g = guard(mamba, num_speculative_tokens=3)
    names = ["A", "B", "C"]
    g.observe(step(1, dict.fromkeys(names, 20), [new(n, [at + 1], 0, 20) for at, n in enumerate(names)]))
    g.settle(OutputFacts(1, names, [1, 1, 1]))
    spec = {key: [1, 2, 3] for key in names}
    g.observe(step(2, dict.fromkeys(names, 4), cached=[(n, 20, None) for n in names], spec_tokens=spec))
    g.settle(OutputFacts(2, names, [4, 2, 3], [0, 2, 1]))
    work = {"C": 1, "B": 1, "D": 20}
    g.observe(step(3, work, [new("D", [9], 0, 20)], [("C", 23, None), ("B", 22, None)], finished={"A"}))
    rows = [("C", [3], 23, 1), ("B", [2], 22, 1), ("D", [9], 0, 20)]
    return codes(g.audit(plan(3, rows, mamba, num_accepted=np.array(accepted, np.int32))))


def test_a8_accepted_counts_read_from_rows_that_moved() -> None:
    assert _a8([1, 2, 1]) == {"STATE"}


def test_a8_control() -> None:
    assert _a8([3, 2, 1]) == set()


def _a9(tokens: int) -> set[str]:
    g = guard(G, steps_in_flight=1)
    g.observe(step(1, {"A": 1}, [new("A", [1, 2], 15, 16)]))
    g.settle(OutputFacts(1, ["A"], [0]))  # the load failed: the step's token was thrown away
    return codes(g.observe(step(2, {"A": tokens}, cached=[("A", 0, None)])))


def test_a9_scheduler_accounting_left_stale() -> None:
    assert _a9(17) == {"LEN"}


def test_a9_control() -> None:
    assert _a9(16) == set()


def test_a9_computed_tokens_above_the_settled_ones() -> None:
    g = guard(full(16), num_speculative_tokens=3)
    g.observe(step(1, {"A": 16}, [new("A", [1, 2], 0, 16)]))
    g.settle(OutputFacts(1, ["A"], [1]))
    g.observe(step(2, {"A": 4}, cached=[("A", 16, None)], spec_tokens={"A": [1, 2, 3]}))
    g.settle(OutputFacts(2, ["A"], [1], [3]))
    assert codes(g.observe(step(3, {"A": 1}, cached=[("A", 20, None)]))) == {"LEN"}


def _a10(scheduled_before: bool) -> set[str]:
    g = guard(G, num_speculative_tokens=2, steps_in_flight=1)
    g.observe(step(1, {"A": 16, "B": 16}, [new("A", [1, 2], 0, 16), new("B", [3, 4], 0, 16)]))
    if scheduled_before:
        g.observe(step(2, {"A": 1, "B": 1}, cached=[("A", 16, None), ("B", 16, None)]))
    else:
        g.observe(step(2, {"B": 1}, cached=[("B", 16, None)]))
    return codes(
        g.observe(step(3, {"A": 3}, cached=[("A", 17 if scheduled_before else 16, None)], spec_tokens={"A": [-1, -1]}))
    )


def test_a10_placeholder_drafts_outlive_their_step() -> None:
    assert _a10(scheduled_before=False) == {"CYCLE"}


def test_a10_control_drafts_proposed_in_the_step_before() -> None:
    assert _a10(scheduled_before=True) == set()


def _a11(slots: list[int]) -> set[str]:
    group = full(16, row_width=4)
    g = guard(group, max_model_len=64, num_speculative_tokens=5)
    g.observe(step(1, {"A": 61}, [new("A", [1, 2, 3, 4], 0, 61)]))
    row = [("A", [1, 2, 3, 4, 0], 61, 5)]
    return codes(g.audit(plan(1, row, group, width=4, draft=True, slot_mapping=np.array(slots, np.int64))))


def test_a11_draft_block_past_max_model_length() -> None:
    assert "RANGE" in _a11([77, 78, 79, 16, 17])


def test_a11_clamping_only_the_tail_still_poisons_the_block() -> None:
    assert _a11([77, 78, 79, -1, -1]) == {"SLOT"}


def test_a11_control_all_slots_minus_one() -> None:
    assert _a11([-1] * 5) == set()


def _a12(capacity: int) -> set[str]:
    names = [f"r{at}" for at in range(12)]
    g = guard(G)
    g.observe(step(1, dict.fromkeys(names, 6), [new(n, [at + 1]) for at, n in enumerate(names)]))
    rows = [(n, [at + 1], 6, 4) for at, n in enumerate(names)]
    draft = plan(1, rows, G, draft=True, slot_capacity=capacity, num_slots=72 + 4 * 12)
    return codes(g.audit(draft))


def test_a12_draft_slot_capacity() -> None:
    assert _a12(80 + 2 * 12) == {"CAPACITY"}


def test_a12_control() -> None:
    assert _a12(80 + 4 * 12) == set()
