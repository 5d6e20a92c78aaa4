"""The vectorised lengths against a plain loop, and the promises that travel with them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mrv2_metadata import seq_lens
from mrv2_metadata.authority import Exactness


@st.composite
def batches(draw):
    max_rows = draw(st.integers(1, 24))
    rows = draw(st.permutations(range(max_rows)))[: draw(st.integers(1, max_rows))]
    computed = draw(st.lists(st.integers(0, 2**20), min_size=max_rows, max_size=max_rows))
    scheduled = draw(st.lists(st.integers(1, 4096), min_size=len(rows), max_size=len(rows)))
    return np.array(computed, np.int32), rows, np.array(scheduled, np.int32)


@given(batches())
def test_update_equals_a_loop(batch):
    computed, rows, scheduled = batch
    req_ids = [f"r{row}" for row in rows]
    index = seq_lens.rows_of(req_ids, {f"r{row}": row for row in rows}, len(rows))
    assert index.tolist() == list(rows)
    by_id = {f"r{row}": int(count) for row, count in zip(rows, scheduled, strict=True)}
    assert seq_lens.scheduled_of(req_ids, by_id, len(rows)).tolist() == scheduled.tolist()
    out = np.full(len(computed) + 2, -7, np.int32)
    view = seq_lens.update(computed[index], scheduled, out)
    assert view.tolist() == [int(computed[row]) + int(count) for row, count in zip(rows, scheduled, strict=True)]
    assert np.shares_memory(view, out)
    assert (out[len(rows) :] == -7).all()


@given(batches(), st.data())
def test_correct_writes_the_named_rows_only(batch, data):
    computed, rows, _ = batch
    device = computed - data.draw(st.integers(0, 3))
    before = computed.copy()
    changed = seq_lens.correct(computed, device, np.array(rows, np.intp))
    assert changed == sum(int(before[row] != device[row]) for row in rows)
    for row in range(len(computed)):
        assert computed[row] == (device[row] if row in rows else before[row])


@given(batches())
def test_the_live_span_is_the_smallest_range_that_holds_every_row(batch):
    computed, rows, _ = batch
    start, stop = seq_lens.live_span(rows, len(computed))
    assert start in rows
    assert stop - 1 in rows
    assert all(start <= row < stop for row in rows)


def test_no_request_is_an_empty_span():
    assert seq_lens.live_span([], 8) == (0, 0)


def test_a_row_outside_the_request_state_is_an_error():
    with pytest.raises(IndexError, match=r"rows 3\.\.8 are outside the request state of 8 rows"):
        seq_lens.live_span([3, 8], 8)
    with pytest.raises(KeyError, match="gone"):
        seq_lens.rows_of(["gone"], {}, 1)


def test_continuity_sees_one_rewound_row_and_an_unknown_past():
    computed, expected = np.array([5, 9, 4], np.int32), np.array([5, 9, 4], np.int32)
    assert seq_lens.continuous(computed, expected)
    computed[2] = 3
    assert not seq_lens.continuous(computed, expected)
    expected[2] = -1
    assert not seq_lens.continuous(computed, expected)


def test_each_length_carries_its_own_exactness():
    lengths = seq_lens.HostLengths(np.array([4, 8], np.int32), np.array([True, False]))
    assert [lengths.exactness(row) for row in (0, 1)] == [Exactness.EXACT, Exactness.UPPER_BOUND]
    assert not lengths.all_exact


@pytest.mark.parametrize(("count", "fine"), [(4, False), (5, True), (8, True), (9, False)])
def test_accepted_drafts_advance_by_one_at_least_and_by_what_was_scheduled_at_most(count, fine):
    # The last step stood at 4 and scheduled 4 tokens.
    floor, ceiling = np.array([4, 0], np.int32), np.array([8, 3], np.int32)
    assert seq_lens.advanced(np.array([count, 1], np.int32), floor, ceiling) is fine
