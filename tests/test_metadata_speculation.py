"""EAGLE drafts with every scenario: right often or hardly ever, settled by the scheduler or not; and the switch."""

import pytest
from test_metadata_engine import EVERY, NOT_HERE, TRUSTED, read, reference, run_engines

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

SCENARIOS = ("batch", "chunked-prefill", "preemption", "prefix-cache")
MODES = {
    "sync": (False, EVERY),
    "async": (True, EVERY),
    "trusted": (False, {**TRUSTED, "verify": "every"}),
}
RUNS = [
    {
        "name": f"{scenario}-{drafts}-{mode}",
        "scenario": scenario,
        "changes": {"speculative": 3},
        "drafts": drafts,
        "mode": mode,
        "engine": {"async_scheduling": asynchronous},
        "hook": hook,
    }
    for scenario in SCENARIOS
    for drafts in ("oracle", "random")
    for mode, (asynchronous, hook) in MODES.items()
]
CONTROLS = [
    # Lengths taken from the scheduler where it has not settled the drafts: what `speculative_sync` must never do.
    {**RUNS[0], "name": "async as if trusted", "engine": {"async_scheduling": True}, "hook": EVERY,
     "mutation": "scheduler for every step"},
    # And the same runs as the switch is for, with one rejection that reached the scheduler too late.
    {**RUNS[2], "name": "trusted, not settled", "mutation": "one rejection not settled"},
]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speculation")
    run_engines(folder, RUNS + CONTROLS)
    return folder


@pytest.mark.parametrize("spec", RUNS, ids=lambda spec: spec["name"])
def test_tokens_and_lengths(results, spec):
    result = read(results, spec["name"])
    assert "error" not in result, result["trace"]
    assert result["tokens"] == reference(results, spec["scenario"])
    assert result["drift_rows"] == 0, result["first_drift"]
    counts = result["hook"]["counts"]
    assert result["hook"]["declined"] is None
    assert counts["drift_rows"] == counts["snapshots_dropped"] == 0
    assert counts["verified_steps"] >= counts["steps"] - 2
    if spec["mode"] == "trusted":
        assert (counts["device_steps"], counts["length_copies"], counts["length_waits"]) == (0, 0, 0)
    else:
        assert counts["device_steps"] == counts["steps"]
    if spec["mode"] == "sync":
        assert counts["corrected_rows"] == 0, "the scheduler had settled every draft"


def test_the_drafts_were_what_they_say(results):
    for spec in RUNS:
        accepted = read(results, spec["name"])["metrics"]["vllm:spec_decode_num_accepted_tokens"]
        total = sum(map(len, reference(results, spec["scenario"])))
        assert accepted > total / 4 if spec["drafts"] == "oracle" else accepted < total / 8, (spec["name"], accepted)
        if spec["scenario"] == "preemption":
            assert read(results, spec["name"])["metrics"]["vllm:num_preemptions"] > 0
        if spec["scenario"] == "prefix-cache":
            assert read(results, spec["name"])["metrics"]["vllm:prefix_cache_hits"] > 0


def test_asynchronous_steps_need_the_correction(results):
    for spec in RUNS:
        if spec["mode"] == "async" and spec["drafts"] == "random":
            assert read(results, spec["name"])["hook"]["counts"]["corrected_rows"] > 0, spec["name"]


@pytest.mark.parametrize("spec", CONTROLS, ids=lambda spec: spec["name"])
def test_a_count_that_is_not_settled_stops_the_engine(results, spec):
    result = read(results, spec["name"])
    assert "error" in result, "the proof of the correction-free mode could not fail"
    assert "host and device sequence lengths differ" in result["trace"]
    assert "authority scheduler" in result["trace"]
