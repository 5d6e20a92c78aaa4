"""One runner's steps on a fake runner: who is the authority, what is corrected when, and what is remembered."""

from types import SimpleNamespace as Holder

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_fakes import State, admit, output, runner, vllm_config
from mrv2_metadata.authority import Source

pytestmark = pytest.mark.usefixtures("ascend_config")
EAGLE = vllm_config(speculative_config=Holder(method="eagle", num_speculative_tokens=3))


@pytest.mark.parametrize("shared", [True, False], ids=["one memory", "two copies"])
def test_ordinary_decode_is_the_schedulers_and_waits_for_nothing(shared):
    made = runner(shared)
    state = State(made)
    new = [admit(made, "a", 3, 0), admit(made, "b", 5, 7)]
    assert state.step_of(made, output({"a": 10, "b": 1}, new)) == [10, 8]
    for step in range(1, 4):
        made.req_states.num_computed_tokens_np[[3, 5]] = 9 + step, 7 + step
        assert state.step_of(made, output({"b": 1, "a": 1})) == [8 + step, 10 + step]
        assert made.req_states.num_computed_tokens_cpu.values[[3, 5]].tolist() == [9 + step, 7 + step]
    counts = state.stats.counts
    assert (counts["scheduler_steps"], counts["device_steps"], counts["length_copies"]) == (4, 0, 0)
    assert made.num_computed_tokens_event.waits == 0


def test_the_index_that_the_step_holds_is_used():
    import numpy as np

    made = runner()
    state = State(made)
    new = [admit(made, "a", 3, 4), admit(made, "b", 5, 7)]
    state.batch_req_state = Holder(idx_mapping_np=np.array([5, 3]), num_scheduled_tokens=np.array([2, 1], np.int32))
    made.req_states.req_id_to_index = {"a": 3, "b": 5}
    state.update_lengths(made, output({"a": 1, "b": 2}, new), ["b", "a"])
    assert made.input_buffers.seq_lens_np[:2].tolist() == [9, 5]


@pytest.mark.parametrize("shared", [True, False], ids=["one memory", "two copies"])
def test_a_rewound_count_is_corrected_at_once(shared):
    made = runner(shared)
    state = State(made)
    new = [admit(made, "a", 3, 0)]
    state.step_of(made, output({"a": 10}, new))
    made.req_states.num_computed_tokens_np[3] = 4  # a failed load: the scheduler goes back, the device does not
    state.device_counts[3] = 10
    assert state.step_of(made, output({"a": 1})) == [11]
    assert state.batch.exact
    assert state.stats.reasons == {"counts_rewound": 1}
    assert made.num_computed_tokens_event.waits == 1


def test_a_corrected_step_is_an_upper_bound_until_its_one_wait():
    made = runner(vllm_config=EAGLE)
    state = State(made)
    new = [admit(made, "a", 3, 0), admit(made, "b", 5, 0)]
    state.step_of(made, output({"a": 10, "b": 10}, new))
    assert state.batch.exact, "new requests alone brought their own counts"
    made.req_states.num_computed_tokens_np[[3, 5]] = 14, 10
    state.device_counts[[3, 5]] = 12, 10  # two of a's drafts were rejected
    state.after_postprocess(made)
    assert state.step_of(made, output({"a": 4, "b": 4}, scheduled_spec_decode_tokens={"a": [1, 2, 3]})) == [18, 14]
    assert state.host_lengths(made).exact.tolist() == [False, False]
    assert made.num_computed_tokens_event.waits == 0
    state.finish_correction(made, None)
    assert made.input_buffers.seq_lens_np[:2].tolist() == [16, 14]
    assert state.host_lengths(made).all_exact
    state.finish_correction(made, None)
    assert made.num_computed_tokens_event.waits == 1
    assert state.stats.counts["corrected_rows"] == 1


@pytest.mark.parametrize(
    ("change", "source"),
    [
        ({}, Source.SCHEDULER),
        ({"has_structured_output_requests": True}, Source.SCHEDULER),
        ({"scheduled_spec_decode_tokens": {"a": [1]}}, Source.DEVICE),
        ({"scheduled_spec_decode_tokens": None}, Source.DEVICE),
        ({"scheduled_spec_decode_tokens": []}, Source.DEVICE),
        ({"has_structured_output_requests": None}, Source.DEVICE),
        ({"has_structured_output_requests": 0}, Source.DEVICE),
    ],
)
def test_each_kind_of_step_is_decided_by_itself(change, source):
    state = State(runner())
    # Remembered decisions must not answer for each other, whatever came before.
    for seen in ({}, {"scheduled_spec_decode_tokens": {"b": [2, 3]}}, {"has_structured_output_requests": True}):
        state.decide_step(output({}, **seen), True)
    assert state.decide_step(output({}, **change), True).source is source
    assert state.decide_step(output({}, **change), False).source is Source.DEVICE


@pytest.mark.parametrize("missing", ["scheduled_spec_decode_tokens", "has_structured_output_requests"])
def test_an_attribute_that_is_gone_is_the_devices(missing):
    step = output({})
    delattr(step, missing)
    assert State(runner()).decide_step(step, True).source is Source.DEVICE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_state": Holder(num_new_sampled_tokens_per_step=0)}, "tokens_per_step"),
        ({"model_state": Holder()}, "tokens_per_step"),
        ({"adaptive_verification": object()}, "adaptive_verification"),
        ({"attn_groups": [[Holder(get_metadata_builder=lambda number: object())]]}, "builtins.object was not run"),
    ],
)
def test_a_runner_with_a_fact_of_its_own_is_declined(change, reason):
    assert reason in State(runner(**change)).declined
    assert State(runner()).declined is None


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_course_of_steps_gives_the_lengths_of_a_plain_loop(data):
    made = runner(data.draw(st.booleans()))
    state = State(made)
    truth: dict[str, int] = {}
    rows = {}
    for number in range(data.draw(st.integers(1, 12))):
        new = []
        if len(rows) < 6 and data.draw(st.booleans()):
            name, row = f"r{number}", data.draw(st.sampled_from([r for r in range(16) if r not in rows.values()]))
            rows[name], truth[name] = row, data.draw(st.integers(0, 50))
            new = [admit(made, name, row, truth[name])]
        if rows and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(rows)))
            if gone not in {request.req_id for request in new}:
                del made.req_states.req_id_to_index[gone], made.req_states.index_to_req_id[rows.pop(gone)]
        batch = data.draw(st.permutations(sorted(rows)))
        chosen = [n for n in batch if n in {r.req_id for r in new} or data.draw(st.booleans())]
        if not chosen:
            continue
        tokens = {name: data.draw(st.integers(1, 9)) for name in chosen}
        for name in chosen:
            made.req_states.num_computed_tokens_np[rows[name]] = truth[name]
        assert state.step_of(made, output(tokens, new)) == [truth[name] + tokens[name] for name in chosen]
        for name in chosen:
            truth[name] += tokens[name]
    assert state.stats.counts["device_steps"] == 0
