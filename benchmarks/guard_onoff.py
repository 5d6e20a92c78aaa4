"""Guard on and off: the same token ids and the same execution plans, in engines that are asked the same in one order.

Four waves of 48 requests, eight enqueued before the first step of each round: OFF, OFF again (they must agree, else the
run is INVALID), ON, and OFF with the eight admitted in another order, which shows what order alone changes. Physical
request slots are compared apart from the plans.
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/guard_onoff"))
    parser.add_argument("--mode", choices=("ascend", "plain"), default="ascend")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="asynchronous scheduling")
    options = parser.parse_args()
    folder = options.out / (options.mode + ("-async" if options.asynchronous else ""))
    engine = {"max_num_batched_tokens": 256, "async_scheduling": options.asynchronous}
    waves = [{**wave, "model": "dense", "engine": engine} for wave in WAVES]
    job = {
        "folder": str(folder),
        "models": checkpoints(),
        "seed": SEED,
        "requests": REQUESTS,
        "new_tokens": NEW_TOKENS,
        "waves": waves,
    }
    child("_guard_onoff_engine.py", job, folder / "job.json", options.mode)
    found = {wave["name"]: json.loads((folder / f"{wave['name']}.json").read_text()) for wave in waves}
    rows = [
        {"waves": f"{one} {other}", **compare(found[one], found[other])}
        for one, other in (("off-1", "off-2"), ("off-2", "on"), ("off-1", "off-permuted"))
    ]
    for row in rows:
        print(
            f"{row['waves']:<22} ids {row['ids_equal']}/{row['ids_total']}  plans "
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
    write_summary(options.out, "guard_onoff", SEED, {"figures": figures, "rows": rows, "passed": passed})
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
