"""Two pipeline stages with MTP drafts: upstream's fault on the rank without a speculator, and the hook's answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_metadata_engine import BENCHMARKS, EVERY, NOT_HERE, PAIR

# The pairs on which vLLM runs speculation in a pipeline under Model Runner V2 and vllm-ascend follows.
RUNS_HERE = ("0.30.0", "0.29.0")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    NOT_HERE,
    pytest.mark.skipif(PAIR not in RUNS_HERE, reason=f"speculation in a pipeline was run on {', '.join(RUNS_HERE)}"),
]
RUNS = [
    {"name": "off", "hook": None, "async": True},
    {"name": "on", "hook": EVERY, "async": True},
    {"name": "fault", "hook": EVERY, "async": True, "fault": "scheduler for every step"},
    {"name": "sync", "hook": EVERY, "async": False},
]


def run(folder: Path, mode: str, runs: list[dict]) -> str:
    from ascend_sim import models

    job = {"mode": mode, "folder": str(folder), "model": str(models.build("mimo")), "runs": runs}
    path = folder / f"job-{mode}.json"
    path.write_text(json.dumps(job))
    command = [sys.executable, str(BENCHMARKS / "_metadata_pipeline.py"), str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1500, env={**os.environ})
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipeline")
    log = run(folder, "plain", [])
    assert (folder / "plain.json").exists(), log[-4000:]
    log = run(folder, "ascend", RUNS)
    found: dict = {}
    for spec in RUNS:
        path = folder / f"{spec['name']}.json"
        assert path.exists(), log[-4000:]
        found[spec["name"]] = json.loads(path.read_text())
    found |= {"log": log, "plain": json.loads((folder / "plain.json").read_text())}
    for name in ("off", "on"):  # the figures of README and docs page: `-s` shows them
        if "error" in found[name]:
            continue
        ranks = [f"rank {r['rank']}: {r['drift_rows']} of {r['rows']} rows differ" for r in found[name]["ranks"]]
        print(f"{PAIR} {name}: {equal_requests(found, name)} of 8 requests right; {'; '.join(ranks)}")
    return found


def equal_requests(results: dict, name: str) -> int:
    pairs = zip(results[name]["tokens"], results["plain"]["tokens"], strict=True)
    return sum(one == two for one, two in pairs)


def test_upstream_reads_lengths_that_are_too_long_and_gives_wrong_tokens(results):
    assert "error" not in results["off"], results["off"]["trace"]
    first, last = results["off"]["ranks"]
    assert not first["owns_speculator"]
    assert last["owns_speculator"]
    assert first["drift_rows"] == first["too_long_rows"] > 0, first
    assert last["drift_rows"] == 0
    assert equal_requests(results, "off") < 8


def test_with_the_hook_every_rank_is_right(results):
    assert "error" not in results["on"], results["on"]["trace"]
    assert equal_requests(results, "on") == 8
    for rank in results["on"]["ranks"]:
        assert rank["drift_rows"] == 0, rank["first_drift"]
        counts = rank["hook"]["counts"]
        assert rank["hook"]["declined"] is None
        assert counts["verified_steps"] >= rank["steps"] - 2
        assert counts["drift_rows"] == counts["snapshots_dropped"] == 0
        assert counts["corrected_rows"] > 0, "the correction is needed, on either rank"
        assert rank["hook"]["reasons"] == ["pp_speculation", "speculation"]


def test_a_rank_without_output_takes_its_worker_down_on_drift(results):
    assert "error" in results["fault"]
    assert "host and device sequence lengths differ" in results["log"]
    assert "pp rank 0 of 2" in results["log"]
    assert "ending this worker so that the engine stops" in results["log"]


def test_synchronous_scheduling_is_refused_by_name(results):
    assert "error" in results["sync"]
    assert "mrv2-metadata refuses to start: pp_speculation_sync" in results["log"]
