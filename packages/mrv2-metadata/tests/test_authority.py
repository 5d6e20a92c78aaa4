"""The truth table: what forces the device, what does not, and that nothing unknown ever counts as harmless."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mrv2_metadata.authority import (
    RULES,
    UNKNOWN,
    Action,
    Exactness,
    RunnerFacts,
    Source,
    StepFacts,
    decide,
    decide_runner,
    explain,
)

DENSE = RunnerFacts(
    speculative_method=None,
    num_speculative_steps=0,
    async_scheduling=True,
    tokens_per_step=1,
    diffusion=False,
    pp_size=1,
    pp_rank=0,
    dcp_size=1,
    pcp_size=1,
    dynamic_eplb=False,
    pooling=False,
    kv_load_can_fail=False,
    adaptive_verification=False,
)
QUIET = StepFacts(num_draft_tokens=0, structured_output=False, counts_continuous=True)
OPTED_IN = replace(
    DENSE,
    speculative_method="eagle",
    num_speculative_steps=3,
    async_scheduling=False,
    speculative_sync=frozenset({"eagle"}),
)

# rule -> (runner and step for which the scheduler is the authority, the one fact flipped)
FLIPS = {
    "pp_speculation_sync": (OPTED_IN, QUIET, {"pp_size": 2}),
    "pp_speculation": (OPTED_IN, QUIET, {"pp_size": 2}),
    "speculation": (DENSE, QUIET, {"speculative_method": "eagle"}),
    "draft_tokens": (DENSE, QUIET, {"num_draft_tokens": 1}),
    "structured_speculation": (OPTED_IN, QUIET, {"structured_output": True}),
    "counts_rewound": (DENSE, QUIET, {"counts_continuous": False}),
    "kv_load_can_fail": (DENSE, QUIET, {"kv_load_can_fail": True}),
    "tokens_per_step": (DENSE, QUIET, {"tokens_per_step": 4}),
    "diffusion": (DENSE, QUIET, {"diffusion": True}),
    "dcp": (DENSE, QUIET, {"dcp_size": 2}),
    "pcp": (DENSE, QUIET, {"pcp_size": 2}),
    "dynamic_eplb": (DENSE, QUIET, {"dynamic_eplb": True}),
    "pooling": (DENSE, QUIET, {"pooling": True}),
    "adaptive_verification": (DENSE, QUIET, {"adaptive_verification": True}),
    "scheduling_unknown": (DENSE, QUIET, {"async_scheduling": UNKNOWN}),
    "rank_unknown": (DENSE, QUIET, {"pp_rank": 1}),
}


def flip(runner: RunnerFacts, step: StepFacts, change: dict) -> tuple[RunnerFacts, StepFacts]:
    names = {f.name for f in fields(RunnerFacts)}
    return (
        replace(runner, **{k: v for k, v in change.items() if k in names}),
        replace(step, **{k: v for k, v in change.items() if k not in names}),
    )


def test_every_rule_has_a_flip():
    assert set(FLIPS) == {rule.name for rule in RULES}


@pytest.mark.parametrize("name", FLIPS)
def test_one_fact_forces_the_device(name):
    runner, step, change = FLIPS[name]
    before = decide(runner, step)
    assert (before.source, before.reasons, before.action) == (Source.SCHEDULER, (), None)
    after = decide(*flip(runner, step, change))
    assert after.source is Source.DEVICE
    assert name in {reason.partition(":")[0] for reason in after.reasons}
    rule = next(rule for rule in RULES if rule.name == name)
    if after.reasons == (name,):
        assert after.action is rule.action


RUNNER_FIELDS = [f.name for f in fields(RunnerFacts) if f.name != "speculative_sync"]
STEP_FIELDS = [f.name for f in fields(StepFacts)]


@pytest.mark.parametrize("runner", [DENSE, OPTED_IN], ids=["dense", "opted-in"])
@pytest.mark.parametrize("name", RUNNER_FIELDS + STEP_FIELDS)
def test_an_unknown_fact_forces_the_device(runner, name):
    decision = decide(*flip(runner, QUIET, {name: UNKNOWN}))
    assert decision.source is Source.DEVICE
    assert decision.action is not None


@pytest.mark.parametrize("name", RUNNER_FIELDS)
@pytest.mark.parametrize("value", ["2", 1.0, -1, [], object()])
def test_a_fact_of_the_wrong_kind_is_unknown(name, value):
    assert decide(*flip(DENSE, QUIET, {name: value})).source is Source.DEVICE


def test_a_flag_is_not_taken_for_a_count():
    assert decide(replace(DENSE, pp_size=True), QUIET).source is Source.DEVICE
    assert decide(replace(DENSE, tokens_per_step=True), QUIET).source is Source.DEVICE


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"async_scheduling": False}, "synchronous scheduling"),
        ({"structured_output": True}, "a grammar masks logits and changes no count"),
        ({"pp_size": 2, "pp_rank": 0}, "pipeline parallel without speculation"),
        ({"pp_size": 2, "pp_rank": 1}, "the last rank, without speculation"),
    ],
)
def test_what_does_not_force_the_device(change, why):
    assert decide(*flip(DENSE, QUIET, change)).source is Source.SCHEDULER, why


def test_speculation_is_the_devices_until_switched_off_for_its_proposer():
    eagle = replace(OPTED_IN, speculative_sync=frozenset())
    assert decide(eagle, QUIET).reasons == ("speculation",)
    assert decide(OPTED_IN, replace(QUIET, num_draft_tokens=3)).source is Source.SCHEDULER
    assert decide(replace(OPTED_IN, speculative_method="mtp"), QUIET).reasons == ("speculation",)
    assert decide(replace(OPTED_IN, async_scheduling=True), QUIET).reasons == ("speculation",)
    # steps without a method: something speculates that we have no name for
    assert decide(replace(DENSE, num_speculative_steps=1, speculative_sync=frozenset({"eagle"})), QUIET).reasons == (
        "speculation",
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_speculation_across_pipeline_ranks(rank):
    runner = replace(DENSE, speculative_method="mtp", num_speculative_steps=1, pp_size=2, pp_rank=rank)
    decision = decide_runner(runner)
    assert decision.reasons == ("pp_speculation", "speculation")
    assert decision.action is Action.CORRECT
    assert decide_runner(replace(runner, async_scheduling=False)).action is Action.REFUSE


def test_the_strictest_action_wins():
    runner = replace(DENSE, speculative_method="eagle", num_speculative_steps=1, pooling=True)
    assert decide(runner, QUIET).action is Action.DECLINE


def test_exactness_follows_the_source():
    assert decide(DENSE, QUIET).exactness is Exactness.EXACT
    assert decide(replace(DENSE, diffusion=True), QUIET).exactness is Exactness.UPPER_BOUND


ANYTHING = st.one_of(
    st.none(),
    st.just(UNKNOWN),
    st.booleans(),
    st.integers(-3, 5),
    st.text(max_size=5),
    st.floats(),
    st.lists(st.none()),
)


@given(st.tuples(*[ANYTHING] * len(RUNNER_FIELDS)), st.tuples(*[ANYTHING] * len(STEP_FIELDS)))
def test_the_decision_is_total_and_pure(runner_values, step_values):
    runner = RunnerFacts(**dict(zip(RUNNER_FIELDS, runner_values, strict=True)))
    step = StepFacts(**dict(zip(STEP_FIELDS, step_values, strict=True)))
    decision = decide(runner, step)
    assert (decision.source is Source.SCHEDULER) == (decision.reasons == ()) == (decision.action is None)
    if decision.source is Source.SCHEDULER:
        # Only facts read as such, and harmless each, may let the scheduler's counts through.
        assert runner.speculative_method is None
        assert runner.tokens_per_step == 1
        assert {type(value) for value in (runner.pp_size, runner.dcp_size, runner.pcp_size)} == {int}
        assert type(runner.async_scheduling) is bool
        assert (runner.pooling, runner.diffusion, runner.dynamic_eplb) == (False, False, False)
        assert step.counts_continuous is True
    assert explain(decision.reasons).count("(") >= len(decision.reasons)
    assert decide(runner, step) == decision
