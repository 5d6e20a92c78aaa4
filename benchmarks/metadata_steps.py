"""What a step does with the hook off and on, in the real engine: copies, waits, uploads, loops, tokens, lengths.

Runs under one pair's environment; over several, each call adds its pair's row and the figures are the worst pair's.
"""

# env: engine

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _metadata_references as references
from _metadata_churn import ENGINES, EVERY

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 3000
ASYNC = {"async_scheduling": True}
RUNS: list[dict[str, Any]] = [
    {"name": "batch-off", "scenario": "batch", "hook": None, "loops": True},
    {"name": "batch-on", "scenario": "batch", "hook": {"enabled": True, "strict": True}, "loops": True},
    {"name": "batch-async", "scenario": "batch", "hook": EVERY, "engine": ASYNC},
    {"name": "chunked-prefill", "scenario": "chunked-prefill", "hook": EVERY},
    {"name": "preemption", "scenario": "preemption", "hook": EVERY},
    {"name": "prefix-cache", "scenario": "prefix-cache", "hook": EVERY},
    {"name": "spec-sync", "scenario": "spec-sync", "hook": EVERY},
    {"name": "spec-sync-trusted", "scenario": "spec-sync", "hook": {**EVERY, "speculative_sync": ["eagle"]}},
    {"name": "spec-async", "scenario": "spec-async", "hook": EVERY},
]


def child(script: str, job: dict[str, Any], folder: Path) -> None:
    """Run one engine process; its results are files, its failure is read from them."""
    path = folder / f"job-{script}-{job['mode']}.json"
    path.write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, str(HERE / script), str(path)], check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    (folder / f"{script}-{job['mode']}.log").write_text(done.stdout + done.stderr)
    sys.stdout.write(f"{script} {job['mode']}: exit {done.returncode}\n")
    sys.stdout.flush()


def run_all(folder: Path, examples: int, pair: str) -> None:
    """Reference and simulated engines, scenarios and churn, one process after the other."""
    from ascend_sim import models

    found = {name: str(models.build(model)) for name, model in (("target", "dense"), ("draft", "eagle"))}
    job = {"folder": str(folder), "models": found, "runs": RUNS, "engines": ENGINES, "examples": examples}
    wanted = {f"plain-{run['scenario']}.json" for run in RUNS} | {"plain-churn.json", "oracle-churn.json"}
    for mode in ("plain", "ascend"):
        if mode == "plain" and references.take(folder, pair, wanted):
            continue
        child("_metadata_churn.py", {"mode": mode, **job}, folder)
        if mode == "plain":
            references.keep(folder, pair, wanted)


def read(path: Path) -> dict[str, Any]:
    """A result file, or what there is to say about its absence."""
    return json.loads(path.read_text()) if path.exists() else {"error": f"{path.name} was not written"}


def pair_row(folder: Path, pair: str) -> dict[str, Any]:
    """The figures of one pair, and the off values beside them."""
    results = {run["name"]: read(folder / f"ascend-{run['name']}.json") for run in RUNS}
    churned = [read(folder / f"churn-{engine['name']}.json") for engine in ENGINES]
    errors = {name: result["error"] for name, result in results.items() if "error" in result}
    errors |= {f"churn-{e['name']}": r["error"] for e, r in zip(ENGINES, churned, strict=True) if "error" in r}
    row: dict[str, Any] = {"pair": pair, "errors": errors}
    for side in ("off", "on"):
        result = results[f"batch-{side}"]
        if "error" not in result:
            step = result["per_decode_step"]
            row |= {f"{name}_{side}": step[name] for name in ("d2h", "event_waits", "h2d_qsl")}
            row |= {
                f"tolist_{side}": step["tolist_builder"],
                f"host_loops_{side}": result["host_loops"] / result["steps"],
            }
    equal = total = drift = 0
    for run in RUNS:
        expected = read(folder / f"plain-{run['scenario']}.json").get("tokens", [])
        tokens = results[run["name"]].get("tokens", [])
        total += sum(map(len, expected))
        equal += sum(a == b for one, two in zip(expected, tokens, strict=False) for a, b in zip(one, two, strict=False))
        drift += results[run["name"]].get("drift_rows", 0) if run["hook"] is not None else 0
    row |= {
        "tokens_equal": equal + sum(result.get("tokens_equal", 0) for result in churned),
        "tokens_total": total + sum(result.get("tokens_total", 0) for result in churned),
        "drift_rows": drift + sum(result.get("drift_rows", 0) for result in churned),
        "churn_steps": sum(result.get("steps", 0) for result in churned),
        "churn_preemptions": sum(r.get("metrics", {}).get("vllm:num_preemptions", 0) for r in churned),
        "churn_prefix_hits": sum(r.get("metrics", {}).get("vllm:prefix_cache_hits", 0) for r in churned),
        "corrected_rows": {n: r["hook"]["counts"]["corrected_rows"] for n, r in results.items() if r.get("hook")},
    }
    row["passed"] = not errors and row["tokens_equal"] == row["tokens_total"] > 0 and not row["drift_rows"]
    return row


WORST = {
    "d2h_on": max, "event_waits_on": max, "h2d_qsl_on": max, "host_loops_on": max, "tolist_on": max,
    "drift_rows": max, "tokens_equal": min, "tokens_total": min, "churn_steps": min,
}  # fmt: skip


def merge(summary_path: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The summary with this pair's row in the place of an earlier one; each figure is the worst pair's."""
    earlier = json.loads(summary_path.read_text())["rows"] if summary_path.exists() else []
    rows = [known for known in earlier if known["pair"] != row["pair"]] + [row]
    figures = {name: worst(known[name] for known in rows if name in known) for name, worst in WORST.items()}
    host = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}
    head = {"name": "metadata_steps", "version": 1, "pair": ",".join(known["pair"] for known in rows), "host": host}
    return head | {"seed": 0, "figures": figures, "rows": rows, "passed": all(known["passed"] for known in rows)}


HEAD = ("pair", "D2H", "host waits", "uploads of `query_start_loc`", "length loops", "`.tolist()` in the builder",
        "tokens equal", "drifted rows", "churned steps")  # fmt: skip


def markdown(summary: dict[str, Any]) -> str:
    """The table of README and docs page: per ordinary decode step off → on, then the sums of all runs of a pair."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in sorted(summary["rows"], key=lambda row: str(row["pair"]), reverse=True):
        steps = [
            f"{row[f'{name}_off']:.3g} → {row[f'{name}_on']:.3g}"
            for name in ("d2h", "event_waits", "h2d_qsl", "host_loops", "tolist")
        ]
        sums = [
            f"{row['tokens_equal']:,} of {row['tokens_total']:,}",
            str(row["drift_rows"]),
            f"{row['churn_steps']:,}",
        ]
        lines.append(f"| {' | '.join([str(row['pair']), *steps, *sums])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/metadata_steps"))
    parser.add_argument("--examples", type=int, default=20, help="churn plans per engine (four engines a pair)")
    parser.add_argument("--work", type=Path, help="folder for each run's result: a second call does what is not there")
    parser.add_argument("--fresh", action="store_true", help="forget the rows of other pairs")
    parser.add_argument("--markdown", type=Path, help="print the table of a recorded summary.json and run nothing")
    options = parser.parse_args()
    if options.markdown:
        sys.stdout.write(markdown(json.loads(options.markdown.read_text())))
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from vllm_pairs import current_pair

    path = options.out / "summary.json"
    options.out.mkdir(parents=True, exist_ok=True)
    if options.fresh:
        path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = options.work or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        run_all(folder, options.examples, current_pair().id)
        row = pair_row(folder, current_pair().id)
    summary = merge(path, row)
    partial = path.with_name(".summary.json")
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(path)
    for key, value in row.items():
        sys.stdout.write(f"{key}: {value}\n")
    sys.stdout.write(markdown(summary))
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
