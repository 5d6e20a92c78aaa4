"""Several workers: tensor parallel 2 gives the tokens of one worker, and what cannot be simulated is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ascend_sim import models
from ascend_sim.smoke.results import Result, compare

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TENSOR_PARALLEL = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
REFUSALS = """
import json, sys
import ascend_sim
ascend_sim.activate()
from vllm.engine.arg_utils import EngineArgs
from ascend_sim.platform.platform import AscendSimPlatform
found = {}
def attempt(name, function):
    try:
        found[name] = f"accepted: {function()!r}"
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
def config(**more):
    return EngineArgs(model=sys.argv[1], dtype="float32", max_model_len=128, **more).create_engine_config()
attempt("graph", lambda: config(enforce_eager=False))
attempt("full graph", lambda: config(compilation_config={"cudagraph_mode": "FULL"}))
attempt("eager", lambda: type(config(enforce_eager=True)).__name__)
attempt("mla", lambda: AscendSimPlatform.get_attn_backend_cls(None, type("S", (), {"use_mla": True})()))
import torch, torch_npu
attempt("operator", lambda: torch_npu.npu_grouped_matmul([], []))
attempt("graph object", lambda: torch.npu.NPUGraph())
print("@" + json.dumps(found))
"""


def run_engine(folder: Path, mode: str, engine: dict) -> Result:
    job = {"mode": mode, "scenarios": ["batch"], "folder": str(folder), "engine": engine, "additional_config": {}}
    job["models"] = {"target": str(models.build("dense"))}
    path = folder / f"job-{mode}.json"
    path.write_text(json.dumps(job))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
    command = [sys.executable, "-m", "ascend_sim.smoke.engine", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    result = Result.read(folder / f"{mode}-batch.json")
    assert not result.error, result.error + done.stderr[-3000:]
    return result


def test_tensor_parallel_2_equals_one_worker(tmp_path):
    one = run_engine(tmp_path, "plain", {})
    two = run_engine(tmp_path, "ascend", TENSOR_PARALLEL)
    outcome = compare(one.tokens, two.tokens)
    assert outcome.same, str(outcome.first)
    assert outcome.total == 256


def test_what_cannot_be_simulated_is_refused_by_name():
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", REFUSALS, str(models.build("dense"))],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith("@")), "")
    assert line, done.stderr[-3000:]
    found = json.loads(line[1:])
    for graph in ("graph", "full graph"):
        assert "ACL graphs are not simulated; run with enforce_eager=True" in found[graph]
    assert found["eager"] == "accepted: 'VllmConfig'"
    assert "use_mla=True has no reference operators" in found["mla"]
    assert "torch_npu.npu_grouped_matmul has no CPU reference" in found["operator"]
    assert "ACL graphs are not simulated" in found["graph object"]
