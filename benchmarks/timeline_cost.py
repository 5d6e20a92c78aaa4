"""What a timeline costs: nothing while it is off, microseconds a task while it is on, no growth over a million tasks.

*On*: the recorder's own work for one task of the fullest kind (GVA with a source and a gate), through the adapters' own
objects: its facts, its 20 readings of the clock (the begins of spans too), its 14 events in 4 rows. The drainer's
thread takes the rows out (`drain_us_per_task`), writes and empties the files (`spool_us_per_task`, all of its work).
*Hooked*: all that the adapters add around upstream's waits and calls, views and marks included, on a receive thread's
surroundings in which nothing has to be waited for; CPU time of the one thread that does all three sides' host work, on
minus off, in blocks that alternate. The wrappers of the worker's two methods a layer are not in it: they need upstream.
*Yardstick*: 15 readings of the clock, and one call of an empty Python function, measured in the same blocks as *on*:
on a busy host compare `on_per_15_clocks`. A block is the 100 tasks that lie in the rings between two drains at 500
tasks a second. What else runs on a host only adds, so the limit is held against the fastest tenth of the blocks
(`on_us_per_task_p10`); the median stands beside it.
*Off*: with policy fifo and no timeline the configuration puts nothing in, and the queue's `get` under FIFO is the
standard library's. (The engine tests show that a running worker's methods are identical.) *Growth*: a million tasks'
rows through one ring that is emptied meanwhile; resident memory after a tenth, and after all.
"""

# env: light

from __future__ import annotations

import argparse
import array
import atexit
import gc
import queue
import statistics
import sys
import tempfile
import threading
import time
import timeit
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from _layerwise_bench import LAYERS, Gate, Receiver, load_task, show, transfer, write_summary

SOURCES = {layer: layer - 3 for layer in range(4, LAYERS)}
LIMIT_US = 5.0
GROWTH_MB = 8.0
TASKS = 100  # of a block: what lies in the rings at 500 tasks a second, emptied every 0.2 s


class Threads(NamedTuple):
    """Upstream's three threads' objects, and the adapters' where they are put in."""

    receiver: Receiver
    saves: list[Any]  # CPU events, as the send thread has them
    sender: SimpleNamespace
    loads: Any


def threads(numbers: Any) -> Threads:
    """With a timeline, that of `numbers`; None: as upstream has it."""
    receiver = Receiver()
    saves = list(receiver.layer_save_finished_events)
    sender = SimpleNamespace(sync_save_events=list(receiver.sync_save_events))
    if numbers is None:
        return Threads(receiver, saves, sender, None)
    from layerwise_sched.adapters.loads import Loads
    from layerwise_sched.config import Config

    worker = SimpleNamespace(
        prefetch_layer_map=SOURCES, num_prefetch_layers=3, current_layer=0, use_block_key_layerwise=False,
        kv_send_thread=sender,
    )  # fmt: skip
    loads = Loads(Config(timeline="on", sample_us=0), numbers, worker)
    loads.attach(receiver)
    return Threads(receiver, saves, sender, loads)


def timeline_without_a_drainer(folder: str) -> Any:
    """The numbers of a process whose spool is emptied by hand only."""
    from layerwise_sched.adapters.process import Numbers
    from layerwise_sched.config import Config
    from layerwise_sched.spool import Spool
    from layerwise_sched.timeline import Timeline

    numbers = Numbers(Config(), {})
    numbers.timeline = Timeline()
    numbers.spool = Spool(numbers.timeline, folder)
    return numbers


def one_step(path: Threads, transfers: list[list[Any]]) -> None:
    """Twelve layers: a load enqueued behind a gate, the boundary and the save recorded, the source saved, the load
    received.
    """
    receiver, saves, sender, loads = path
    requests = receiver.request_queue
    if loads is not None:
        loads.begin_step()
    for layer in range(LAYERS):
        gate, source = Gate(), SOURCES.get(layer)
        begin = time.perf_counter_ns()
        requests.put(load_task(layer, source, gate, transfers[layer]))
        if loads is not None:
            loads.stalled(layer, begin)
            loads.name_gate(gate)
        gate.record()
        recorded = time.perf_counter_ns()
        if loads is not None:
            loads.save_recorded(layer, recorded)
        if source is not None:
            sender.sync_save_events[source].synchronize()
            saves[source].set()
        receiver._handle_request(requests.get())
    if loads is not None:
        loads.end_step()


def block_us(path: Threads, transfers: list[list[Any]], steps: int) -> float:
    """CPU microseconds a task over `steps` steps."""
    began = time.thread_time_ns()
    for _ in range(steps):
        one_step(path, transfers)
    return (time.thread_time_ns() - began) / 1e3 / (steps * LAYERS)


def cost(blocks: int, steps: int) -> tuple[list[float], list[float], int]:
    """Microseconds a task of each block, off and on, and the rows that did not fit."""
    transfers = [[transfer()] for _ in range(LAYERS)]
    from layerwise_sched.adapters.process import Numbers
    from layerwise_sched.config import Config

    with tempfile.TemporaryDirectory() as folder:
        numbers = Numbers(Config(timeline=folder), {})
        assert numbers.spool is not None
        assert numbers.timeline is not None
        paths = threads(None), threads(numbers)
        times: tuple[list[float], list[float]] = ([], [])
        for path in paths:
            block_us(path, transfers, steps)
            numbers.spool.flush()
        gc.collect()
        gc.freeze()
        for number in range(blocks):
            order = (0, 1) if number % 2 else (1, 0)
            for which in order:
                times[which].append(block_us(paths[which], transfers, steps))
                numbers.spool.flush()
        gc.unfreeze()
        numbers.spool.close()
        atexit.unregister(numbers.spool.close)  # its folder is gone by then
        return times[0], times[1], numbers.timeline.dropped


class Recorded(NamedTuple):
    """Of each block: CPU microseconds a task of the rows, of taking them out, of all the drainer's work; and the
    yardsticks, us.
    """

    rows: list[float]
    drained: list[float]
    spooled: list[float]
    clocks: list[float]
    calls: list[float]


def recorder_us(blocks: int, tasks: int) -> Recorded:
    """The recorder alone."""
    from layerwise_sched import rows
    from layerwise_sched.adapters.marks import GateMark
    from layerwise_sched.model import DataPath, task_of
    from layerwise_sched.timeline import ENQUEUE

    now, path, request, cid = time.perf_counter_ns, DataPath.GVA, "request-0", 0
    enqueue, group, ident = ENQUEUE, 0, threading.get_ident
    found = Recorded([], [], [], [], [])
    with tempfile.TemporaryDirectory() as folder:
        numbers = timeline_without_a_drainer(folder)
        loads, here = threads(numbers).loads, numbers.timeline.here
        computing, sending, serving = loads.computing, loads.sending, loads.serving
        stamps, mark, taken = serving.stamps, GateMark(84, 5, loads), []
        save, save_end, npu, npu_end = rows.SAVE_CPU, rows.SAVE_CPU_END, rows.SAVE_NPU, rows.SAVE_NPU_END
        build, build_end, call, call_end = rows.BUILD, rows.BUILD_END, rows.CALL, rows.CALL_END
        gate, gate_open, gate_end = rows.GATE, rows.GATE_OPEN, rows.GATE_END
        for number in range(blocks):
            began = time.thread_time_ns()
            for _ in range(tasks):
                cid += 1
                task = task_of((cid, 7, 5, path, 2, 84, 2, (group,), (request,), True, False, False, False))
                here.put((enqueue, now(), task, 3))  # the compute thread: its queue writes as here
                computing.stalled(5, now())
                computing.gate = mark
                mark.opened = now()
                if mark is not computing.gate:
                    computing.opened(mark)
                computing.saved(5, now())
                sending.begin = now()  # the send thread: its view stamps as here
                sending.end = now()
                sending.thread = ident()
                sending.layer = 2
                sending.save_set(7, 2)
                serving.taken(task, 0)  # the receive thread: its views stamp as here
                stamps[save] = now()
                stamps[save_end] = now()
                stamps[npu] = now()
                stamps[npu_end] = now()
                stamps[build] = now()
                stamps[build_end] = now()
                stamps[gate] = now()
                stamps[gate_end] = stamps[gate_open] = now()
                stamps[call] = now()
                stamps[call_end] = now()
                serving.done(cid, 2)
            found.rows.append((time.thread_time_ns() - began) / 1e3 / tasks)
            began = time.thread_time_ns()
            if number % 2:
                numbers.spool.flush()
                found.spooled.append((time.thread_time_ns() - began) / 1e3 / tasks)
            else:
                taken, _ = here.ring.take()
                array.array("q").fromlist(list(chain.from_iterable(taken)))
                found.drained.append((time.thread_time_ns() - began) / 1e3 / tasks)
            yardsticks(found, tasks)
        if number_of_events(taken) != 14 * tasks or numbers.timeline.dropped:
            raise SystemExit(f"{len(taken)} rows of {tasks} tasks: not the events of the fullest kind")
    return found


def number_of_events(taken: list[tuple[int, ...]]) -> int:
    """What a reader of the rows will see."""
    from layerwise_sched.rows import expand

    return sum(len(expand(row)) for row in taken)


def empty() -> None:
    """One Python call."""


def yardsticks(found: Recorded, times: int) -> None:
    """15 readings of the clock, and 15 empty calls for one."""
    fifteen = ";".join(["call()"] * 15)
    for call, into, each in ((time.perf_counter_ns, found.clocks, 1), (empty, found.calls, 15)):
        timer = timeit.Timer(fifteen, timer=time.thread_time, globals={"call": call})
        into.append(timer.timeit(times) * 1e6 / times / each)


def resident_mb() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def growth(tasks: int) -> tuple[float, int]:
    """Resident memory that a million tasks added after the first tenth, MiB; rows dropped."""
    from layerwise_sched import rows
    from layerwise_sched.model import Task
    from layerwise_sched.timeline import Timeline

    timeline, base = Timeline(), 0.0
    ring, now = timeline.ring("receive"), time.perf_counter_ns
    for number in range(tasks):
        ring.task(Task(number, number // LAYERS, number % LAYERS, requests=("r",)), 1)
        stamps = [now() for _ in range(rows.RECEIVED_WIDTH - 3)]
        ring.put((rows.PACKED_RECEIVED, number, 0, *stamps))
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
    recorded = recorder_us(10 * options.blocks, TASKS)
    on_us, clocks_us = statistics.median(recorded.rows), statistics.median(recorded.clocks)
    figures = {
        "on_us_per_task": round(on_us, 3),
        "on_us_per_task_p10": round(statistics.quantiles(recorded.rows, n=10)[0], 3),
        "on_per_15_clocks": round(on_us / clocks_us, 2),
        "clock_15_us": round(clocks_us, 3),
        "empty_call_us": round(statistics.median(recorded.calls), 3),
        "drain_us_per_task": round(statistics.median(recorded.drained), 3),
        "spool_us_per_task": round(statistics.median(recorded.spooled), 3),
        "hooked_us_per_task": round(statistics.median(pairs), 3),
        "plain_us_per_task": round(statistics.median(off), 3),
        "growth_mb": round(grown, 2),
        "growth_tasks": options.tasks,
        "dropped_rows": dropped + lost,
        "off_identical": int(absent),
    }
    rows = [{"figure": name, "value": value} for name, value in figures.items()]
    show("Timeline", ["figure", "value"], rows)
    passed = figures["on_us_per_task_p10"] <= LIMIT_US and grown <= GROWTH_MB and absent and not figures["dropped_rows"]
    return write_summary(options.out, "timeline_cost", figures, rows, passed)


if __name__ == "__main__":
    sys.exit(main())
