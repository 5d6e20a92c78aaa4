"""The cells of the layer-wise study: which configurations are simulated, and which are run on real threads.

Allocation (`layerwise_num_shared_buffers`) and depth (`layerwise_prefetch_layers`) are separate axes, so that their
effects can be told apart; the receive paths never share a cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from layerwise_sched.model import DataPath
from layerwise_sched.simulation import Spec

POLICIES = ("fifo", "ready", "gate")
LAYERS = 12
SPREAD = 0.10
"""Sigma of loads and saves, log-normal: what independent repeats differ by."""

MANY, TWO = (1, 2, 3, 4, 7), (1, 4)
# name -> times of loads, saves and compute in microseconds; late saves are what makes a queue wait.
REGIMES: dict[str, dict[str, Any]] = {
    "late saves, loads bound": {
        "load_us": 2_300.0, "save_us": 300.0, "straggler_us": 6_000.0, "straggler_layers": MANY,
    },
    "slow saves": {"load_us": 1_200.0, "save_us": 4_000.0},
    "compute bound": {
        "load_us": 800.0, "save_us": 300.0, "straggler_us": 6_000.0, "attention_us": 2_000.0, "straggler_layers": MANY,
    },
    "two late saves, loads bound": {
        "load_us": 2_300.0, "save_us": 300.0, "straggler_us": 6_000.0, "straggler_layers": TWO,
    },
    "random late saves": {"load_us": 2_300.0, "save_us": 300.0, "straggler_us": 6_000.0, "straggler_odds": 0.15},
}  # fmt: skip
# name -> what makes sources and saves leave the layers' order, or not.
LAYOUTS: dict[str, dict[str, Any]] = {
    "one spec, independent [0]": {},
    "independent [0,5,6,10]": {"independent": (0, 5, 6, 10)},
    "two cache specs": {"buckets": tuple(int(layer in (2, 5, 8, 11)) for layer in range(LAYERS))},
    "layer 2 without save task": {"no_save": (2,)},
}
BATCHES: dict[str, dict[str, Any]] = {
    "one request": {"requests": 1, "hit_every": 1},
    "four, mixed steps": {"requests": 4, "hit_every": 3},
}


@dataclass(frozen=True)
class Cell:
    """One configuration: its axes as shown, and the spec that is simulated."""

    path: str
    reuse: str
    prefetch: str
    layout: str
    batch: str
    regime: str
    spec: Spec

    @property
    def name(self) -> str:
        """The axes in one line."""
        return " | ".join((self.path, self.reuse, self.prefetch, self.layout, self.batch, self.regime))

    @property
    def default(self) -> bool:
        """Whether every knob of upstream has its default."""
        return self.reuse == "no reuse" and self.prefetch == "P default" and self.layout == "one spec, independent [0]"


def simulated(steps: int = 4) -> list[Cell]:
    """Every simulated cell, in a fixed order."""
    cells: list[Cell] = []

    def add(path: DataPath, buffers: int | None, prefetch: int | None, layout: str, **more: Any) -> None:
        for batch, batched in BATCHES.items():
            for regime, times in REGIMES.items():
                base = Spec(path=path, layers=LAYERS, steps=steps, spread=SPREAD)
                changes = {**LAYOUTS.get(layout, {}), **batched, **times, **more}
                spec = replace(base, shared_buffers=buffers, prefetch_layers=prefetch, **changes)
                reuse = "no reuse" if buffers is None else f"B={buffers}"
                depth = "P default" if prefetch is None else f"P={prefetch}"
                cells.append(Cell(path.value, reuse, depth, layout, batch, regime, spec))

    plain = "one spec, independent [0]"
    for prefetch in (None, 2, 4):
        add(DataPath.GVA, None, prefetch, plain)
    for buffers in (3, 5):
        for prefetch in (None, 2, 8):
            for layout in LAYOUTS:
                add(DataPath.GVA, buffers, prefetch, layout)
    add(DataPath.GVA, 3, None, "a rank that saves nothing", independent=(0, 5, 6, 10), saving_rank=False)
    add(DataPath.GVA, 3, None, "slot waiter of another connector", independent=(0, 5, 6, 10), slot_us=300.0)
    for path in (DataPath.RANGE, DataPath.KEY):
        for prefetch in (None, 8):
            add(path, None, prefetch, plain)
    add(DataPath.RANGE, None, 4, "two KV cache groups", groups=2)
    return cells


REAL = ("A", "B", "C", "D", "E", "F", "G", "B-requests", "B-deep", "B-two-late", "A-last-independent", "range", "key")
"""Schedules of the rig of real threads (tests/layerwise_schedules.py)."""
DECISIVE = ("B", "C", "G", "B-deep", "B-requests", "B-two-late")
"""Those in which head-of-line blocking is possible; the last is the simulated cell that gains most."""


TIMES: dict[str, Any] = {"slower": 4, "changes": {"needed": False}}
"""Four times the schedule's times, so that a thread's wake-up (0.1 to 0.5 ms on two cores) is small against a stage,
and saves that are late by the clock alone: nothing waits until there is something to see."""


def real_runs(repeats: int, steps: int) -> list[dict[str, Any]]:
    """The job of the rig: repeats outermost and policies in turn, so that a slow minute falls on all of them."""
    runs = []
    for repeat in range(repeats):
        for schedule in REAL:
            policies = POLICIES if schedule in DECISIVE else POLICIES[:2]
            turned = policies if repeat % 2 == 0 else policies[::-1]
            runs += [
                {
                    "name": f"{schedule}.{policy}.{repeat}",
                    "schedule": schedule,
                    "policy": policy,
                    "steps": steps,
                    **TIMES,
                }
                for policy in turned
            ]
    return runs


ENGINE_REUSE = {"layerwise_num_shared_buffers": 3, "layerwise_independent_layers": [0, 5]}
"""Reuse needs a runner that applies the plan: MRV2 from vllm-ascend 0.30.0rc2 on."""
ENGINE_BASE = "no connector"


def engine_runs() -> list[dict[str, Any]]:
    """The job of the engine: the whole connector in the real engine, each path, reuse on and off, each policy."""
    runs: list[dict[str, Any]] = [{"name": ENGINE_BASE}]
    late = {"1": 0.15}
    for backend, label, more in (
        ("memcache", "gva", {}),
        ("memcache", "gva reuse", {"extra": ENGINE_REUSE}),
        ("memcache", "gva reuse late save", {"extra": ENGINE_REUSE, "late": late}),
        ("mooncake", "range", {}),
        ("yuanrong", "key", {}),
    ):
        runs.append({"name": f"{label}, off", "backend": backend, **more})
        runs += [
            {"name": f"{label}, {policy}", "backend": backend, "hook": {"policy": policy, "record": True}, **more}
            for policy in POLICIES[:2]
        ]
    # Log stats bring the time of the first token.
    return [{**run, "engine": {"disable_log_stats": False}} for run in runs]
