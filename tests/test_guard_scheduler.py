"""The real Scheduler and KVCacheManager with real block tables under the guard, without a model: silent over
a random load, and not blind: one used entry changed in a copy of such a plan is found each time.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]
SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "_guard_scheduler.py"


def run(folder: Path, **job: object) -> dict:
    path = folder / "job.txt"
    path.write_text(json.dumps({"folder": str(folder), "seed": 5, **job}))
    done = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, check=False)
    result = folder / f"{job['segment']}-5.json"
    assert result.exists(), (done.stdout + done.stderr)[-3000:]
    return json.loads(result.read_text())


@pytest.mark.parametrize("segment", ["sliding-async", "drafts-async", "loads", "loads-inside", "ascend"])
def test_silent_on_real_plans_and_not_blind(tmp_path: Path, segment: str) -> None:
    result = run(tmp_path, segment=segment, steps=600, fault_every=3)
    assert result["steps"] == 600
    assert result["planted"] > 150
    assert result["missed"] == 0
    # The right plans were asserted clean one by one: every finding is of a planted copy.
    assert result["false_alarms"] == result["planted"]
    if segment.startswith("loads"):
        assert result["loaded"] > 5
    if segment == "loads-inside":
        assert result["failed_inside"] > 2
    if segment.startswith("drafts"):
        assert result["rejected"] > 100


def test_a_count_that_is_not_taken_back_behind_a_failed_load_is_found(tmp_path: Path) -> None:
    """What upstream's runner does (repro/kv-load-rejected.py), in plans that are right otherwise."""
    result = run(tmp_path, segment="loads-inside", steps=600, stale=True)
    assert result["failed_inside"] > 2
    assert result["false_alarms"] > 10
    assert {"POS", "LEN", "SLOT"} <= set(result["violations"])
