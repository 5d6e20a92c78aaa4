"""Churn in the real engine: thousands of steps of admissions, aborts, preemptions, prefix hits; lengths equal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_metadata_engine import NOT_HERE

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

CHURN = Path(__file__).resolve().parents[1] / "benchmarks" / "_metadata_churn.py"
SMALL = {"num_gpu_blocks_override": 11, "enable_prefix_caching": True}
ENGINES = [
    {"max_num_batched_tokens": 64, "async_scheduling": True, **SMALL},
    {"max_num_batched_tokens": 256, "async_scheduling": False, **SMALL},
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    from ascend_sim import models

    folder = tmp_path_factory.mktemp("churn")
    job = {
        "folder": str(folder),
        "model": str(models.build("dense")),
        "hook": {"enabled": True, "verify": "every", "strict": True},
        "engines": ENGINES,
        "examples": 15,
    }
    for mode in ("plain", "ascend"):
        path = folder / f"{mode}.json"
        path.write_text(json.dumps({**job, "mode": mode}))
        done = subprocess.run(
            [sys.executable, str(CHURN), str(path)], check=False, capture_output=True, text=True, timeout=1500,
            env={**os.environ},
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return [json.loads((folder / f"churn-{number}.json").read_text()) for number in range(len(ENGINES))]


def test_every_step_and_every_token(results):
    for result in results:
        assert result["drift_rows"] == 0
        assert result["tokens_equal"] == result["tokens_total"] > 1000
        assert result["hook"]["counts"]["drift_rows"] == 0
        assert result["hook"]["declined"] is None
    assert sum(result["steps"] for result in results) > 1000


def test_the_churn_was_one(results):
    assert sum(result["metrics"]["vllm:num_preemptions"] for result in results) > 0
    assert sum(result["metrics"]["vllm:prefix_cache_hits"] for result in results) > 0
    assert all(result["aborted"] > 0 < result["finished"] for result in results)
