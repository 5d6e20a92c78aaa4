"""A tiny random Whisper in vLLM's CPU engine under the guard: decoder self attention and cross attention."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_guard_engine import NOT_HERE

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

SCRIPT = Path(__file__).with_name("guard_whisper_run.py")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whisper")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder / "model"), str(folder / "out.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (folder / "out.json").exists(), (done.stdout + done.stderr)[-4000:]
    return json.loads((folder / "out.json").read_text())


def test_it_runs_under_model_runner_v2(result):
    assert "GPUModelRunner" in result["runner"]
    assert all(len(tokens) == 24 for tokens in result["tokens"])
    assert sorted(result["kinds"]) == ["cross", "full"]


def test_both_groups_are_audited_and_silent(result):
    assert result["signatures"] == []
    counts = result["counts"]["counts"]
    assert counts["bad_audits"] == 0
    assert counts["audits"] == 2 * counts["steps"] > 40
    active = {code for code, active, ran, _ in result["coverage"] if active and ran}
    assert {"ROW", "SLOT", "LEN", "QSL", "POS"} <= active
