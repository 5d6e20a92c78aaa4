"""layerwise-sched on the real receive threads: every schedule's answer, bytes, leases, order, stages; switching."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from layerwise_schedules import SCHEDULES

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))


def unverified() -> str | None:
    """Why nothing is run on this pair, or None; KIT_TRY_UNVERIFIED=1 runs the tests that earn a row."""
    from vllm_pairs import load_pairs

    pair = load_pairs().get(os.environ.get("KIT_PAIR", "0.30.0"))
    if pair.checks_of("layerwise-sched") or os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        return None
    return (
        f"pair {pair.id} has no row of layerwise-sched in pairs.toml; KIT_TRY_UNVERIFIED=1 runs the tests all the same"
    )


NOT_HERE = pytest.mark.skipif(unverified() is not None, reason=str(unverified()))
pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

RUN = Path(__file__).with_name("layerwise_run.py")
POLICIES = ("fifo", "ready", "gate")
# The range path came with 0.28.0.
HERE = [name for name in SCHEDULES if not (name == "range" and os.environ.get("KIT_PAIR") == "0.27.1")]
SCHEDULED = [
    {"name": f"{name}-{policy}", "schedule": name, "policy": policy, "steps": 3} for name in HERE for policy in POLICIES
]
B = {"schedule": "B", "steps": 3}
SWITCHED = [
    {"name": "off", "timeline": False, **B},
    {"name": "timeline off", "timeline": False, "policy": "ready", **B},
    {"name": "switched", "policy": "fifo", "switch": {"1": "ready", "2": "fifo"}, **B},
    {"name": "by control file", "control": "ready\n", **B},
    {"name": "by a control file that makes no sense", "control": "fastest\n", "policy": "ready", **B},
    {"name": "small rings", "config": {"ring_rows": 1024}, "schedule": "B", "steps": 30},
    {"name": "no sampling", "config": {"sample_us": 0}, **B},
]


def run_job(folder: Path, runs: list[dict], **environment: str) -> dict[str, dict]:
    """Run a job in a process of its own; the results by name."""
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "runs": runs}))
    done = subprocess.run(
        [sys.executable, str(RUN), str(job)],
        check=False, capture_output=True, text=True, timeout=900, env={**os.environ, **environment},
    )  # fmt: skip
    (folder / "log").write_text(done.stdout + done.stderr)
    found = {}
    for spec in runs:
        path = folder / f"{spec['name']}.json"
        assert path.exists(), (done.stdout + done.stderr)[-3000:]
        found[spec["name"]] = json.loads(path.read_text())
        assert "error" not in found[spec["name"]], found[spec["name"]]["trace"]
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return run_job(tmp_path_factory.mktemp("threads"), SCHEDULED + SWITCHED)


@pytest.mark.parametrize("spec", SCHEDULED, ids=lambda spec: spec["name"])
def test_bytes_leases_and_the_queue_are_right_under_every_policy(results, spec):
    result = results[spec["name"]]
    assert result["errors"] == []
    assert (result["data_errors"], result["open_leases"], result["unfinished"]) == (0, 0, 0)
    assert result["alive"]
    assert len(result["step_ms"]) == spec["steps"]
    assert (result["counts"]["faults"], result["counts"]["hold_ran_out"]) == (0, 0)
    assert (result["dropped"], result["orphans"]) == (0, 0)
    assert result["complete"] == result["tasks"] > 0
    assert result["steps_recorded"] == spec["steps"]
    assert result["stage_problems"] == []


@pytest.mark.parametrize("name", HERE)
def test_a_schedule_blocks_its_head_exactly_where_it_can(results, name):
    """The order of events decides, not the time: a late save ends only when everything else is at rest."""
    schedule, result = SCHEDULES[name], results[f"{name}-fifo"]
    pairs = {tuple(int(layer) for layer in key.partition(":")[0].split(">")) for key in result["hol_pairs"]}
    if schedule.hol:
        assert result["impossible"] is None
        assert pairs >= schedule.pairs
        assert result["hol"] >= 3 * len(schedule.pairs), "once a step at least"
        assert all(":SAVE_" in key for key in result["hol_pairs"]), "a gate never is what blocks"
    else:
        assert result["impossible"] is not None
        assert result["hol_pairs"] == {}
    assert result["hol_unknown"] == 0


def test_the_reason_is_the_configurations(results):
    found = {name: results[f"{name}-fifo"]["impossible"] for name in HERE}
    assert found["A"] == found["A-last-independent"] == "MONOTONE"
    assert (found["D"], found["E"], found["F"], found["key"]) == ("NO_REUSE", "NO_SAVES", "PREFETCH", "KEY")


@pytest.mark.parametrize("name", [name for name, schedule in SCHEDULES.items() if schedule.hol])
def test_ready_passes_the_blocked_head_and_fifo_and_gate_do_not(results, name):
    assert results[f"{name}-fifo"]["counts"]["calls"] == 0
    # Not once a step: a thread that gets no core for the whole of a late save passes nobody.
    assert results[f"{name}-ready"]["counts"]["reordered"] >= 1
    # Only the first burst of a step has several tasks of one gate; with a depth of 8 the blocked head is among them.
    assert (results[f"{name}-gate"]["counts"]["reordered"] > 0) is (name == "B-deep")
    assert results[f"{name}-fifo"]["order"] == sorted(results[f"{name}-fifo"]["order"][:12]) * 3


@pytest.mark.parametrize("name", [name for name in HERE if not SCHEDULES[name].hol])
def test_where_nothing_can_block_no_policy_changes_the_order(results, name):
    for policy in POLICIES:
        assert results[f"{name}-{policy}"]["order"] == results[f"{name}-fifo"]["order"]
        assert results[f"{name}-{policy}"]["counts"]["reordered"] == 0


def test_the_simulator_takes_the_same_steps_in_the_same_order_and_time(results):
    """Every run replayed under its own policy. A step's time is compared with its own record, so a slow machine is
    slow on both sides.
    """
    import layerwise_real
    from layerwise_sched.timeline_file import read

    steps, same, off = 0, 0, []
    for spec in SCHEDULED:
        result = results[spec["name"]]
        found = layerwise_real.replay(read(Path(result["timeline"])).run(), spec["policy"])
        assert found["same_order"] == found["steps"] or spec["policy"] != "fifo", spec["name"]
        steps, same, off = steps + found["steps"], same + found["same_order"], [*off, abs(found["off_pct"])]
    assert steps == sum(spec["steps"] for spec in SCHEDULED)
    assert same >= 0.98 * steps  # a decision within a wake-up of the next event may fall on either side of it
    assert statistics.median(off) < 5


def test_fifo_is_the_queues_own_get(results):
    assert results["B-fifo"]["own_get"] is False
    assert results["B-ready"]["own_get"] is True
    assert results["off"]["queue_class"] == "Queue"


def test_a_policy_is_switched_and_taken_back_while_threads_run(results):
    result = results["switched"]
    assert [name for name, _ in result["policies"]] == ["fifo", "ready", "fifo"]
    assert result["own_get"] is False
    assert result["counts"]["reordered"] >= 1
    assert result["order"][:12] == result["order"][24:] == list(range(12)) != result["order"][12:24]
    assert (result["data_errors"], result["open_leases"], result["unfinished"]) == (0, 0, 0)


def test_the_control_file_names_the_policy(results):
    assert results["by control file"]["counts"]["reordered"] >= 1
    kept = results["by a control file that makes no sense"]
    assert kept["counts"]["reordered"] >= 1
    assert [name for name, _ in kept["policies"]] == ["ready"]


def test_without_a_timeline_a_policy_works_the_same(results):
    result = results["timeline off"]
    assert result["counts"]["reordered"] >= 1
    assert (result["data_errors"], result["open_leases"], result["unfinished"]) == (0, 0, 0)


def test_a_full_ring_is_counted_and_costs_nothing_else(results):
    result = results["small rings"]
    assert (result["data_errors"], result["open_leases"], result["unfinished"]) == (0, 0, 0)
    assert result["dropped"] + result["complete"] > 0
    assert result["stage_problems"] == []


def test_without_queries_the_finder_finds_too_little_and_never_too_much(results):
    assert results["no sampling"]["hol"] <= results["B-fifo"]["hol"]
