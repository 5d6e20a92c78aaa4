"""The simulator: tasks a minute on one core, and random schedules checked against the legal orders.

Speed is of step times alone (`record=False`), CPU time of this process, by policy; the figure is the slowest policy's.
The schedules are drawn as the property tests draw them, but many more of them; each is run under every policy and
checked by the run checker and by the stage sums.
"""

# env: light

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from _layerwise_bench import show, write_summary

POLICIES = ("fifo", "ready", "gate")
LIMIT = 1_000_000


def speed(steps: int) -> list[dict[str, Any]]:
    """Tasks a minute of each policy on a reuse schedule that reorders."""
    from layerwise_sched.policy import make_policy
    from layerwise_sched.simulation import Spec, generate, simulate

    spec = Spec(
        shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=6_000, straggler_layers=(1, 2, 3, 4, 7), steps=steps,
        spread=0.2,
    )  # fmt: skip
    workload = generate(spec)
    rows = []
    for policy in POLICIES:
        began, wall = time.process_time(), time.perf_counter()
        result = simulate(workload, make_policy(policy), record=False)
        cpu, took = time.process_time() - began, time.perf_counter() - wall
        rows.append(
            {
                "policy": policy,
                "tasks": result.num_tasks,
                "passes": result.counts.reordered,
                "tasks_per_minute": round(result.num_tasks / cpu * 60),
                "wall_tasks_per_minute": round(result.num_tasks / took * 60),
            }
        )
    return rows


def random_spec(rng: np.random.Generator) -> Any:
    """A random plan and times; every second one with few buffers and late saves, where orders really differ."""
    from layerwise_sched.model import DataPath
    from layerwise_sched.simulation import Spec

    rich = bool(rng.random() < 0.5)
    layers = int(rng.integers(8, 16)) if rich else int(rng.integers(1, 16))
    times = [40.0, 300.0, 1_000.0, 2_300.0] if rich else [0.0, 1.0, 40.0, 300.0, 1_000.0, 2_300.0, 9_000.0]

    def some(most: int) -> tuple[int, ...]:
        count = int(rng.integers(0, min(most, layers) + 1))
        return tuple(int(layer) for layer in rng.choice(layers, count, replace=False))

    paths = [DataPath.GVA] if rich else [DataPath.GVA, DataPath.GVA, DataPath.RANGE, DataPath.KEY]
    path = paths[int(rng.integers(len(paths)))]
    buffers = int(rng.integers(2, 5)) if rich else int(rng.integers(1, layers + 1))
    prefetch = int(rng.integers(3, 9)) if rich else int(rng.integers(1, layers + 3))
    names = ("load_us", "save_us", "attention_us", "rest_us", "host_us", "build_us")
    return Spec(
        path=path,
        layers=layers,
        steps=int(rng.integers(1, 4)),
        requests=int(rng.integers(1, 5)),
        shared_buffers=buffers if rich or rng.random() < 0.8 else None,
        prefetch_layers=prefetch if rich or rng.random() < 0.7 else None,
        independent=some(4 if rich else layers),
        straggler_layers=some(4),
        straggler_us=9_000.0 if rich else float(rng.choice(times)),
        no_save=some(4),
        buckets=tuple(int(bucket) for bucket in rng.integers(0, 3, layers)) if rng.random() < 0.4 else None,
        hit_every=int(rng.integers(1, 4)),
        groups=int(rng.integers(1, 4)),
        saving_rank=bool(rng.random() < 0.85),
        spread=float(rng.choice([0.0, 0.3, 1.0])),
        straggler_odds=float(rng.choice([0.0, 0.2])),
        slot_us=float(rng.choice(times)) if path is DataPath.GVA and rng.random() < 0.1 else None,
        **{name: float(rng.choice(times)) for name in names},
    )


def schedules(count: int) -> dict[str, int]:
    """Random schedules under every policy: how many, and what was wrong with them."""
    from layerwise_sched.checker import check_run
    from layerwise_sched.policy import make_policy
    from layerwise_sched.simulation import generate, simulate
    from layerwise_sched.stages import check

    rng = np.random.default_rng(0)
    found = {"schedules": 0, "reorders": 0, "violations": 0, "unexplained": 0, "unfinished": 0}
    for number in range(count):
        workload = generate(random_spec(rng), number)
        for policy in POLICIES:
            result = simulate(workload, make_policy(policy))
            run = result.run()
            found["schedules"] += 1
            found["reorders"] += result.counts.reordered
            found["violations"] += len(check_run(run)) + result.counts.faults
            found["unexplained"] += len(check(run))
            found["unfinished"] += len(run.tasks) - len(run.complete)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/layerwise_sim"))
    parser.add_argument("--steps", type=int, default=10_000, help="of the speed test, 12 tasks each")
    parser.add_argument("--schedules", type=int, default=2_000, help="random workloads, each under three policies")
    options = parser.parse_args()
    rows = speed(options.steps)
    checked = schedules(options.schedules)
    figures = {"tasks_per_minute": min(row["tasks_per_minute"] for row in rows), **checked}
    show("Simulator", ["policy", "tasks", "passes", "tasks_per_minute", "wall_tasks_per_minute"], rows)
    show("Random schedules", list(checked), [checked])
    wrong = checked["violations"] + checked["unexplained"] + checked["unfinished"]
    passed = figures["tasks_per_minute"] >= LIMIT and not wrong and checked["reorders"] > 0
    return write_summary(options.out, "layerwise_sim", figures, rows, passed)


if __name__ == "__main__":
    sys.exit(main())
