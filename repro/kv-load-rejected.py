"""A KV load that fails in the step that uses it: the request is taken back, the runner's device state is not.

Under `kv_load_failure_policy="recompute"` the scheduler takes a request's computed tokens back to the last block that
holds. Model Runner V2 copies that number into its host array only; positions, slots and sequence lengths come from
the device's own count, which stands behind the rejected tokens. Real here: vLLM's scheduler and engine, vllm-ascend's
runner on the CPU simulator. The connector is ours: it claims every second prompt's whole blocks and says that the first
of them cannot be loaded, in the same step or, as the control, before the request runs.
"""

# pairs: 0.30.0 0.29.0 0.28.0 0.27.1

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _show import ROOT, finish

RUNS = [
    {"name": f"{load or 'none'}{'-async' if scheduling else ''}", "load": load, "async_scheduling": scheduling}
    for scheduling in (False, True)
    for load in (None, "async", "sync")
]


def runs() -> dict[str, dict[str, Any]]:
    """Each engine's tokens and what the guard found, by name."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps({"folder": folder, "runs": RUNS}), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "OMP_NUM_THREADS": "1"}
        script = ROOT / "tests" / "guard_rejected_load.py"
        subprocess.run([sys.executable, str(script), str(job)], env=environment, check=True)
        return {run["name"]: json.loads((Path(folder) / f"{run['name']}.json").read_text()) for run in RUNS}


def main() -> None:
    """The same prompts without a connector, with loads rejected before the request runs, and in its own step."""
    found, rows = runs(), []
    for scheduling in ("", "-async"):
        right = found[f"none{scheduling}"]["tokens"]
        for load in ("async", "sync"):
            seen = found[f"{load}{scheduling}"]
            same = sum(a == b for a, b in zip(right, seen["tokens"], strict=True))
            what = "in the step that uses it" if load == "sync" else "before the request runs"
            how = "asynchronous" if scheduling else "synchronous"
            if (seen["claimed"], seen["rejected"]) != (2, 2):
                raise SystemExit(
                    f"the connector claimed {seen['claimed']} and rejected {seen['rejected']} loads, not 2"
                )
            faulty = {"faulty": True} if load == "sync" else {}
            rows.append(
                {"what": f"load rejected {what}, {how} scheduling: tokens", "expected": "4 of 4 requests as computed",
                 "seen": f"{same} of 4 requests as computed", **faulty}
            )  # fmt: skip
            rows.append(
                {"what": f"load rejected {what}, {how} scheduling: what the guard finds", "expected": "nothing",
                 "seen": ", ".join(sorted({code for code, *_ in seen["signatures"]})) or "nothing", **faulty}
            )  # fmt: skip
    finish("kv-load-rejected", rows)


if __name__ == "__main__":
    main()
