"""Ground truth of the doctor by execution: every plugin release on every core release, in the simulator, on a CPU.

A cell imports every module of a plugin and constructs and steps the Model Runner V2 in the environment of the core,
repairs each failure by an edit of its site alone and goes on, until nothing new fails. The cell's file,
`out/doctor/truth/CORE_PLUGIN.json`, holds what really failed (rows), the edits, and which lines ran. A finished phase
of a cell is not run again (`--again` does), so the bench can be interrupted. `nox -s doctor` compares the doctor's
findings with it.
"""

# env: light

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.pop(0)  # siblings of this script have names of libraries
sys.path.insert(0, str(ROOT / "tools"))

import doctor_sources  # noqa: E402  # found on the path that was just set
import envs  # noqa: E402

TRUTH = ROOT / "out" / "doctor" / "truth"
WORKER = ROOT / "benchmarks" / "_doctor_cell.py"
PHASES = ("import", "platform", "dense", "eagle")
ENVIRONMENT = {
    "ASCEND_SIM": "1",
    "ASCEND_SIM_KERNELS": "interpreter",  # the kernels as released, not the simulator's own
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process: its tracebacks are whole
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "kv_cache_memory_bytes": 64 << 20,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "enable_prefix_caching": False,
    "async_scheduling": False,
    "seed": 0,
}


def environment_of(core: str) -> tuple[str, str | None]:
    """Pair whose environment runs a core, and None or the reason why the core's tree has to go over it."""
    rows = envs.buildable_rows()
    for row in rows:
        if row["vllm"] == core:
            return str(row["id"]), None
    newest = max(rows, key=lambda row: doctor_sources.release(row["vllm"]))
    return str(newest["id"]), f"no pair has core {core}"


def nearest_first(core: doctor_sources.Source, plugins: list[doctor_sources.Source]) -> list[doctor_sources.Source]:
    """The plugin of the core's own release, then its neighbours: what an interrupted run should have first."""
    by_release = sorted(plugins, key=lambda plugin: doctor_sources.release(plugin.version))
    here = sum(
        doctor_sources.release(plugin.version)[:3] <= doctor_sources.release(core.version)[:3] for plugin in plugins
    )
    return sorted(by_release, key=lambda plugin: abs(by_release.index(plugin) - (here - 1)))


def done_phases(path: Path) -> set[str]:
    """Phases that a cell's file says were run."""
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["phases"])
    except (OSError, ValueError, KeyError):
        return set()


def models(python: Path) -> dict[str, str]:
    """The tiny dense model and its EAGLE draft."""
    code = "import json; from ascend_sim import models as m; print(json.dumps({'target': str(m.build('dense')), "
    code += "'draft': str(m.build('eagle'))}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run_core(
    core: doctor_sources.Source, plugins: list[doctor_sources.Source], phases: list[str], again: bool, as_is: bool
) -> int:
    """Run the cells of one core in one process; its exit status."""
    cells = []
    for plugin in nearest_first(core, plugins):
        name = f"{core.version}_{plugin.version}"
        out = TRUTH / f"{name}.json"
        wanted = [phase for phase in phases if again or phase not in done_phases(out)]
        if again and set(phases) == set(PHASES):
            out.unlink(missing_ok=True)
        if wanted:
            tree = str(doctor_sources.ensure(plugin))
            log = str(TRUTH / f"{name}.log")
            cells.append(
                {"name": name, "plugin": plugin.version, "tree": tree, "out": str(out), "log": log, "phases": wanted}
            )
    if not cells:
        return 0
    pair, why = environment_of(core.version)
    found = ROOT / ".nox" / "pairs" / pair / "bin" / "python"
    python = found if as_is and found.exists() else envs.ensure(pair)
    job: dict[str, Any] = {
        "core": core.version,
        "core_tree": str(doctor_sources.ensure(core)) if why else "",
        "cells": cells,
        "environment": ENVIRONMENT,
        "engine": ENGINE,
        "models": models(python),
    }
    print(f"core {core.version} in the environment of pair {pair}: {len(cells)} cells", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(job), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run([str(python), str(WORKER), str(path)], env=env | {"PYTHONNOUSERSITE": "1"}, check=False)
    return done.returncode


def main(argv: list[str] | None = None) -> int:
    """Run what is missing of the chosen cells."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--core", action="append", default=[], help="a core release (default: all)")
    parser.add_argument("--plugin", action="append", default=[], help="a plugin release (default: all)")
    parser.add_argument("--phase", action="append", default=[], choices=PHASES, help="default: all")
    parser.add_argument("--again", action="store_true", help="run finished phases again")
    parser.add_argument("--as-is", action="store_true", help="take environments as they are: others may be using them")
    options = parser.parse_args(argv)
    TRUTH.mkdir(parents=True, exist_ok=True)
    every = doctor_sources.sources()
    cores = [s for s in every if s.kind == "core" and s.version in (options.core or [s.version])]
    plugins = [s for s in every if s.kind == "plugin" and s.version in (options.plugin or [s.version])]
    if not cores or not plugins:
        print(f"no such release: {options.core} {options.plugin}", file=sys.stderr)
        return 2
    status = 0
    for core in cores:
        status = run_core(core, plugins, options.phase or list(PHASES), options.again, options.as_is) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
