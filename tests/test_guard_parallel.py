"""A bad plan on any rank of TP=2 and PP=2 stops the engine: held back where outputs are read, else the worker ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_guard_engine import NOT_HERE, checkpoints

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

SCRIPT = Path(__file__).with_name("guard_parallel_run.py")
LAYOUTS = {
    "tp": {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
    "pp": {"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"},
}
LIMIT_S = 420  # a hang; a failure itself takes seconds


def run(folder: Path, layout: str, plant: str | None, action: str = "raise") -> tuple[dict, str]:
    job, out = folder / "job.json", folder / "out.json"
    job.write_text(
        json.dumps(
            {
                "mode": "ascend",
                "model": checkpoints()["dense"],
                "engine": LAYOUTS[layout],
                "plant": plant,
                "guard": {"enabled": True, "action": action},
            }
        )
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(job), str(out)],
        env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    log = done.stdout + done.stderr
    assert out.exists(), log[-4000:]
    return json.loads(out.read_text()), log


@pytest.mark.parametrize(("layout", "place"), [("tp", "tp0"), ("tp", "tp1"), ("pp", "pp0"), ("pp", "pp1")])
def test_a_bad_plan_on_any_rank_stops_the_engine(tmp_path, record_property, layout, place):
    result, log = run(tmp_path, layout, place)
    workers = {worker["rank"].split()[0 if layout == "pp" else 1]: worker for worker in result["workers"]}
    assert sorted(workers) == [f"{layout}0", f"{layout}1"], "a guard on each rank"
    for worker in workers.values():
        assert worker["counts"]["bad_audits"] == 0, "the control was silent"
        assert worker["counts"]["audits"] >= 10
    read = "tp0" if layout == "tp" else "pp1"
    assert [name for name, worker in workers.items() if worker["is_read"]] == [read]
    assert any(text.endswith(": planted") for text in result["planted"])
    assert result["error"], "every token was released"
    record_property("seconds_to_failure", round(result["seconds"], 1))
    print(f"{place}: failed after {result['seconds']:.1f} s")  # a hang ends at LIMIT_S
    if place == read:
        assert "kv-plan-guard" in result["error"] or "SLOT" in result["error"], result["error"]
    else:
        assert "kv-plan-guard: ending this worker so that the engine stops" in log
    assert "SLOT" in log
