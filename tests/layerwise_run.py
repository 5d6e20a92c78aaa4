"""Real receive threads in one process: ``python layerwise_run.py JOB.json`` or `run(spec, folder)`.

The job: ``folder`` and ``runs``; each run names a schedule, and may name changes to it, a policy, whether a timeline is
on, the number of steps and a fault to plant. One result file a run, written as it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from layerwise_schedules import SCHEDULES, Schedule


def activate() -> None:
    """The simulator's stand-ins: torch_npu is imported by the sources under test."""
    import ascend_sim

    ascend_sim.activate()


def schedule_of(spec: dict[str, Any]) -> Schedule:
    """A schedule of the table with the run's changes; JSON has no sets and no integer keys."""
    changes = dict(spec.get("changes", {}))
    for name in ("other_spec", "no_save", "no_load"):
        if name in changes:
            changes[name] = frozenset(changes[name])
    if "late" in changes:
        changes["late"] = {int(layer): seconds for layer, seconds in changes["late"].items()}
    schedule = replace(SCHEDULES[spec["schedule"]], **changes)
    slower = spec.get("slower", 1)  # every time of the schedule, so that a thread's wake-up is small against each
    times = {name: getattr(schedule, name) * slower for name in ("attention", "rest", "host", "load", "save")}
    return replace(schedule, **times, late={layer: late * slower for layer, late in schedule.late.items()})


def nominal(schedule: Schedule) -> dict[str, Any]:
    """The schedule's own times, seconds a layer, None where there is nothing to move: what a simulator is given."""
    layers = range(schedule.layers)
    loads = [None if layer in schedule.no_load else schedule.load for layer in layers]
    saves = [
        schedule.save + schedule.late.get(layer, 0.0) if schedule.saves and layer not in schedule.no_save else None
        for layer in layers
    ]
    return {
        "host": schedule.host, "attention": schedule.attention, "rest": schedule.rest, "load": loads,
        "save": saves,
    }  # fmt: skip


def run(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """One rig: its step times, its errors, and what the package saw."""
    from layerwise_faults import plant
    from layerwise_rig import Rig
    from layerwise_sched.adapters import install
    from layerwise_sched.config import parse
    from layerwise_stream import device_stream

    schedule = schedule_of(spec)
    timeline = folder / f"{spec['name']}.timelines" if spec.get("timeline", True) else None
    if timeline is not None:
        shutil.rmtree(timeline, ignore_errors=True)
    key = {"policy": spec.get("policy", "fifo"), "strict": True, **spec.get("config", {})}
    if "control" in spec:  # the control file's content
        control = folder / f"{spec['name']}.control"
        control.write_text(spec["control"])
        key["control"] = str(control)
    config = parse({**key, "timeline": str(timeline)} if timeline is not None else key)
    adopt = None
    if config.active:
        hooks = install.put_in()
        adopt = lambda worker: hooks.adopt(worker, config)  # noqa: E731
    result: dict[str, Any] = {"name": spec["name"], "schedule": schedule.name, "policy": config.policy}
    pool, master = None, None
    if spec.get("pool") == "mooncake":
        from layerwise_mooncake import Master, make_pool

        master = Master(folder)
        pool = make_pool(master)
        pool.kill_at = spec.get("kill_at")
    with device_stream() as stream:
        rig = Rig(schedule, stream, pool=pool, adopt=adopt)
        undo = plant(spec.get("fault"), rig)
        started = time.perf_counter()
        seconds = []
        try:
            for number in range(spec.get("steps", 3)):
                if (policy := spec.get("switch", {}).get(str(number))) is not None:
                    rig.loads.use(policy)
                seconds.append(rig.step())
        except BaseException as error:
            rig.waiting = None
            result["raised"] = f"{type(error).__name__}: {error}"
            result["cause"] = f"{type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ else None
            result["raised_at"] = traceback.extract_tb(error.__traceback__)[-1].name
            settle(rig)
        finally:
            undo()
        result |= {
            "step_ms": [round(value * 1e3, 3) for value in seconds],
            "wall_s": round(time.perf_counter() - started, 3),
            "errors": rig.errors[:5],
            "data_errors": len(rig.errors),
            "open_leases": len(rig.pool.open_leases()),
            "unfinished": rig.unfinished(),
            "alive": rig.worker.kv_recv_thread.is_alive(),
            "invalid_blocks": sorted(rig.worker._invalid_block_ids),
            "most_in_flight": dict(rig.pool.most_in_flight),
            "sources": {str(layer): source for layer, source in rig.layout.sources.items()},
            "prefetch": rig.layout.prefetch,
            "times": nominal(schedule),
            "queue_class": type(rig.queue).__name__,
            "own_get": "get" in vars(rig.queue),
        }
        if rig.loads is not None:
            result |= seen(rig, timeline)
    if master is not None:
        result["commits"] = pool.commits
        if master.process.poll() is None:
            pool.store.close()  # else its client looks for the master for ever
            master.kill()
    return result


def settle(rig: Any) -> None:
    """Behind an exception: until the receive thread does nothing more, so that what is left over is the same always."""
    receiver = rig.worker.kv_recv_thread
    if receiver._fatal_error is not None:
        receiver.join(timeout=10)
    last, since, end = -1, time.monotonic(), time.monotonic() + 10
    while time.monotonic() < end and time.monotonic() - since < 1:
        if (left := rig.unfinished()) != last:
            last, since = left, time.monotonic()
        time.sleep(0.05)


def seen(rig: Any, timeline: Path | None) -> dict[str, Any]:
    """What the package counted, and what its timeline shows."""
    from layerwise_sched import hol, stages
    from layerwise_sched.timeline_file import find_timelines, read

    counts = rig.loads.queue.dispatcher.counts
    found: dict[str, Any] = {"counts": {name: getattr(counts, name) for name in type(counts).__slots__}}
    broken = rig.loads.queue.dispatcher.broken
    found["broken"] = None if broken is None else str(broken)
    if rig.loads.sampler is not None:
        rig.loads.sampler.close()
    if timeline is None:
        return found
    rig.loads.numbers.spool.close()
    (path,) = find_timelines(timeline)
    recorded = read(path).run()
    events = hol.find(recorded)
    pairs = Counter(
        f"{event.layer}>{later.run.task.layer}:{event.missing.name}" for event in events.events for later in event.later
    )
    saves = [bool(rig.schedule.saves) and layer not in rig.schedule.no_save for layer in range(rig.schedule.layers)]
    reason = hol.impossible(rig.loads.plan, saves)
    return found | {
        "timeline": str(path),
        "tasks": len(recorded.tasks),
        "complete": len(recorded.complete),
        "dropped": recorded.dropped,
        "orphans": recorded.orphans,
        "steps_recorded": len(recorded.steps),
        "stage_problems": [f"{problem.cid}: {problem.reason}" for problem in stages.check(recorded)][:5],
        "stage_ms": {name.value: round(sum(values) / 1e6, 3) for name, values in stages.totals(recorded).items()},
        "hol": len(events.events),
        "hol_ms": round(sum(event.duration_ns for event in events.events) / 1e6, 3),
        "hol_potential_ms": round(sum(event.potential_ns for event in events.events) / 1e6, 3),
        "hol_pairs": dict(pairs),
        "hol_unknown": events.unknown,
        "hol_empty": events.empty,
        "hol_held": sum(event.held for event in events.events),
        "impossible": None if reason is None else reason.name,
        "order": [found.task.layer for found in recorded.served],
        "failed": sum(found.failed is not None for found in recorded.tasks.values()),
        "policies": [[name, fallback] for _, name, fallback in recorded.policies],
    }


def main(arguments: list[str]) -> int:
    """Run a job; 1 where a run raised what no fault explains."""
    job = json.loads(Path(arguments[0]).read_text())
    folder = Path(job["folder"])
    if any(spec.get("pool") == "mooncake" for spec in job["runs"]):
        sys.path.insert(0, os.environ["KIT_MOONCAKE"])  # before the simulator puts a stand-in where none is installed
    activate()
    failed = False
    for spec in job["runs"]:
        try:
            result = run(spec, folder)
        except BaseException as error:
            failed = True
            result = {"name": spec["name"], "error": repr(error), "trace": traceback.format_exc()}
        partial = folder / f"{spec['name']}.partial"
        partial.write_text(json.dumps(result, indent=1))
        partial.replace(folder / f"{spec['name']}.json")
        line = {key: result.get(key) for key in ("hol", "data_errors", "unfinished", "open_leases", "raised", "error")}
        print(spec["name"], line, flush=True)
    return int(failed)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # the threads under test are daemons that wait for ever
