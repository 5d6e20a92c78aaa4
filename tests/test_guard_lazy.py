"""Under lazy copies (a copy lands only at a wait that covers it): nothing is read early, nothing is reused early."""

import pytest
from test_guard_engine import ASYNC, LOG, MIXED, NOT_HERE, PLUGIN, SHORT, read, run_engines

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    NOT_HERE,
    pytest.mark.skipif(not PLUGIN, reason="lazy copies are the simulator's"),
]

RAISE = {"enabled": True, "action": "raise"}
LONG = {**SHORT, "new_tokens": 40}
RUNS = [
    {"name": "plain", "model": "dense", "guard": None, "workload": MIXED},
    {
        "name": "mutated",
        "model": "dense",
        "guard": RAISE,
        "workload": MIXED,
        "engine": ASYNC,
        "mutation": "overwrite after snapshot",
    },
    {
        "name": "delayed",
        "model": "dense",
        "guard": RAISE,
        "workload": MIXED,
        "engine": ASYNC,
        "mutation": "watch landing",
    },
    {"name": "direct", "model": "dense", "guard": RAISE, "workload": MIXED, "mutation": "watch landing"},
    {"name": "no-wait", "model": "dense", "guard": RAISE, "workload": SHORT, "mutation": "no output wait"},
    {"name": "sticky", "model": "dense", "guard": RAISE, "workload": SHORT, "mutation": "fault once"},
    {
        "name": "sticky-async",
        "model": "dense",
        "guard": RAISE,
        "workload": SHORT,
        "engine": {"async_scheduling": True},
        "mutation": "fault once",
    },
    {"name": "logged", "model": "dense", "guard": LOG, "workload": SHORT, "mutation": "fault every step"},
    {
        "name": "alternating",
        "model": "dense",
        "guard": RAISE,
        "workload": {"seed": 6, "requests": 16, "lengths": [300, 20, 150, 40], "new_tokens": 12},
        "engine": {"max_num_seqs": 4, "max_num_batched_tokens": 256},
        "mutation": "count allocations",
    },
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lazy")
    run_engines(folder, RUNS, ASCEND_SIM_LAZY_COPIES="1")
    return folder


def test_mutation_on_the_device_after_the_snapshot(results):
    result = read(results, "mutated")
    assert "error" not in result, result.get("trace")
    assert result["found"]["overwritten"] > 10
    assert result["guard"]["counts"]["bad_audits"] == 0
    assert result["guard"]["counts"]["audits"] >= result["found"]["overwritten"] - 1
    assert result["tokens"] == read(results, "plain")["tokens"]


@pytest.mark.parametrize("name", ["delayed", "direct"])
def test_delayed_readers_and_direct_output(results, name):
    """`delayed`: asynchronous scheduling reads an output after the next step began; `direct`: in the step itself."""
    result = read(results, name)
    assert "error" not in result, result.get("trace")
    found = result["found"]
    assert found["issued"] > 10
    assert found["late"] == found["issued"], "every copy was still on its way when it was issued"
    assert found["read"] >= found["issued"] - 1
    assert result["guard"]["counts"]["bad_audits"] == 0


def test_an_output_read_without_its_wait_is_noticed(results):
    result = read(results, "no-wait")
    assert "error" in result
    assert "LazyCopyError" in result["trace"] or "PlanError" in result["trace"], result["trace"]


@pytest.mark.parametrize("name", ["sticky", "sticky-async"])
def test_sticky_raise(results, name):
    """The step's tokens are not released, and neither are those of later steps, though their plans are right again."""
    result = read(results, name)
    assert "PlanError" in result["trace"]
    assert "SLOT" in result["error"]
    (planted,) = result["found"]["planted"]
    assert result["found"]["released"] == planted, "outputs of the steps before it, and no other"
    assert "PlanError" in result["after"]
    assert "released" not in result["after"]


def test_log_mode(results):
    """Reported once per signature, counted each time, and serving goes on."""
    result = read(results, "logged")
    assert "error" not in result, result.get("trace")
    assert all(len(tokens) == SHORT["new_tokens"] for tokens in result["tokens"])
    planted = result["found"]["planted"]
    assert len(planted) > 10
    assert result["guard"]["counts"]["bad_audits"] >= len(planted) - 1
    assert result["guard"]["violations"]["SLOT"] >= len(planted) - 1
    slots = [number for code, *_, number in result["guard"]["signatures"] if code == "SLOT"]
    assert max(slots) >= len(planted) - 5
    log = (results / "ascend.log").read_text()
    assert 1 <= log.count("==kv-plan-guard== ERROR: SLOT") <= len(slots) + 4  # once per signature, once per raise


def test_buffers_are_reused_while_prefill_and_decode_alternate(results):
    result = read(results, "alternating")
    assert "error" not in result, result.get("trace")
    allocated, tokens = result["found"]["allocated"], result["found"]["tokens"]
    quarter = len(allocated) // 4
    later = tokens[quarter:]
    assert max(later) > 20 * min(n for n in later if n), "prefill and decode alternated"
    assert allocated[-1] == allocated[quarter] > 0
