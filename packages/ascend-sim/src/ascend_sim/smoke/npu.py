"""``npu-smoke``: every arm in every mode on one NPU, compared with the hooks off. Needs no torch in this process."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from ascend_sim.smoke import cpu
from ascend_sim.smoke.npu_compare import compare_mode, profile_of
from ascend_sim.smoke.npu_plan import DEVICES, OFF, PROFILE, Outcome, Plan, Profile, Row
from ascend_sim.smoke.process import Child, ChildFailedError
from ascend_sim.smoke.results import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from ascend_sim.smoke.scenarios import Scenario

# The model's own dtype (Ascend's attention takes no float32 KV cache), and room for eight requests of 512 tokens.
NPU_ENGINE: dict[str, Any] = {"dtype": "auto", "kv_cache_memory_bytes": 4 << 30}


# By these the same plugins are switched on from outside: an arm has what it names and nothing else.
PLUGIN_VARIABLES = ("VLLM_MRV2_METADATA", "VLLM_KV_PLAN_GUARD", "VLLM_LAYERWISE_SCHED")


def plugins_here() -> dict[str, dict[str, Any]]:
    """``additional_config`` by name of each plugin that registers itself in this environment."""
    config = cpu.plugin_config()
    return {name: {key: config[key]} for name, (key, _) in cpu.PLUGINS.items() if key in config}


def run(plan: Plan, progress: cpu.Progress) -> Outcome:
    """Run the plan and leave raw results, logs and traces in its folder."""
    started = time.monotonic()
    rows: list[Row] = []
    profiles: list[Profile] = []
    stages: dict[str, dict[str, Any]] = {}
    runnable = [scenario for scenario in plan.scenarios if not plan.left_out(scenario)]
    for mode in plan.modes:
        units: dict[str, dict[str, dict[str, Any]]] = {}
        for arm in plan.arms:
            if arm != OFF and _all_refused(units[OFF]):
                units[arm] = units[OFF]
                continue
            units[arm] = _run_arm(plan, mode, arm, runnable, progress)
        rows += compare_mode(plan, mode, units)
        profiles += [profile_of(plan, mode, arm, found.get(PROFILE)) for arm, found in units.items()]
        stages[mode] = next((one["stages"] for one in units[OFF].values() if one.get("stages")), {})
    return Outcome(rows, profiles, stages, time.monotonic() - started)


def _all_refused(units: dict[str, Any]) -> bool:
    return bool(units) and all(one["status"] == "refused" for one in units.values())


def groups(plan: Plan, scenarios: list[Scenario]) -> list[list[str]]:
    """Units by engine process. On an NPU each has one of its own: what a taken-down engine leaves on the device must
    not reach the next. The simulator shares one among the scenarios of a single process.
    """
    if not plan.simulated:
        return [[scenario.name] for scenario in scenarios] + [[PROFILE]]
    shared = [scenario.name for scenario in scenarios if scenario.processes == 1]
    return [[*shared, PROFILE]] + [[scenario.name] for scenario in scenarios if scenario.processes > 1]


def _run_arm(
    plan: Plan, mode: str, arm: str, scenarios: list[Scenario], progress: cpu.Progress
) -> dict[str, dict[str, Any]]:
    """Run the units of one arm; a process that dies costs the unit it was at, the rest goes on in a new one."""
    folder = plan.out / "raw" / mode
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, dict[str, Any]] = {}
    for group in groups(plan, scenarios):
        waiting = list(group)
        while waiting:
            error = _run_process(plan, mode, arm, waiting, folder, progress)
            done = [unit for unit in waiting if (folder / f"{arm}-{unit}.json").exists()]
            if len(done) < len(waiting):
                lost = next(unit for unit in waiting if unit not in done)
                write_json(folder / f"{arm}-{lost}.json", _lost(plan, mode, arm, lost, error))
                done.append(lost)
            found |= {unit: json.loads((folder / f"{arm}-{unit}.json").read_text()) for unit in done}
            waiting = [unit for unit in waiting if unit not in done]
            if _all_refused(found) and mode == "graph":
                # No graph here: the other units would be refused alike, each after its own start.
                return found | {unit: {**found[done[0]], "unit": unit} for unit in _rest(plan, scenarios, found)}
    return found


def _rest(plan: Plan, scenarios: list[Scenario], found: dict[str, Any]) -> list[str]:
    return [unit for group in groups(plan, scenarios) for unit in group if unit not in found]


def _lost(plan: Plan, mode: str, arm: str, unit: str, error: str) -> dict[str, Any]:
    return {
        "unit": unit,
        "arm": arm,
        "mode": mode,
        "device": DEVICES[plan.device],
        "status": "failed",
        "reason": error or "its engine process left no result",
        "stages": {},
    }


def _run_process(plan: Plan, mode: str, arm: str, units: list[str], folder: Path, progress: cpu.Progress) -> str:
    """Run one engine process; returns its error, if any."""
    models = {"target": str(plan.model)} | ({"draft": str(plan.draft)} if plan.draft else {})
    job = {
        "device": plan.device,
        "mode": mode,
        "arm": arm,
        "units": units,
        "folder": str(folder),
        "traces": str(plan.out / "traces" / mode / arm),
        "models": models,
        "engine": {
            **({} if plan.simulated else NPU_ENGINE),
            "tensor_parallel_size": plan.tensor_parallel_size,
        },
        "plugins": plan.arms[arm],
        "graph_mode": plan.graph_mode,
        "profile_steps": plan.profile_steps,
    }
    # A file of paths and no result: not among what is packed.
    path = plan.out / "job.json"
    write_json(path, job)

    def on_line(line: str) -> None:
        if line.startswith("@smoke "):
            _, event, unit = line.split()
            progress(event, f"{mode} {arm} {unit}")

    command = [sys.executable, "-m", "ascend_sim.smoke.npu_engine", str(path)]
    name = f"engine {mode} {arm} {units[0]}"
    log = folder / f"{arm}-{units[0]}.log"
    try:
        with Child(name, command, log=log, environment=environment(plan), on_line=on_line) as child:
            child.check(plan.timeout_s * len(units))
    except ChildFailedError as error:
        return " ".join(str(error).splitlines()[0].split())
    finally:
        path.unlink(missing_ok=True)
    return ""


def environment(plan: Plan) -> dict[str, str]:
    """Environment of an engine process: the host's own, with MRV2 on, and the simulator on or surely off."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ASCEND_SIM") and name not in PLUGIN_VARIABLES
    }
    inherited.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")
    if plan.simulated:
        inherited["ASCEND_SIM"] = "1"
        inherited.setdefault("OMP_NUM_THREADS", "1")
        if plan.tensor_parallel_size > 1:
            inherited.setdefault("TORCH_COMPILE_DISABLE", "1")
    return inherited


def clear(out: Path) -> None:
    """Remove what an earlier run left in `out`, so that nothing of it is packed."""
    for name in ("raw", "traces"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in ("summary.json", "environment.json", "manifest-sha256.txt", "job.json"):
        (out / name).unlink(missing_ok=True)
