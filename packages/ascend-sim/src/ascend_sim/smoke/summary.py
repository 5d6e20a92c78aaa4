"""Figures, the table and ``summary.json`` of a smoke run, and the merging of several pairs into one."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ascend_sim.smoke.results import write_json

if TYPE_CHECKING:
    from ascend_sim.smoke.cpu import Outcome, Row

SEED = 0
# How a figure of several pairs becomes one: the worst pair's, so the minimum where more is better.
_MERGE = {
    "scenarios": min,
    "tokens_equal": min,
    "tokens_total": min,
    "preemptions": min,
    "prefix_hits": min,
    "serve_completed": min,
}


def host() -> dict[str, Any]:
    """The machine in words: no names, no paths."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        model = platform.processor()
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def summary(outcome: Outcome, pair: str) -> dict[str, Any]:
    """The run as one object: name, pair, host, flat figures, rows, passed."""
    results = {row.scenario.name: row.result for row in outcome.rows if row.result}
    with_plugins = results.get("batch")
    upstream = results.get("batch-upstream", with_plugins)
    averages = dict(upstream.per_decode_step) if upstream else {}
    averages_on = dict(with_plugins.per_decode_step) if with_plugins else {}
    served = outcome.served
    figures: dict[str, float] = {
        "scenarios": sum(row.passed for row in outcome.rows),
        "tokens_equal": sum(row.comparison.equal for row in outcome.rows if row.comparison),
        "tokens_total": sum(row.scenario.tokens_expected for row in outcome.rows),
        "preemptions": sum(row.result.preemptions for row in outcome.rows if row.result),
        "prefix_hits": sum(row.result.prefix_hits for row in outcome.rows if row.result),
        "serve_completed": served.completed if served else 0,
        "serve_failed": served.failed if served else 0,
        "d2h_per_decode_step": averages.get("d2h", 0.0),
        "event_waits_per_decode_step": averages.get("event_waits", 0.0),
        "h2d_qsl_per_decode_step": averages.get("h2d_qsl", 0.0),
        # The same with every plugin of this kit that is there; equal to the above where none is.
        "d2h_per_decode_step_on": averages_on.get("d2h", 0.0),
        "event_waits_per_decode_step_on": averages_on.get("event_waits", 0.0),
        "h2d_qsl_per_decode_step_on": averages_on.get("h2d_qsl", 0.0),
        "ms_per_decode_step_8": upstream.ms_per_decode_step if upstream else 0.0,
        "seconds": outcome.seconds,
    }
    return {
        "name": "cpu-smoke",
        "version": 1,
        "pair": pair,
        "host": host(),
        "seed": SEED,
        "figures": {name: round(value, 4) for name, value in figures.items()},
        "rows": [_row(row) for row in outcome.rows],
        "serve": asdict(served) if served else None,
        "serve_error": outcome.serve_error,
        "plugins": outcome.plugins,
        "passed": outcome.passed,
    }


def _row(row: Row) -> dict[str, Any]:
    result = row.result
    return {
        "scenario": row.scenario.name,
        "requests": row.scenario.prompts,
        "steps": result.steps if result else 0,
        "preemptions": result.preemptions if result else 0,
        "prefix_hits": result.prefix_hits if result else 0,
        "drafted": result.drafted if result else 0,
        "accepted": result.accepted if result else 0,
        "tokens_equal": row.comparison.equal if row.comparison else 0,
        "tokens_total": row.scenario.tokens_expected,
        "ms_per_decode_step": round(result.ms_per_decode_step, 3) if result else 0.0,
        "decode_steps": result.decode_steps if result else 0,
        "per_decode_step": dict(result.per_decode_step) if result else {},
        "runner": result.runner if result else "",
        "attention": result.attention if result else "",
        "failure": row.failure,
        "passed": row.passed,
    }


def merge(summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One summary over several pairs: each figure the worst pair's, every pair whole in ``rows``."""
    if not summaries:
        raise ValueError("no summaries to merge")
    names = summaries[0]["figures"].keys()
    figures = {name: _MERGE.get(name, max)(one["figures"][name] for one in summaries) for name in names}
    # One second of all pairs together is what the user waited.
    figures["seconds"] = round(sum(one["figures"]["seconds"] for one in summaries), 4)
    return {
        "name": summaries[0]["name"],
        "version": 1,
        "pair": "all",
        "host": summaries[0]["host"],
        "seed": summaries[0]["seed"],
        "figures": figures,
        "rows": summaries,
        "passed": all(one["passed"] for one in summaries),
    }


def table(report: dict[str, Any]) -> Table:
    """The run as a terminal table: one row a scenario, one for the served round."""
    made = Table(title=f"cpu-smoke, pair {report['pair']}", title_justify="left")
    made.add_column("scenario")
    columns = ("requests", "steps", "preempted", "cache hits", "tokens equal", "D2H", "waits", "H2D qsl", "ms/step")
    for column in columns:
        made.add_column(column, justify="right")
    made.add_column("result")
    for row in report["rows"]:
        step = row["per_decode_step"]
        counted = bool(row["decode_steps"])
        made.add_row(
            row["scenario"],
            str(row["requests"]),
            str(row["steps"]),
            str(row["preemptions"]),
            str(row["prefix_hits"]),
            f"{row['tokens_equal']}/{row['tokens_total']}",
            *(f"{step.get(name, 0):.3g}" if counted else "-" for name in ("d2h", "event_waits", "h2d_qsl")),
            f"{row['ms_per_decode_step']:.1f}",
            "[green]equal[/]" if row["passed"] else "[red]FAILED[/]",
        )
    served = report.get("serve")
    if served or report.get("serve_error"):
        done = f"{served['completed']} completed, {served['failed']} failed" if served else "-"
        passed = served and not served["failed"] and not report.get("serve_error")
        made.add_row(f"vllm serve + bench: {done}", *["-"] * 9, "[green]ok[/]" if passed else "[red]FAILED[/]")
    made.caption = (
        "D2H, waits, H2D qsl: per ordinary decode step, the output's own copy left out; ms/step: median engine step"
    )
    return made


def write(report: dict[str, Any], out: Path) -> Path:
    """Write ``summary.json`` into `out`."""
    path = out / "summary.json"
    write_json(path, report)
    return path


def read(path: Path) -> dict[str, Any]:
    """Read a ``summary.json``; raises `ValueError` where it is none of ours."""
    found = json.loads(path.read_text())
    if not isinstance(found, dict) or found.get("version") != 1 or "figures" not in found:
        raise ValueError(f"{path} is not a summary of version 1")
    return found
