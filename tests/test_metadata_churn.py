"""Churn in the real engine: thousands of steps of admissions, aborts, preemptions, prefix hits; lengths equal."""

import json
import os
import subprocess
import sys

import pytest
from test_metadata_engine import BENCHMARKS, MODELS, NOT_HERE, PAIR, references

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

CHURN = BENCHMARKS / "_metadata_churn.py"
ENGINES = ["async-64", "sync-256", "spec-async-96", "spec-trusted-96"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    from ascend_sim import models

    folder = tmp_path_factory.mktemp("churn")
    found = subprocess.run(
        [sys.executable, "-c", "import json, _metadata_churn; print(json.dumps(_metadata_churn.ENGINES))"],
        check=True, capture_output=True, text=True, cwd=CHURN.parent,
    )  # fmt: skip
    job = {
        "folder": str(folder),
        "models": {name: str(models.build(model)) for name, model in MODELS.items()},
        "engines": json.loads(found.stdout),
        "examples": 12,
    }
    assert [engine["name"] for engine in job["engines"]] == ENGINES
    wanted = {"plain-churn.json", "oracle-churn.json"}
    for mode in ("plain", "ascend"):
        if mode == "plain" and references.take(folder, PAIR, wanted):
            continue
        path = folder / f"{mode}.json"
        path.write_text(json.dumps({**job, "mode": mode}))
        done = subprocess.run(
            [sys.executable, str(CHURN), str(path)], check=False, capture_output=True, text=True, timeout=1500,
            env={**os.environ},
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        references.keep(folder, PAIR, wanted)
    return {name: json.loads((folder / f"churn-{name}.json").read_text()) for name in ENGINES}


@pytest.mark.parametrize("name", ENGINES)
def test_every_step_and_every_token(results, name):
    result = results[name]
    counts = result["hook"]["counts"]
    assert result["drift_rows"] == counts["drift_rows"] == counts["snapshots_dropped"] == 0
    assert result["tokens_equal"] == result["tokens_total"] > 1000
    assert result["hook"]["declined"] is None
    assert result["steps"] > 300
    assert counts["verified_steps"] >= result["steps"] - 2
    assert (counts["corrected_rows"] > 0) is (name == "spec-async-96")
    assert (counts["device_steps"] > 0) is (name == "spec-async-96")


def test_the_churn_was_one(results):
    for metric in ("vllm:num_preemptions", "vllm:prefix_cache_hits", "vllm:spec_decode_num_accepted_tokens"):
        assert sum(result["metrics"].get(metric, 0) for result in results.values()) > 0, metric
    assert all(result["aborted"] > 0 < result["finished"] for result in results.values())
