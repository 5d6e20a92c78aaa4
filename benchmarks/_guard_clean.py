"""The engine part of guard_clean: real engines under a random load, in segments that can be run one by one.

``python _guard_clean.py [--out DIR] [--steps N] [--kernels interpreted|fast] [--only NAME]`` runs what has no result
yet and prints the sum; `engine_part` is what the benchmark itself calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from _guard_common import checkpoints, child

# The kernels that make what the guard reads: Triton's interpreter runs vLLM's own code for them.
INTERPRETED = "slot_mapping=interpreter,gather_block_tables=interpreter"
LOG = {"enabled": True, "action": "log"}
# So few blocks that requests are preempted.
SMALL = {"num_gpu_blocks_override": 7, "max_num_seqs": 6, "enable_prefix_caching": True}
ASYNC = {"async_scheduling": True}
CHUNKS = {"max_num_batched_tokens": 128}
# The other plugin whose hooks lie at the same boundaries, inside of the guard's.
TOGETHER = {"VLLM_MRV2_METADATA": '{"enabled": true}'}
SEGMENTS: dict[str, dict[str, Any]] = {
    "sync": {"model": "one-layer", "engine": {}},
    "async": {"model": "one-layer", "engine": ASYNC},
    "chunks-prefix": {"model": "one-layer", "engine": {**CHUNKS, "enable_prefix_caching": True}},
    "preemption": {"model": "one-layer", "engine": SMALL},
    "preemption-async": {"model": "one-layer", "engine": {**SMALL, **ASYNC, **CHUNKS}},
    "sliding": {"model": "sliding", "engine": {**CHUNKS, "enable_prefix_caching": True}},
    "sliding-async": {"model": "sliding", "engine": {**CHUNKS, **ASYNC}},
    "hybrid": {"model": "hybrid", "engine": CHUNKS},
    "hybrid-async": {"model": "hybrid", "engine": {**CHUNKS, **ASYNC}},
    "eagle": {"model": "dense", "engine": {}, "speculative": 3},
    "eagle-async": {"model": "dense", "engine": {**ASYNC, **SMALL, "num_gpu_blocks_override": 9}, "speculative": 3},
    "together": {"model": "one-layer", "engine": CHUNKS, "environment": TOGETHER},
    "together-async": {"model": "one-layer", "engine": {**SMALL, **ASYNC}, "environment": TOGETHER},
}
SEQS = 4  # rows cost time, and what can go wrong between rows can with four
# Steps of one engine in one process: a run that is stopped loses no more.
CHUNK = {"interpreted": 400, "fast": 4000}


def segments(steps: int, kernels: str, seed: int, only: str | None = None) -> list[dict[str, Any]]:
    """`steps` steps of every segment, in rounds of one chunk each; the seed is printed with every result."""
    chunk = min(CHUNK[kernels], steps)
    return [
        {
            "name": f"{name}-{first}",
            "seed": 100 * first + number,
            "steps": chunk,
            "guard": LOG,
            **segment,
            "engine": {"max_num_seqs": SEQS, **segment["engine"]},
        }
        for first in range(seed, seed + -(-steps // chunk))
        for number, (name, segment) in enumerate(SEGMENTS.items())
        if only is None or name == only
    ]


def engine_part(
    out: Path,
    steps: int,
    kernels: str,
    seed: int,
    mode: str,
    only: str | None = None,
    seconds: float = float("inf"),
) -> None:
    """Run what has no result yet; no further engine is started after `seconds`."""
    folder = out / f"{mode}-{kernels}"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = segments(steps, kernels, seed, only)
    if mode == "plain":
        wanted = [s for s in wanted if not s.get("speculative") and not s.get("environment")]
    wanted = [segment for segment in wanted if not (folder / f"{segment['name']}.json").exists()]
    if not wanted or seconds <= 0:
        return
    job = {"folder": str(folder), "models": checkpoints(), "segments": wanted, "seconds": min(seconds, 1e9)}
    environment = {"ASCEND_SIM_KERNELS": INTERPRETED} if kernels == "interpreted" else {}
    child("_guard_clean_engine.py", job, folder / f"job-{only or 'all'}-{seed}.json", mode, **environment)


def sum_up(out: Path) -> dict[str, Any]:
    """Every segment that has a result, and the sums: steps with interpreted and with fast slot kernels, alarms."""
    rows = []
    for path in sorted(out.glob("*/*.json")):
        if path.name.startswith("job-"):
            continue
        row = json.loads(path.read_text())
        row["where"] = path.parent.name
        rows.append({key: value for key, value in row.items() if key not in ("coverage", "guard", "engine", "hooks")})

    def steps(kernels: str) -> int:
        # vLLM's plain engine has no fast kernels: all of its are interpreted.
        plain = [row["steps"] for row in rows if row["where"].startswith("plain-")] if kernels == "interpreted" else []
        return sum(plain) + sum(row["steps"] for row in rows if row["where"] == f"ascend-{kernels}")

    return {
        "rows": rows,
        "engine_steps": sum(row["steps"] for row in rows),
        "engine_steps_interpreted": steps("interpreted"),
        "engine_steps_fast": steps("fast"),
        "engine_false_alarms": sum(row["bad_audits"] for row in rows),
        "preemptions": sum(row.get("preemptions", 0) for row in rows),
        "prefix_hits": sum(row.get("prefix_hits", 0) for row in rows),
        "drafted": sum(row.get("drafted", 0) for row in rows),
        "accepted": sum(row.get("accepted", 0) for row in rows),
        "aborted": sum(row.get("aborted", 0) for row in rows),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/guard_clean/engine"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--kernels", choices=("interpreted", "fast"), default="interpreted")
    parser.add_argument("--mode", choices=("ascend", "plain"), default="ascend")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no engine after so long")
    parser.add_argument("--only", choices=list(SEGMENTS))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if not options.show:
        engine_part(
            options.out, options.steps, options.kernels, options.seed, options.mode, options.only, options.seconds
        )
    total = sum_up(options.out)
    for row in total.pop("rows"):
        print(row["where"], row["name"], "steps", row["steps"], "bad", row["bad_audits"], row.get("error", ""))
    print(json.dumps(total))
    return 1 if total["engine_false_alarms"] else 0


if __name__ == "__main__":
    sys.exit(main())
