"""What one decision of the `ready` policy costs, readiness polling included, with 64 and with 4,096 tasks queued.

The adapters' own readiness is asked: CPU events, NPU events and gates, as objects of their real kinds. Scenarios: the
head is ready; a task behind it is; nothing is, because every save is missing; nothing is, because the gates are closed.
The figure of a depth is its worst scenario's median over blocks, of the thread's CPU time.
"""

# env: light

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from _layerwise_bench import Gate, NpuEvent, Receiver, load_task, show, transfer, write_summary

if TYPE_CHECKING:
    from collections import deque

    from layerwise_sched.model import Task

SCENARIOS = ("head ready", "later ready", "saves missing", "gates closed")
LIMITS = {64: 5.0, 4_096: 20.0}


class Pending(NpuEvent):
    done = False


def scene(name: str, depth: int) -> tuple[deque[Task | None], Any]:
    """A queue of `depth` tasks and the readiness of their worker. Every layer but the first waits for a save."""
    from layerwise_sched.adapters.loads import Loads
    from layerwise_sched.adapters.process import Numbers
    from layerwise_sched.config import Config
    from layerwise_sched.dispatch import Dispatcher
    from layerwise_sched.model import owner_chains
    from layerwise_sched.policy import make_policy
    from layerwise_sched.task_queue import TaskQueue

    layers = depth + 64
    sources = {layer: layer - 64 for layer in range(64, layers)}  # 64 slots, so that 64 queued tasks have one each
    receiver = Receiver(layers)
    worker = SimpleNamespace(
        prefetch_layer_map=sources, num_prefetch_layers=depth, current_layer=0, use_block_key_layerwise=False
    )
    config = Config(policy="ready")
    loads = Loads(config, Numbers(config, {}), worker)
    loads.attach(receiver)
    tasks = receiver.request_queue
    assert isinstance(tasks, TaskQueue)
    assert isinstance(tasks.dispatcher, Dispatcher)
    assert make_policy("ready").reorders
    assert len(owner_chains(sources, layers)) == layers
    later = 68  # the fifth in the queue
    for layer in range(64, layers):
        gate = Gate()
        if name != "gates closed":
            gate.record()
        tasks.put(load_task(layer, sources[layer], gate, [transfer()]))
        if name in ("head ready", "gates closed") or (name == "later ready" and layer == later):
            receiver.layer_save_finished_events[sources[layer]].set()
        if name == "gates closed" and layer == 64:
            receiver.sync_save_events[sources[layer]] = Pending()
    return tasks.tasks, loads


def select_us(name: str, depth: int, blocks: int, calls: int) -> tuple[float, int]:
    """Median CPU microseconds of a `select`, and its answer."""
    from layerwise_sched.policy import make_policy

    tasks, loads = scene(name, depth)
    policy = make_policy("ready")
    answer = policy.select(tasks, loads)
    times = []
    for _ in range(blocks):
        began = time.thread_time_ns()
        for _ in range(calls):
            policy.select(tasks, loads)
        times.append((time.thread_time_ns() - began) / 1e3 / calls)
    return statistics.median(times), answer


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/policy_cost"))
    parser.add_argument("--blocks", type=int, default=41)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    expected = {"head ready": 0, "later ready": 4, "saves missing": -1, "gates closed": -1}
    right = True
    for depth in LIMITS:
        for name in SCENARIOS:
            us, answer = select_us(name, depth, options.blocks, 500)
            right = right and answer == expected[name]
            rows.append({"scenario": name, "queued": depth, "us": round(us, 3), "answer": answer})
    figures = {f"select_{depth}_us": max(row["us"] for row in rows if row["queued"] == depth) for depth in LIMITS} | {
        "answers_right": int(right)
    }
    show("One decision", ["scenario", "queued", "us", "answer"], rows)
    passed = right and all(figures[f"select_{depth}_us"] <= limit for depth, limit in LIMITS.items())
    return write_summary(options.out, "policy_cost", figures, rows, passed)


if __name__ == "__main__":
    sys.exit(main())
