"""What the benchmarks of kv-plan-guard share: checkpoints, child processes in this environment, the summary's form."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def checkpoints() -> dict[str, str]:
    """The tiny models by name; built once and kept by ascend-sim."""
    from ascend_sim import models

    names = {"dense": "dense", "draft": "eagle", "sliding": "sliding", "hybrid": "hybrid"}
    return {name: str(models.build(model)) for name, model in names.items()} | {"one-layer": _one_layer()}


def _one_layer() -> str:
    """The dense model with one layer: a step costs little, and its plan is made by the same code."""
    from ascend_sim.models import qwen, store

    return str(store.write("dense-one", qwen.dense(layers=1), store.default_cache(), 0))


def child(script: str, job: dict[str, Any], path: Path, mode: str, **environment: str) -> int:
    """Run a sibling script with a job file; its lines that begin with @ are shown as progress."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**job, "mode": mode}))
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    env.pop("ASCEND_SIM", None)
    command = [sys.executable, str(HERE / script), str(path)]
    with (
        path.with_suffix(".log").open("w") as log,
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("@"):
                print(line[1:].rstrip(), flush=True)
    return process.returncode


def write_summary(out: Path, name: str, seed: int, result: dict[str, Any]) -> None:
    """Write out/NAME/summary.json in one step."""
    from vllm_pairs import current_pair

    host = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}
    summary = {"name": name, "version": 1, "pair": current_pair().id, "host": host, "seed": seed, **result}
    out.mkdir(parents=True, exist_ok=True)
    partial = out / ".summary.json"
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(out / "summary.json")
