"""What the guard costs: observe, audit and snapshot handling, each apart and together, beside the memcmp floor.

Every step has a plan of its own; 40 hot samples; medians; one run. The floor is what numpy needs to compare the same
arrays with copies of themselves, in the same loop; the ratio to it is the figure that carries over to other machines
(at most 15, 20 for the 16k-token prefill). No engine and no device: what crosses the bus and how many waits a step has
is counted in the simulator by guard_onoff, which leaves a file that is merged here.
"""

# env: light

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from kv_plan_guard import bench

LIMIT_RATIO = {"prefill_16k": 20.0}
DEFAULT_RATIO = 15.0
LIMIT_US = {
    "c1_prefill_2048": 60.0,
    "c8_decode": 30.0,
    "b256_32k": 80.0,
    "c8_mixed": 60.0,
    "prefill_16k": 200.0,
}
#: Counted in the simulator; read from the file that the engine's counters were written to.
COUNTERS = ("added_event_waits", "added_d2h_per_step", "pinned_allocs_after_warmup", "snapshot_bytes_per_step")
COUNTED = Path("out/guard_onoff/counters.json")
MOST = {"added_event_waits": 0, "added_d2h_per_step": 1, "pinned_allocs_after_warmup": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/guard_cost"))
    parser.add_argument("--samples", type=int, default=bench.SAMPLES)
    parser.add_argument("--counters", type=Path, default=COUNTED, help="the simulator's counts, left by guard_onoff")
    options = parser.parse_args()
    costs = bench.measure_all(options.samples)
    figures: dict[str, Any] = {}
    for cost in costs:
        figures[f"{cost.name}_us"] = round(cost.total_us, 2)
        figures[f"{cost.name}_floor_us"] = round(cost.floor_us, 2)
        figures[f"{cost.name}_ratio"] = round(cost.ratio, 2)
    figures["max_ratio"] = round(max(cost.ratio for cost in costs if cost.name != "prefill_16k"), 2)
    counted = json.loads(options.counters.read_text()) if options.counters.exists() else {}
    figures |= {name: counted[name] for name in COUNTERS if name in counted}
    print("\n".join(f"{name} {counted[name]}" for name in COUNTERS if name in counted) or "no counts: run guard_onoff")
    within_ratio = all(cost.ratio <= LIMIT_RATIO.get(cost.name, DEFAULT_RATIO) for cost in costs)
    within_us = {cost.name: cost.total_us <= LIMIT_US[cost.name] for cost in costs}
    print(bench.table(costs))
    print(
        f"ratio to the floor within {DEFAULT_RATIO:.0f} (16k prefill {LIMIT_RATIO['prefill_16k']:.0f}): {within_ratio}"
    )
    slow = [name for name, fine in within_us.items() if not fine]
    print(f"absolute times beyond the issue's on this machine: {', '.join(slow) or 'none'}")
    rows = [{**{name: getattr(cost, name) for name in cost.__slots__}, "ratio": cost.ratio} for cost in costs]
    host = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}
    summary = {
        "name": "guard_cost",
        "version": 1,
        "pair": None,
        "host": host,
        "seed": 0,
        "figures": figures,
        "rows": rows,
        "passed": within_ratio
        and all(cost.slow_audits == 0 for cost in costs)
        and all(counted.get(name, 0) <= most for name, most in MOST.items()),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    partial = options.out / ".summary.json"
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(options.out / "summary.json")
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
