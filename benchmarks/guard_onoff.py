"""Guard on and off: the same token ids and the same execution plans, in engines that are asked the same in one order.

Four waves of 48 requests, eight enqueued before the first step of each round: OFF, OFF again (they must agree, else the
run is INVALID), ON, and OFF with the eight admitted in another order, which shows what order alone changes. Physical
request slots are compared apart from the plans. Both under synchronous and under asynchronous scheduling. In the
simulator the copies and waits of OFF and ON are counted too, and left in `counters.json` for `guard_cost`.
"""

# env: engine

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from _guard_common import checkpoints, child, write_summary

SEED, REQUESTS, NEW_TOKENS = 11, 48, 256
#: What `guard_cost` merges into its own figures.
TRAFFIC = ("added_d2h_per_step", "added_event_waits", "pinned_allocs_after_warmup", "snapshot_bytes_per_step")
GUARD = {"enabled": True, "action": "raise"}
WAVES: list[dict[str, Any]] = [
    {"name": "off-1", "guard": None},
    {"name": "off-2", "guard": None},
    {"name": "on", "guard": GUARD},
    {"name": "off-permuted", "guard": None, "permuted": True},
]


def compare(one: dict[str, Any], other: dict[str, Any]) -> dict[str, int]:
    """Equal ids, plans (steps) and slot layouts of two waves."""
    ids = [sum(a == b for a, b in zip(x, y, strict=False)) for x, y in zip(one["ids"], other["ids"], strict=True)]
    plans = max(len(one["plans"]), len(other["plans"]))
    return {
        "ids_total": sum(map(len, one["ids"])),
        "ids_equal": sum(ids),
        "plans_total": plans,
        "plans_equal": sum(a == b for a, b in zip(one["plans"], other["plans"], strict=False)),
        "slots_equal": sum(a == b for a, b in zip(one["slots"], other["slots"], strict=False)),
    }


def traffic(off: dict[str, Any], on: dict[str, Any]) -> dict[str, float]:
    """What the guard adds to each step of the simulated engine in copies, waits and bytes; buffers made after warm-up.

    The first round of eight requests is the warm-up; the five others alternate between prefill and decode again.
    """
    steps = len(on["plans"])
    added = {kind: on["traffic"][kind] - off["traffic"][kind] for kind in on["traffic"]}
    figures = on["guard"]["figures"]
    return {
        "added_d2h_per_step": round(added["d2h"] / steps, 4),
        "added_h2d_per_step": round(added["h2d"] / steps, 4),
        "added_event_waits": added["event_wait"] + added["stream_wait"],
        "snapshot_bytes_per_step": round(figures["snapshot_bytes"] / max(figures["snapshots"], 1), 1),
        "pinned_allocs_after_warmup": on["allocated"][1] - on["allocated"][0],
        "steps": steps,
    }


def run(folder: Path, mode: str, asynchronous: bool) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
    """The four waves under one kind of scheduling: the rows, the figures, and whether all is as it must be."""
    engine = {"max_num_batched_tokens": 256, "async_scheduling": asynchronous}
    waves = [{**wave, "model": "dense", "engine": engine} for wave in WAVES]
    job = {
        "folder": str(folder),
        "models": checkpoints(),
        "seed": SEED,
        "requests": REQUESTS,
        "new_tokens": NEW_TOKENS,
        "waves": waves,
    }
    child("_guard_onoff_engine.py", job, folder / "job.json", mode)
    found = {wave["name"]: json.loads((folder / f"{wave['name']}.json").read_text()) for wave in waves}
    schedule = "async" if asynchronous else "sync"
    rows = [
        {"schedule": schedule, "waves": f"{one} {other}", **compare(found[one], found[other])}
        for one, other in (("off-1", "off-2"), ("off-2", "on"), ("off-1", "off-permuted"))
    ]
    for row in rows:
        print(
            f"{schedule:<6} {row['waves']:<22} ids {row['ids_equal']}/{row['ids_total']}  plans "
            f"{row['plans_equal']}/{row['plans_total']}  request slots {row['slots_equal']}/{row['plans_total']}"
        )
    stable, on, permuted = rows
    valid = stable["ids_equal"] == stable["ids_total"] and stable["plans_equal"] == stable["plans_total"]
    counts = found["on"]["guard"]["counts"]
    print(f"guard on: {counts['audits']} audits in {counts['steps']} steps, {counts['bad_audits']} found something")
    if not valid:
        print("INVALID: two OFF waves differ, so nothing can be said about ON")
    equal = on["ids_equal"] == on["ids_total"] and on["plans_equal"] == on["plans_total"]
    passed = valid and equal and counts["bad_audits"] == 0 and counts["audits"] >= on["plans_total"]
    figures = {name: on[name] for name in ("ids_equal", "ids_total", "plans_equal", "plans_total")}
    figures |= {"off_valid": int(valid), "permuted_ids_equal": permuted["ids_equal"]}
    figures |= {"permuted_plans_equal": permuted["plans_equal"], "audits": counts["audits"]}
    if mode == "ascend":
        added = traffic(found["off-2"], found["on"])
        print(f"the guard adds: {added}")
        rows.append({"schedule": schedule, "traffic": added})
        passed = passed and added["added_d2h_per_step"] <= 1 and not added["added_event_waits"]
        figures |= added
    return rows, figures, passed


def merged(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums of what is counted, and the worst of what is an average or a flag."""
    worst = {"off_valid": min}
    worst |= dict.fromkeys((*TRAFFIC, "added_h2d_per_step", "snapshot_bytes_per_step"), max)
    return {name: worst.get(name, sum)(each[name] for each in found) for name in found[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/guard_onoff"))
    parser.add_argument("--mode", choices=("ascend", "plain"), default="ascend")
    parser.add_argument("--schedule", choices=("sync", "async"), action="append", help="default: both")
    options = parser.parse_args()
    done = []
    for schedule in options.schedule or ("sync", "async"):
        folder = options.out / f"{options.mode}-{schedule}"
        done.append(run(folder, options.mode, schedule == "async"))
    rows = [row for found, _, _ in done for row in found]
    figures = merged([figures for _, figures, _ in done])
    passed = all(fine for _, _, fine in done)
    write_summary(options.out, "guard_onoff", SEED, {"figures": figures, "rows": rows, "passed": passed})
    if options.mode == "ascend":
        (options.out / "counters.json").write_text(json.dumps({name: figures[name] for name in TRAFFIC}) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
