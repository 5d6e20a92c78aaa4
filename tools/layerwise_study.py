"""The layer-wise study: simulate every cell, run the decisive ones on real threads, join, judge, write the packet.

`simulate` and `join` need the packages only; the real threads need a pair's environment (`nox -s layerwise-study` does
all of it). Results lie in out/layerwise-study/, the packet in docs/layerwise/. What was made stays and is not made
again: delete a file to have it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import layerwise_packet
from layerwise_cells import ENGINE_BASE, POLICIES, Cell, engine_runs, real_runs, simulated
from layerwise_real import WAITS, real_rows, tails, verdict_row
from layerwise_sched.checker import check_run
from layerwise_sched.hol import find
from layerwise_sched.policy import make_policy
from layerwise_sched.simulation import buffers_in_use, generate, simulate
from layerwise_sched.stages import Stage, check, totals
from layerwise_sched.summary import depths, quantile, summarise
from layerwise_sched.timeline_file import find_timelines, read
from layerwise_sched.verdict import Repeat, judge

REPEATS = 5
REAL_STEPS = 6
REPLAY_PCT = 5.0
"""How far a replay's median step time may be from the recorded one."""


def cell_row(cell: Cell, repeats: int) -> dict[str, Any]:
    """One simulated cell under every policy, over `repeats` seeds."""
    row: dict[str, Any] = {
        "name": cell.name, "path": cell.path, "reuse": cell.reuse, "prefetch": cell.prefetch, "layout": cell.layout,
        "batch": cell.batch, "regime": cell.regime, "default": cell.default, "policies": {},
    }  # fmt: skip
    arms: dict[str, list[Repeat]] = {}
    for policy in POLICIES:
        seen = [simulate(generate(cell.spec, seed), make_policy(policy)) for seed in range(repeats)]
        waits: dict[str, list[int]] = {name: [] for name in (*WAITS, "hol")}
        arms[policy], events, passes, faults, lasted = [], 0, 0, 0, 0
        for result in seen:
            run = result.run()
            found = find(run)
            wrong = len(check(run)) + len(check_run(run)) + len(run.tasks) - len(run.complete)
            times = sorted(result.step_ns)
            peak = depths(run)
            arms[policy].append(
                Repeat(quantile(times, 0.5) / 1e6, quantile(times, 0.99) / 1e6, len(found.events),
                       peak["in_flight_max"], wrong)
            )  # fmt: skip
            for name, values in totals(run).items():
                if name.value in waits:
                    waits[name.value] += values
            waits["hol"] += [event.duration_ns for event in found.events]
            events += len(found.events)
            passes += result.counts.reordered
            faults += wrong + result.counts.faults
            lasted += sum(event.duration_ns for event in found.events)
        row["policies"][policy] = {
            "median_ms": statistics.median(repeat.median_ms for repeat in arms[policy]),
            "p99_ms": max(repeat.p99_ms for repeat in arms[policy]),
            "hol_events": events, "hol_ms": lasted / 1e6, "passes": passes, "faults": faults,
            "in_flight": max(repeat.in_flight for repeat in arms[policy]),
            "waits_us": {name: tails(values) for name, values in waits.items()},
        }  # fmt: skip
    plan = generate(cell.spec).plan
    row |= {"slots": buffers_in_use(plan), "depth": plan.prefetch_layers}
    row["verdicts"] = {policy: verdict_row(judge(arms["fifo"], arms[policy])) for policy in POLICIES[1:]}
    return row


def recorded(folder: Path) -> dict[str, Any]:
    """What an engine's timeline shows; dashes where none was on."""
    if not folder.is_dir():
        names = ("tasks", "events", "event ms", "unexplained", "step ms", "in flight", "block ranges", "leases at most")
        return dict.fromkeys(names)
    runs = [read(path).run() for path in find_timelines(folder)]
    found, peaks = [summarise(run) for run in runs], [depths(run) for run in runs]
    waits = {stage.value: [ns for run in runs for ns in totals(run)[stage]] for stage in Stage if stage in WAITS}
    return {
        "tasks": sum(one["tasks"]["count"] for one in found),
        "events": sum(one["hol"]["events"] for one in found),
        "event ms": sum(one["hol"]["duration"]["total_ms"] for one in found),
        "unexplained": sum(one["explained"]["problems"] for one in found),
        "step ms": found[0]["steps"]["median_ms"],
        "in flight": max(peak["in_flight_max"] for peak in peaks),
        "block ranges": max(peak["block_ranges_max"] for peak in peaks),
        "leases at most": max((peak["leases_max"] or 0 for peak in peaks), default=0),
        "waits_us": {name: tails(values) for name, values in waits.items()},
    }


def engine_rows(folder: Path) -> list[dict[str, Any]]:
    """One row an engine: tokens against the engine without a connector, leases, tasks, and what its timeline shows."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    base = found.get(ENGINE_BASE)
    rows = []
    for name, result in found.items():
        if name == ENGINE_BASE or base is None or "error" in result:
            continue
        rounds = [key for key in base if key.startswith("tokens_")]
        same = sum(result[key] == base[key] for key in rounds)
        made = sum(len(tokens) for key in rounds for tokens in result[key])
        first = [value for key, values in result.items() if key.startswith("first_token_s_") for value in values]
        seen = recorded(folder / f"{name}.timelines")
        rows.append(
            {"engine": name, "tokens equal": f"{same}/{len(rounds)} rounds",
             "TTFT median ms": statistics.median(first) * 1e3 if first else None,
             "tokens/s": made / sum(result[key.replace("tokens", "seconds")] for key in rounds),
             "peak host MB": round(result["peak_mb"]), "open leases": result["open_leases"],
             "unfinished": result["unfinished"], "passes": result.get("counts", {}).get("reordered"), **seen,
             "equal": same == len(rounds)}
        )  # fmt: skip
    return rows


def summary(cells: list[dict[str, Any]], real: list[dict[str, Any]], engine: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary file: figures as the issue names them, verdicts as rows."""
    with_events = [cell for cell in cells if cell["policies"]["fifo"]["hol_events"]]
    gains = [cell["verdicts"]["ready"]["gain_pct"] for cell in with_events]
    faults = sum(arm["faults"] for cell in cells for arm in cell["policies"].values())
    figures = {
        "cells": len(cells),
        "hol_cells": len(with_events),
        "real_thread_cells": len({row["schedule"] for row in real}),
        "data_errors": sum(row["data_errors"] for row in real),
        "open_leases": sum(row["open_leases"] for row in real) + sum(row["open leases"] or 0 for row in engine),
        "unfinished_tasks": sum(row["unfinished"] for row in real) + sum(row["unfinished"] or 0 for row in engine),
        "engine_cells": len(engine),
        "engine_tokens_differ": sum(not row["equal"] for row in engine),
        "simulated_faults": faults,
        "steps_replayed": sum(row["replay"]["steps"] for row in real),
        "steps_in_another_order": sum(row["replay"]["steps"] - row["replay"]["same_order"] for row in real),
        "replay_off_worst_pct": round(max((abs(row["replay"]["median_off_pct"]) for row in real), default=0.0), 3),
        "gain_ready_median_pct": round(statistics.median(gains), 3) if gains else 0.0,
    }
    rows: list[dict[str, Any]] = layerwise_packet.verdicts(cells, real)
    clean = not (faults or figures["data_errors"] or figures["open_leases"] or figures["unfinished_tasks"])
    clean = clean and not figures["engine_tokens_differ"] and not figures["steps_in_another_order"]
    clean = clean and figures["replay_off_worst_pct"] <= REPLAY_PCT
    return {
        "name": "layerwise-study", "version": 1, "pair": os.environ.get("KIT_PAIR"), "seed": 0,
        "host": {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "figures": figures, "rows": rows, "engine": engine,
        "passed": clean and len(cells) >= 100 and figures["real_thread_cells"] >= 10,
    }  # fmt: skip


def write(path: Path, value: object) -> None:
    """JSON, complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def done(path: Path) -> bool:
    """Whether a run has a result that is no error."""
    return path.exists() and "error" not in json.loads(path.read_text(encoding="utf-8"))


def cell_path(out: Path, cell: Cell) -> Path:
    """Where a cell's result lies, whatever its place in the matrix."""
    return out / "cells" / f"{hashlib.sha256(cell.name.encode()).hexdigest()[:12]}.json"


def simulate_cells(out: Path, repeats: int, at_most: int | None) -> None:
    """Every cell that has no result yet, or the first `at_most` of them."""
    from rich.progress import track

    wanted = []
    for cell in simulated():
        path = cell_path(out, cell)
        if not path.exists():
            wanted.append((path, cell))
    for path, cell in track(wanted[:at_most], description="simulating cells", transient=True):
        write(path, cell_row(cell, repeats))


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="layerwise_study", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("simulate", "job", "join"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--packet", type=Path, help="join: folder of the packet to write")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="independent repeats, at least 3 for a verdict")
    parser.add_argument("--at-most", type=int, help="simulate: cells in this call; the next one goes on")
    options = parser.parse_args(argv)
    if options.command == "simulate":
        simulate_cells(options.out, options.repeats, options.at_most)
        return 0
    if options.command == "job":
        jobs = {
            "layerwise_run": ("real", real_runs(options.repeats, REAL_STEPS)),
            "layerwise_engine": ("engine", engine_runs()),
        }
        for name, (folder, runs) in jobs.items():
            target = (options.out / folder).resolve()
            target.mkdir(parents=True, exist_ok=True)
            left = [run for run in runs if not done(target / f"{run['name']}.json")]
            write(options.out / f"{name}.json", {"folder": str(target), "runs": left})
            print(f"{name}: {len(left)} of {len(runs)} runs left")
        return 0
    paths = [path for cell in simulated() if (path := cell_path(options.out, cell)).exists()]
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    real = real_rows(options.out / "real")
    engine = engine_rows(options.out / "engine")
    found = summary(cells, real, engine)
    write(options.out / "summary.json", found)
    if options.packet is not None:
        layerwise_packet.write_packet(options.packet, cells, real, engine, found)
    print(json.dumps(found["figures"]))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
