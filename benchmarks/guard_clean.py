"""No false alarm: real engines, and the real Scheduler + KVCacheManager, under random loads, with the guard on.

Two parts, in segments that leave one file each, so that a stopped run goes on where it was; every seed is in its file.
The engine part runs real engines (interpreted and fast kernels). The scheduler part runs the real scheduler without a
model: its plans come from the release's own block-table and slot code, fed by its own decisions. With `--part` only
one is run; the summary always adds up everything that has a result.
"""

# env: engine

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != HERE]
sys.path.append(str(HERE))  # behind all others: a sibling may have the name of a library

import _guard_clean  # noqa: E402
from _guard_common import write_summary  # noqa: E402

CHUNK = 5_000
# Steps of a chunk in Triton's interpreter, which takes fifty times as long; seeds of one round.
INTERPRETED, ROUND = 200, 4
TARGETS = {"engine_steps_interpreted": 20_000, "engine_steps_fast": 200_000, "scheduler_steps": 1_000_000}


def scheduler_part(folder: Path, steps: int, chunk: int, seconds: float) -> None:
    """Run chunks until `steps` steps have a result, or the time is up (no new chunk is begun then).

    One process works through many chunks, since loading vLLM takes longer than a chunk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    first = 1
    while True:
        for mode in ("plain", "ascend"):
            done = sum(row["steps"] for row in scheduler_rows(folder))
            left = seconds - (time.monotonic() - begin)
            if done >= steps or left <= 0:
                print(f"{done} of {steps} steps have a result", flush=True)
                return
            run_chunks(folder, missing(folder, mode, first, chunk, steps - done), left)
        first += ROUND


def missing(folder: Path, mode: str, first: int, chunk: int, steps: int) -> list[dict[str, Any]]:
    """Chunks of one mode and round of seeds that have no result, as many as `steps` steps need."""
    from _guard_scheduler import SEGMENTS, mode_of

    jobs: list[dict[str, Any]] = []
    for seed in range(first, first + ROUND):
        for name, segment in SEGMENTS.items():
            if mode_of(name) != mode or (folder / f"{name}-{seed}.json").exists() or steps <= 0:
                continue
            size = min(chunk, INTERPRETED) if segment.get("kernels") == "interpreter" else chunk
            jobs.append({"folder": str(folder), "segment": name, "seed": seed, "steps": size})
            steps -= size
    return jobs


def run_chunks(folder: Path, jobs: list[dict[str, Any]], seconds: float) -> None:
    """One process over the jobs; stops with an error where it ends badly."""
    if not jobs:
        return
    path = folder / "jobs.txt"
    path.write_text(json.dumps({"jobs": jobs, "seconds": min(seconds, 1e9)}))
    command = [sys.executable, str(HERE / "_guard_scheduler.py"), str(path)]
    with (
        (folder / "last.log").open("w") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("@"):
                row = json.loads(line[1:])
                print(
                    f"{row['name']} seed {row['seed']}: {row['steps']} steps, {row['false_alarms']} alarms", flush=True
                )
    if process.returncode:
        raise SystemExit(f"the scheduler part ended with {process.returncode}: see {folder / 'last.log'}")


def scheduler_rows(folder: Path) -> list[dict[str, Any]]:
    """Every chunk that has a result."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return [{key: value for key, value in row.items() if key not in ("coverage", "fast_kernels")} for row in rows]


def bytes_per_block() -> tuple[float, list[dict[str, Any]]]:
    """Bytes of the mirror per live block, by the slope between few and many live blocks."""
    from kv_plan_guard import Config, GroupLayout, Guard, Layout, NewRequest, StepFacts

    rows = []
    for requests in (8, 64, 512):
        each = 200
        guard = Guard(Config(enabled=True, replay_files=0), Layout((GroupLayout("full", 128, 1 << 18),)))
        new = [
            NewRequest(f"r{at}", (list(range(1 + at * each, 1 + (at + 1) * each)),), each * 128 - 1)
            for at in range(requests)
        ]
        guard.observe(StepFacts(1, {request.req_id: 1 for request in new}, new))
        rows.append({"live_blocks": requests * each, "bytes": guard.nbytes()})
    few, many = rows[0], rows[-1]
    return (many["bytes"] - few["bytes"]) / (many["live_blocks"] - few["live_blocks"]), rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/guard_clean"))
    parser.add_argument("--part", choices=("engine", "scheduler", "none", "all"), default="all")
    parser.add_argument("--steps", type=int, default=TARGETS["scheduler_steps"], help="steps of the scheduler part")
    parser.add_argument("--chunk", type=int, default=CHUNK, help="steps per chunk of the scheduler part")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no new chunk after so long")
    parser.add_argument("--engine-steps", type=int, default=1600, help="steps per segment of the engine part")
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    out: Path = options.out
    begin = time.monotonic()
    if options.part in ("scheduler", "all"):
        scheduler_part(out / "scheduler", options.steps, options.chunk, options.seconds)
    if options.part in ("engine", "all"):
        for kernels, steps in (("interpreted", options.engine_steps), ("fast", 10 * options.engine_steps)):
            left = options.seconds - (time.monotonic() - begin)
            _guard_clean.engine_part(out / "engine", steps, kernels, options.seed, "ascend", seconds=left)
    return summary(out, options.seed)


def summary(out: Path, seed: int) -> int:
    """Add everything up; 0 if nothing was found and every target is reached."""
    scheduler = scheduler_rows(out / "scheduler")
    engine = _guard_clean.sum_up(out / "engine")
    per_block, memory = bytes_per_block()
    figures = {
        "engine_steps": engine["engine_steps"],
        "engine_steps_interpreted": engine["engine_steps_interpreted"],
        "engine_steps_fast": engine["engine_steps_fast"],
        "scheduler_steps": sum(row["steps"] for row in scheduler),
        "false_alarms": engine["engine_false_alarms"] + sum(row["false_alarms"] for row in scheduler),
        "mirror_bytes_per_block": round(per_block, 1),
        "mirror_growth_bytes": max((row["mirror_bytes"] - row["mirror_bytes_early"] for row in scheduler), default=0),
    }
    counted = ("tokens", "preempted", "aborted", "drafted", "rejected", "loaded", "failed", "failed_inside")
    for name in (*counted, "prefix_tokens"):
        figures[f"scheduler_{name}"] = sum(row.get(name, 0) for row in scheduler)
    # The guard's own memory must not grow after a run's first 2,000 steps, however many follow.
    passed = figures["false_alarms"] == 0 and all(figures[name] >= least for name, least in TARGETS.items())
    rows = [{"part": "scheduler", **row} for row in scheduler] + [{"part": "engine", **row} for row in engine["rows"]]
    write_summary(out, "guard_clean", seed, {"figures": figures, "rows": rows, "memory": memory, "passed": passed})
    for name, value in figures.items():
        print(f"{name:32} {value}")
    print("passed" if passed else f"not all of it: {TARGETS}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
