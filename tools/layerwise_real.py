"""Results of the rig of real threads, as rows of the study: repeats, waits, verdict, and the simulator beside them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise_sched.hol import find
from layerwise_sched.policy import make_policy
from layerwise_sched.simulation import simulate, workload_of
from layerwise_sched.simulation.workload import ABSENT, StepTimes, Workload
from layerwise_sched.stages import totals
from layerwise_sched.summary import depths, quantile
from layerwise_sched.timeline_file import read
from layerwise_sched.verdict import Repeat, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.runs import Run

SKIPPED = 1  # the first step of a real-thread run warms up
WAITS = ("queue", "save_cpu", "save_npu", "gate_condition", "gate_npu", "slot_release")


def tails(values: list[int]) -> list[float]:
    """p50, p95 and p99 of nanoseconds, in microseconds."""
    ordered = sorted(values)
    return [quantile(ordered, q) / 1e3 for q in (0.5, 0.95, 0.99)]


def verdict_row(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON."""
    return {
        "answer": verdict.answer.value, "reasons": list(verdict.reasons), "gain_pct": round(verdict.gain_pct, 3),
        "least_gain_pct": round(verdict.least_gain_pct, 3), "noise_pct": round(verdict.noise_pct, 3),
        "tail_pct": round(verdict.tail_pct, 3),
    }  # fmt: skip


def real_rows(folder: Path) -> list[dict[str, Any]]:
    """One row a schedule and policy, from the rig's results: repeats, verdict, and the simulator on the same steps."""
    results: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "schedule" in result:
            results.setdefault((result["schedule"], result["policy"]), []).append(result)
    rows: list[dict[str, Any]] = []
    recordings: dict[str, list[Run]] = {}
    for (schedule, policy), found in sorted(results.items()):  # FIFO is the first of its schedule's, by its name
        row, runs = real_row(schedule, policy, found, recordings.get(schedule, []))
        rows.append(row)
        if policy == "fifo":
            recordings[schedule] = runs
    fifo = {row["schedule"]: row for row in rows if row["policy"] == "fifo"}
    for row in rows:
        base = fifo.get(row["schedule"])
        if row["policy"] != "fifo" and base is not None and len(base["repeats"]) == len(row["repeats"]):
            arms = [[Repeat(**repeat) for repeat in arm["repeats"]] for arm in (base, row)]
            row["verdict"] = verdict_row(judge(*arms))
    return rows


def real_row(
    schedule: str, policy: str, results: list[dict[str, Any]], fifo: list[Run]
) -> tuple[dict[str, Any], list[Run]]:
    """The repeats of one schedule under one policy, and their timelines; fifo: those of FIFO on the same schedule."""
    repeats: list[dict[str, Any]] = []
    replays: list[dict[str, Any]] = []
    peaks: list[dict[str, Any]] = []
    phases: dict[str, float] = {}
    steps = 0
    nominal: list[float] = []
    runs: list[Run] = []
    waits: dict[str, list[int]] = {name: [] for name in (*WAITS, "hol")}
    for result in results:
        times = sorted(result["step_ms"][SKIPPED:])
        faults = result["data_errors"] + result["open_leases"] + result["unfinished"]
        faults += len(result.get("stage_problems", [])) + int(bool(result.get("raised")))
        run = read(Path(result["timeline"])).run()
        peaks.append(depths(run))
        repeats.append(
            {"median_ms": statistics.median(times), "p99_ms": times[-1], "hol": result["hol"],
             "in_flight": peaks[-1]["in_flight_max"], "faults": faults}
        )  # fmt: skip
        for name, values in totals(run).items():
            phases[name.value] = phases.get(name.value, 0.0) + sum(values) / 1e6
            if name.value in waits:
                waits[name.value] += values
        phases["compute stalls"] = phases.get("compute stalls", 0.0) + sum(s.end - s.begin for s in run.stalls) / 1e6
        steps += len(run.steps)
        waits["hol"] += [event.duration_ns for event in find(run).events]
        replays.append(replay(run, policy))
        if "times" in result:
            nominal.append(from_schedule(run, result["times"], policy))
        runs.append(run)
    median_ms = statistics.median(repeat["median_ms"] for repeat in repeats)
    steps_ms = statistics.median((step.end - step.begin) / 1e6 for run in runs for step in run.steps[SKIPPED:])
    row = {
        "schedule": schedule, "policy": policy, "repeats": repeats, "impossible": results[0].get("impossible"),
        "median_ms": median_ms,
        "p99_ms": max(repeat["p99_ms"] for repeat in repeats),
        "hol_events": sum(repeat["hol"] for repeat in repeats),
        "hol_pairs": sorted({pair for result in results for pair in result["hol_pairs"]}),
        "passes": sum(result["counts"]["reordered"] for result in results),
        "in_flight": max(repeat["in_flight"] for repeat in repeats),
        "block_ranges": max(peak["block_ranges_max"] for peak in peaks),
        "hol_ms": sum(waits["hol"]) / 1e6,
        "data_errors": sum(result["data_errors"] for result in results),
        "open_leases": sum(result["open_leases"] for result in results),
        "unfinished": sum(result["unfinished"] for result in results),
        "waits_us": {name: tails(values) for name, values in waits.items()},
        "phases_ms": {name: round(ms / steps, 3) for name, ms in phases.items()},
        "timeline": results[0]["timeline"],
        "replay": {
            "steps": sum(found["steps"] for found in replays),
            "same_order": sum(found["same_order"] for found in replays),
            "median_off_pct": statistics.median(found["off_pct"] for found in replays),
            "worst_off_pct": max((found["off_pct"] for found in replays), key=abs),
            "schedule_off_pct": statistics.median(nominal) if nominal else None,
            "predicted_off_pct": predicted(fifo, policy, steps_ms) if fifo else None,
        },
    }  # fmt: skip
    return row, runs


def orders(run: Run) -> dict[int, list[int]]:
    """Layers in the order in which their loads were taken, by step."""
    found: dict[int, list[int]] = {}
    for task in run.served:
        found.setdefault(task.task.step, []).append(task.task.layer)
    return found


def replay(run: Run, policy: str) -> dict[str, Any]:
    """The recorded steps in the simulator under the same policy: steps, those of the same order, medians apart by."""
    again = simulate(workload_of(run).workload, make_policy(policy))
    simulated_orders = list(orders(again.run()).values())
    count = len(simulated_orders)
    real = statistics.median(step.end - step.begin for step in run.steps[-count:])
    return {
        "steps": count,
        "same_order": sum(a == b for a, b in zip(list(orders(run).values())[-count:], simulated_orders, strict=True)),
        "off_pct": 100 * (statistics.median(again.step_ns) - real) / real,
    }


def from_schedule(run: Run, times: dict[str, Any], policy: str) -> float:
    """How far the schedule's own times, simulated, are from the recorded median step, per cent: nothing measured."""
    assert run.plan is not None
    layers = run.plan.num_layers

    def ns(value: float | list[float | None]) -> list[int]:
        values = value if isinstance(value, list) else [value] * layers
        return [ABSENT if one is None else round(one * 1e9) for one in values]

    zero = [0] * layers
    step = StepTimes(
        ns(times["host"]), zero, zero, ns(times["attention"]), ns(times["rest"]), ns(times["load"]), ns(times["save"]),
        build=zero, submit=zero, finish=zero, handler=zero, slot=zero,
    )  # fmt: skip
    result = simulate(Workload(run.plan, [step]), make_policy(policy))
    real = statistics.median(one.end - one.begin for one in run.steps[SKIPPED:])
    return 100 * (result.step_ns[0] - real) / real


def predicted(fifo: Sequence[Run], policy: str, median_ms: float) -> float:
    """How far FIFO's recordings, replayed under another policy, are from that policy's real median, per cent."""
    what_if = [statistics.median(simulate(workload_of(run).workload, make_policy(policy)).step_ns) for run in fifo]
    return 100 * (statistics.median(what_if) / 1e6 - median_ms) / median_ms
