"""Public cases A26 to A36: blocks freed while in use, connectors, common prefix, cross attention, contents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from kv_make import CONNECTED, codes, connector, found, full, guard, new, plan, step
from kv_plan_guard import GroupLayout, Transfer

G = full(16)
ASYNC: dict[str, Any] = {**CONNECTED, "steps_in_flight": 1}


def _a26(block: int, settled: int) -> Any:
    window = GroupLayout("sliding", 4, 100, window=8)
    g = guard(window, **ASYNC)
    g.observe(step(1, {"A": 18}, [new("A", [10, 11, 12, 13, 14])], connector=connector()))
    g.observe(step(2, {"A": 1}, cached=[("A", 18, None)], connector=connector()))
    waits = connector(waiting={"B": [[block]]})
    return g.observe(step(3, {"A": 1}, cached=[("A", 19, None)], settled=settled, connector=waits))


def test_a26_window_blocks_freed_one_step_too_early() -> None:
    audit = _a26(12, settled=1)
    assert codes(audit) == {"LIFETIME"}
    assert (found(audit, "LIFETIME").block, found(audit, "LIFETIME").request) == (12, "B")


def test_a26_control() -> None:
    assert _a26(11, settled=1).ok
    assert _a26(12, settled=2).ok


def test_a26_second_form_the_boundary_moves_back_below_null() -> None:
    window = GroupLayout("sliding", 4, 100, window=8)
    g = guard(window, num_speculative_tokens=4)
    g.observe(step(1, {"A": 17}, [new("A", [0, 0, 0, 13, 14, 15], 16, None)]))
    audit = g.audit(plan(1, [("A", [0, 0, 0, 13, 14, 15], 16, 17 - 16 + 1)], window, num_tokens=None, num_reqs=None))
    assert "QSL" in codes(audit)  # the batch is another one: not judged further
    g.observe(step(2, {"A": 1}, cached=[("A", 16, None)]))
    audit = g.audit(plan(2, [("A", [0, 0, 0, 13, 14, 15], 16, 1)], window))
    assert codes(audit) == {"NULL_USE"}
    assert found(audit, "NULL_USE").column == 2


def _a27(transfer: bool) -> Any:
    g = guard(G, **ASYNC)
    g.observe(step(1, {"A": 20}, [new("A", [3, 4])], connector=connector()))
    g.observe(step(2, {"A": 1}, cached=[("A", 20, None)], connector=connector()))
    if transfer:
        waits = connector(waiting={"B": [[3, 4]]})
        return g.observe(step(3, {}, finished={"A"}, connector=waits))
    return g.observe(step(3, {"B": 20}, [new("B", [3, 4])], finished={"A"}, connector=connector()))


def test_a27_whole_request_freed_with_a_step_in_flight() -> None:
    assert codes(_a27(transfer=True)) == {"LIFETIME"}


def test_a27_control_the_same_stream_orders_the_reuse() -> None:
    assert _a27(transfer=False).ok


def _a28(iterations: int, settled: int, block: int = 3) -> Any:
    g = guard(full(4), tokens_per_write=iterations)
    g.observe(step(1, {"A": 8}, [new("A", [1, 2])]))
    g.observe(step(2, {"A": 1}, cached=[("A", 8, [3])], settled=1))
    return g.observe(step(3, {"B": 3}, [new("B", [block])], finished={"A"}, settled=settled))


def test_a28_multi_iteration_step_keeps_writing_after_the_end_token() -> None:
    assert codes(_a28(4, settled=1)) == {"LIFETIME"}


def test_a28_several_tokens_a_step_are_lawful_there() -> None:
    g = guard(full(4), tokens_per_write=4)
    assert g.observe(step(1, {"A": 8}, [new("A", [1, 2, 3], 0, 8)])).ok
    assert g.observe(step(2, {"A": 1}, cached=[("A", 8, None)])).ok
    assert g.observe(step(3, {"A": 1}, cached=[("A", 12, [4])])).ok
    assert codes(g.observe(step(4, {"A": 1}, cached=[("A", 18, [5])]))) == {"LEN"}


def test_a28_control() -> None:
    assert _a28(4, settled=2).ok
    assert _a28(4, settled=1, block=9).ok
    assert _a28(1, settled=1).ok  # one iteration per step: ordered by the stream


def _a29(done: bool) -> Any:
    g = guard(G, **CONNECTED)
    store = Transfer("J1", "A", 0, "store", [1, 2], first_block=0)
    g.observe(step(1, {"A": 32}, [new("A", [1, 2])], connector=connector(started=[store])))
    facts = connector(finished=frozenset({"J1"} if done else ()))
    return g.observe(step(2, {"B": 20}, [new("B", [2, 5])], preempted={"A"}, connector=facts))


def test_a29_store_job_reads_freed_blocks() -> None:
    audit = _a29(done=False)
    assert codes(audit) == {"LIFETIME"}
    assert found(audit, "LIFETIME").block == 2


def test_a29_control() -> None:
    assert _a29(done=True).ok


def test_a29_sibling_an_id_comes_back_as_a_new_life() -> None:
    g = guard(G)
    g.observe(step(1, {"A": 20}, [new("A", [1, 2])]))
    assert g.observe(step(2, {"A": 8}, [new("A", [2])], finished={"A"})).ok
    assert g.audit(plan(2, [("A", [2], 0, 8)], G)).ok


def _a30(table: list[int]) -> Any:
    mamba = GroupLayout("mamba", 128, 100, mamba_mode="align", slots="unused")
    g = guard(mamba, **CONNECTED)
    g.observe(step(1, {"A": 256}, [new("A", [0, 7])], connector=connector()))
    facts = connector(tables={("A", 0): table})
    return g.observe(step(2, {"A": 100}, cached=[("A", 256, [8])], connector=facts))


def test_a30_position_indexed_table_updated_from_position_zero() -> None:
    audit = _a30([8, 7])
    assert codes(audit) == {"CONN"}
    assert found(audit, "CONN").expected == [0, 7, 8]


def test_a30_control() -> None:
    assert _a30([0, 7, 8]).ok


def _a31(source: list[int], first: int, blocks: list[int]) -> set[str]:
    g = guard(full(64), **CONNECTED)
    row = list(range(1, 34))
    load = Transfer("L", "A", 0, "load", blocks, first_block=first, source_blocks=source)
    return codes(g.observe(step(1, {"A": 1}, [new("A", row, 2048)], connector=connector(started=[load]))))


def test_a31_tail_trim_by_count_instead_of_by_position() -> None:
    assert _a31([30, 31], 31, [32, 33]) == {"CONN"}


def test_a31_control() -> None:
    assert _a31([31], 31, [32]) == set()


def _a32(slots: list[int]) -> set[str]:
    g = guard(G, **CONNECTED)
    store = Transfer("S", "A", 0, "store", [4, 5, 6, 9], first_block=0, first_token=0, num_tokens=64, slots=slots)
    return codes(g.observe(step(1, {"A": 16}, [new("A", [4, 5, 6, 9], 48)], connector=connector(started=[store]))))


def test_a32_slot_list_covers_only_the_suffix() -> None:
    suffix = [9 * 16 + at for at in range(16)]
    assert _a32(suffix) == {"CONN"}
    assert _a32(suffix * 4) == {"CONN"}  # shifted


def test_a32_control() -> None:
    assert _a32([block * 16 + at for block in (4, 5, 6, 9) for at in range(16)]) == set()


def _a33(start: int) -> set[str]:
    g = guard(G, **CONNECTED)
    row = list(range(1, 928))
    load = Transfer(
        "L", "A", 0, "load", [927], first_block=926, first_token=start, num_tokens=14820 - start, computed_before=14816
    )
    return codes(g.observe(step(1, {"A": 4}, [new("A", row, 14820)], connector=connector(started=[load]))))


def test_a33_load_overwrites_tokens_that_are_already_computed() -> None:
    assert _a33(14592) == {"CONN"}


def test_a33_control() -> None:
    assert _a33(14816) == set()


def _a34(blocks: list[int]) -> set[str]:
    g = guard(G, **CONNECTED)
    store = Transfer("S", "A", 0, "store", blocks)
    return codes(g.observe(step(1, {"A": 20}, [new("A", [5, 11])], connector=connector(started=[store]))))


def test_a34_connector_assumes_contiguous_ids() -> None:
    assert _a34([5, 6]) == {"CONN"}


def test_a34_control() -> None:
    assert _a34([5, 11]) == set()


def _a35(rows: list[list[int]]) -> Any:
    g = guard(G)
    names = [f"r{at}" for at in range(len(rows))]
    g.observe(step(1, dict.fromkeys(names, 1), [new(n, row, 48) for n, row in zip(names, rows, strict=True)]))
    return g.audit(
        plan(1, [(n, row, 48, 1) for n, row in zip(names, rows, strict=True)], G, num_common_prefix_blocks=3)
    )


def test_a35_false_common_prefix() -> None:
    audit = _a35([[11 + at, 31 + at, 51 + at, 71 + at] for at in range(8)])
    assert codes(audit) == {"ROW"}
    assert found_all_in_common_prefix(audit)


def found_all_in_common_prefix(audit: Any) -> bool:
    return {violation.what for violation in audit.violations} == {"common_prefix"}


def _declared(rows: list[list[int]]) -> Any:
    """The same, as the scheduler's own decision has it."""
    names = [f"r{at}" for at in range(len(rows))]
    news = [new(n, row, 48) for n, row in zip(names, rows, strict=True)]
    return guard(G).observe(step(1, dict.fromkeys(names, 1), news, num_common_prefix_blocks=[3]))


def test_a35_in_the_decision_itself() -> None:
    audit = _declared([[11, 12, 13, 74], [11, 12, 33, 75]])
    assert codes(audit) == {"ROW"}
    assert (audit.violations[0].request, audit.violations[0].column) == ("r1", 2)
    assert _declared([[11, 12, 13, 74], [11, 12, 13, 75]]).ok


def test_a35_control() -> None:
    assert _a35([[11, 12, 13, 71 + at] for at in range(8)]).ok


CROSS = GroupLayout("cross", 16, 1000)


def _a36() -> Any:
    g = guard(full(16), CROSS)
    encoder = {"A": list(range(1, 45)), "B": list(range(101, 195))}
    first = [new("A", [[500], encoder["A"]], 0, 4, 700), new("B", [[501], encoder["B"]], 0, 4, 1500)]
    g.observe(step(1, {"A": 4, "B": 4}, first, encoder_tokens={"A": 700, "B": 1500}))
    rows = [("A", encoder["A"], 0, 700), ("B", encoder["B"], 0, 1500)]
    decoder = np.array([0, 4, 8], np.int32)
    right = plan(1, rows, CROSS, 1, query_start_loc=decoder, num_tokens=8)
    assert g.audit(replace(right, num_tokens=None)).ok
    g.observe(step(2, {"A": 1, "B": 1}, cached=[("A", 4, None), ("B", 4, None)]))
    return g, rows


def _decode(lengths: list[int], slots: list[int]) -> Any:
    g, rows = _a36()
    facts = plan(2, rows, CROSS, 1, query_start_loc=np.array([0, 1, 2], np.int32), num_tokens=None)
    return g.audit(
        replace(facts, positions=None, seq_lens=np.array(lengths, np.int32), slot_mapping=np.array(slots, np.int64))
    )


def test_a36_cross_attention_length_taken_from_configuration() -> None:
    audit = _decode([1500, 1500], [])
    assert codes(audit) == {"LEN"}
    assert (found(audit, "LEN").request, found(audit, "LEN").expected) == ("A", 700)
    assert codes(_decode([700, 1500], [16, 17])) == {"SLOT"}  # cross slots in a step that encodes nothing


def test_a36_control() -> None:
    assert _decode([700, 1500], []).ok
    assert _decode([700, 1500], [-1, -1]).ok


def test_contents_a_false_prefix_hit_is_not_visible() -> None:
    """A stale hash gives a hit: addresses agree with the scheduler, so the guard must be silent, and says so."""
    g = guard(G)
    g.observe(step(1, {"A": 32}, [new("A", [1, 2])]))
    assert g.observe(step(2, {"B": 16}, [new("B", [1, 9], 16)], finished={"A"})).ok
    assert g.audit(plan(2, [("B", [1, 9], 16, 16)], G)).ok
    assert "false prefix hit" in g.finish()
