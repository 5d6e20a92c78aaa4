"""What a timeline costs: nothing while it is off, microseconds a task while it is on, no growth over a million tasks.

*On*: the recorder's own work for one task of the fullest kind (GVA with a source and a gate): its facts and its 15
rows, written into rings; the drainer's thread takes them out (`drain_us_per_task`). *Hooked*: all that the adapters add
around upstream's waits and calls, views and marks included, on a receive thread's surroundings in which nothing has to
be waited for; CPU time of the one thread that does both sides' host work, on minus off, in blocks that alternate.
*Off*: with policy fifo and no timeline the configuration puts nothing in, and the queue's `get` under FIFO is the
standard library's. (The engine tests show that a running worker's methods are identical.) *Growth*: a million tasks'
rows through one ring that is emptied meanwhile; resident memory after a tenth, and after all.
"""

# env: light

from __future__ import annotations

import argparse
import atexit
import gc
import queue
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _layerwise_bench import LAYERS, Gate, Receiver, load_task, show, transfer, write_summary

SOURCES = {layer: layer - 3 for layer in range(4, LAYERS)}
LIMIT_US = 5.0
GROWTH_MB = 8.0


def receive_path(folder: str | None) -> tuple[Any, Any]:
    """A receiver, with a timeline into `folder` or as upstream has it; and the adapters' object, if any."""
    receiver = Receiver()
    if folder is None:
        return receiver, None
    from layerwise_sched.adapters.loads import Loads
    from layerwise_sched.adapters.process import Numbers
    from layerwise_sched.config import Config

    worker = SimpleNamespace(
        prefetch_layer_map=SOURCES, num_prefetch_layers=3, current_layer=0, use_block_key_layerwise=False
    )
    config = Config(timeline=folder, sample_us=0)
    loads = Loads(config, Numbers(config, {}), worker)
    loads.attach(receiver)
    return receiver, loads


def one_step(receiver: Any, loads: Any, transfers: list[list[Any]]) -> None:
    """Twelve layers: each enqueued behind a gate, its boundary and its source's save recorded, then received."""
    requests = receiver.request_queue
    if loads is not None:
        loads.begin_step()
    for layer in range(LAYERS):
        gate = Gate()
        source = SOURCES.get(layer)
        requests.put(load_task(layer, source, gate, transfers[layer]))
        gate.record()
        if source is not None:
            receiver.layer_save_finished_events[source].set()
            if loads is not None:
                loads.save_recorded(source, time.perf_counter_ns())
        begin = time.perf_counter_ns()
        receiver._handle_request(requests.get())
        if loads is not None:
            loads.stalled(layer, begin)
    if loads is not None:
        loads.end_step()


def block_us(receiver: Any, loads: Any, transfers: list[list[Any]], steps: int) -> float:
    """CPU microseconds a task over `steps` steps."""
    began = time.thread_time_ns()
    for _ in range(steps):
        one_step(receiver, loads, transfers)
    return (time.thread_time_ns() - began) / 1e3 / (steps * LAYERS)


def cost(blocks: int, steps: int) -> tuple[list[float], list[float], int]:
    """Microseconds a task of each block, off and on, and the rows that did not fit."""
    transfers = [[transfer()] for _ in range(LAYERS)]
    with tempfile.TemporaryDirectory() as folder:
        off, on = receive_path(None), receive_path(folder)
        times: tuple[list[float], list[float]] = ([], [])
        for receiver, loads in (off, on):
            block_us(receiver, loads, transfers, steps)
            on[1].numbers.spool.flush()
        gc.collect()
        gc.freeze()
        for number in range(blocks):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                receiver, loads = (off, on)[which]
                times[which].append(block_us(receiver, loads, transfers, steps))
                on[1].numbers.spool.flush()
        gc.unfreeze()
        on[1].numbers.spool.close()
        atexit.unregister(on[1].numbers.spool.close)  # its folder is gone by then
        return times[0], times[1], on[1].numbers.timeline.dropped


def recorder_us(blocks: int, tasks: int) -> tuple[list[float], list[float]]:
    """CPU microseconds a task of the rows alone, and of taking them out, of each block."""
    from layerwise_sched.model import DataPath, task_of
    from layerwise_sched.timeline import Code, Timeline

    timeline = Timeline()
    compute, receive, send = timeline.ring("compute"), timeline.ring("receive"), timeline.ring("send")
    # As the adapters do: members are bound once.
    spans = (Code.SAVE_CPU, Code.SAVE_NPU, Code.BUILD, Code.GATE_CONDITION, Code.GATE_NPU, Code.TRANSFER)
    gate_recorded, save_recorded, stall = Code.GATE_RECORDED, Code.SAVE_RECORDED, Code.STALL
    dequeue, send_wait, save_set, done, path = Code.DEQUEUE, Code.SEND_WAIT, Code.SAVE_SET, Code.DONE, DataPath.GVA
    times: list[float] = []
    drained: list[float] = []
    cid, groups, requests = 0, (0,), ("request-0",)
    for _ in range(blocks):
        began = time.thread_time_ns()
        for _ in range(tasks):
            cid += 1
            compute.task(task_of((cid, 7, 5, path, 2, 84, 2, groups, requests, True, False, False, False)), 3)
            compute.event(gate_recorded, 84, 5)
            compute.event(save_recorded, 2, 7)
            compute.span(stall, 5, cid)
            receive.event(dequeue, cid)
            for code in spans:
                receive.span(code, cid, cid)
            send.span(send_wait, 2, cid)
            send.event(save_set, 2, 7)
            receive.event(done, cid, 2)
        times.append((time.thread_time_ns() - began) / 1e3 / tasks)
        began = time.thread_time_ns()
        compute.take()
        receive.take()
        send.take()
        drained.append((time.thread_time_ns() - began) / 1e3 / tasks)
    return times, drained


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def growth(tasks: int) -> tuple[float, int]:
    """Resident memory that a million tasks added after the first tenth, MiB; rows dropped."""
    from layerwise_sched.model import Task
    from layerwise_sched.timeline import Code, Timeline

    timeline = Timeline()
    ring = timeline.ring("receive")
    spans = (Code.SAVE_CPU, Code.SAVE_NPU, Code.BUILD, Code.GATE_CONDITION, Code.GATE_NPU, Code.TRANSFER)
    base = 0.0
    for number in range(tasks):
        ring.task(Task(number, number // LAYERS, number % LAYERS, requests=("r",)), 1)
        ring.event(Code.DEQUEUE, number)
        for code in spans:
            ring.event(code, number, number, number)
        ring.event(Code.DONE, number)
        if number % 1_000 == 0:
            ring.take()
        if number == tasks // 10:
            base = resident_mb()
    return resident_mb() - base, timeline.dropped


def off_is_absent() -> bool:
    """The default configuration puts nothing in, and FIFO's `get` is the standard library's."""
    from layerwise_sched.config import Config
    from layerwise_sched.dispatch import Dispatcher
    from layerwise_sched.policy import make_policy
    from layerwise_sched.task_queue import TaskQueue

    fifo = TaskQueue(lambda item: item, Dispatcher(make_policy("fifo"), None))  # type: ignore[arg-type]
    return not Config().active and fifo.get.__func__ is queue.Queue.get  # type: ignore[attr-defined]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/timeline_cost"))
    parser.add_argument("--blocks", type=int, default=41)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="of the growth test")
    options = parser.parse_args()
    off, on, dropped = cost(options.blocks, steps=50)
    grown, lost = growth(options.tasks)
    absent = off_is_absent()
    pairs = [b - a for a, b in zip(off, on, strict=True)]
    rows_us, drained_us = recorder_us(options.blocks, 1_000)
    figures = {
        "on_us_per_task": round(statistics.median(rows_us), 3),
        "on_us_per_task_best": round(min(rows_us), 3),
        "drain_us_per_task": round(statistics.median(drained_us), 3),
        "hooked_us_per_task": round(statistics.median(pairs), 3),
        "plain_us_per_task": round(statistics.median(off), 3),
        "growth_mb": round(grown, 2),
        "growth_tasks": options.tasks,
        "dropped_rows": dropped + lost,
        "off_identical": int(absent),
    }
    rows = [{"figure": name, "value": value} for name, value in figures.items()]
    show("Timeline", ["figure", "value"], rows)
    passed = figures["on_us_per_task"] <= LIMIT_US and grown <= GROWTH_MB and absent and not figures["dropped_rows"]
    return write_summary(options.out, "timeline_cost", figures, rows, passed)


if __name__ == "__main__":
    sys.exit(main())
