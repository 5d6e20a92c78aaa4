"""The fault matrix: which cells there are, the processes that run them, and what came of each. Needs no torch itself.

A cell is a kind of fault in one engine (`sim`: the Ascend runner simulated on a CPU; `core`: vLLM's own runner), with
one architecture and one scheduling. It is caught when the guard stopped the engine in the very step of the fault, and
no token of that step, or of a later one, had been released. A cell that cannot exist says why.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard.errors import GuardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ENGINES: Final = ("sim", "core")
ARCHITECTURES: Final[dict[str, str]] = {"full": "dense", "sliding": "sliding", "hybrid": "hybrid"}
SCHEDULES: Final = ("sync", "async")
KINDS: Final = (
    "wrong-row",
    "shifted-row",
    "swapped-columns",
    "foreign-block",
    "freed-block",
    "unallocated-block",
    "null-block-in-row",
    "block-beyond-pool",
    "negative-block",
    "swapped-groups",
    "off-by-one-slot",
    "no-slot-for-a-token",
    "null-block-write",
    "duplicate-write",
    "swapped-slots",
    "freed-slot",
    "wrong-rank-local-rule",
    "int32-wrap",
    "slots-of-another-group",
    "stale-slots",
    "short-length",
    "long-length",
    "zero-length",
    "host-length",
    "wrong-position",
    "wrong-query-start",
    "swapped-requests",
    "lost-block",
    "stranded-block",
    "inherited-row",
    "stale-row-after-resume",
    "stale-counter",
    "rejection-not-taken-back",
    "state-of-another-request",
    "null-state",
    "cut-slots",
    "wrong-final-table",
)
# Kinds that no engine here can have, and why; the rules behind them are tested on plans.
NEVER: Final[dict[str, str]] = {
    "slot-for-a-pad": "eager batches have no padded token, and ACL graphs are not simulated; cases A13 to A17 and A28",
}
# (kind, architecture or engine) that cannot exist, and why.
_NOT: Final[dict[tuple[str, str], str]] = {
    ("swapped-groups", "full"): "the model has one KV cache group",
    ("slots-of-another-group", "full"): "the model has one KV cache group",
    ("state-of-another-request", "full"): "the model has no recurrent state",
    ("state-of-another-request", "sliding"): "the model has no recurrent state",
    ("null-state", "full"): "the model has no recurrent state",
    ("null-state", "sliding"): "the model has no recurrent state",
    ("host-length", "core"): "vLLM's own operators take lengths from the device",
    ("rejection-not-taken-back", "sliding"): "there is no draft for the model",
    ("rejection-not-taken-back", "hybrid"): "there is no draft for the model",
    ("block-beyond-pool", "core"): "vLLM's CPU operators read unchecked, and the process ends in the forward",
    ("negative-block", "core"): "vLLM's CPU operators read unchecked, and the process ends in the forward",
    ("inherited-row", "hybrid"): "a recurrent row has no column left behind its last owner's",
    ("lost-block", "hybrid"): "a recurrent row never grows (prefix caching off)",
    ("stranded-block", "hybrid"): "a recurrent row never grows (prefix caching off)",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the matrix; `reason` is why it cannot exist, empty where it can."""

    engine: str
    kind: str
    architecture: str
    schedule: str
    reason: str = ""

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.engine}-{self.architecture}-{self.schedule}-{self.kind}"


def cells(engines: Sequence[str] = ENGINES, kinds: Sequence[str] | None = None) -> list[Cell]:
    """Every cell of the matrix, the impossible ones too; GuardError names an unknown engine or kind."""
    for engine in engines:
        if engine not in ENGINES:
            raise GuardError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    for kind in kinds or ():
        if kind not in KINDS and kind not in NEVER:
            raise GuardError(f"kind must be one of {', '.join((*KINDS, *NEVER))}, got {kind!r}")
    made = []
    for engine in engines:
        for architecture in ARCHITECTURES:
            for kind in (*KINDS, *NEVER) if kinds is None else kinds:
                reason = NEVER.get(kind) or _NOT.get((kind, architecture)) or _NOT.get((kind, engine)) or ""
                made += [Cell(engine, kind, architecture, schedule, reason) for schedule in SCHEDULES]
    return made


def run(
    wanted: Iterable[Cell],
    folder: Path,
    models: dict[str, str],
    *,
    without: Sequence[str] = (),
    progress: Callable[[str], None] = lambda name: None,
    python: str = sys.executable,
) -> None:
    """Run the cells that have no result in `folder` yet, one process per engine and architecture."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in wanted:
        if not cell.reason and not (folder / f"{cell.name}.json").exists():
            groups.setdefault((cell.engine, cell.architecture), []).append(cell)
    for (engine, architecture), group in groups.items():
        left = group
        while left:
            job = {
                "engine": engine,
                "models": models,
                "folder": str(folder),
                "without": list(without),
                "cells": [
                    {
                        "name": cell.name,
                        "kind": cell.kind,
                        "architecture": ARCHITECTURES[cell.architecture],
                        "schedule": cell.schedule,
                    }
                    for cell in left
                ],
            }
            path = folder / f"job-{engine}-{architecture}.json"
            path.write_text(json.dumps(job))
            died = _child(python, path, engine, folder / f"{engine}-{architecture}.log", progress)
            still = [cell for cell in left if not (folder / f"{cell.name}.json").exists()]
            if died is None and len(still) == len(left):
                break  # it never came to a cell: the log says why, and every cell counts as missing
            if died is not None:
                name, status = died
                failed = {"failed": f"the process ended with status {status}"}
                (folder / f"{name}.json").write_text(json.dumps(failed))
                still = [cell for cell in still if cell.name != name]
            left = still


def _child(python: str, job: Path, engine: str, log: Path, progress: Callable[[str], None]) -> tuple[str, int] | None:
    """Run one process; the cell in which it ended by itself, with its status, else None."""
    environment = {**os.environ, "ASCEND_SIM": "1" if engine == "sim" else "plain", "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "kv_plan_guard.adapters.inject", str(job)]
    begun: str | None = None
    with (
        log.open("w") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("@begin "):
                begun = line.split()[1]
            elif line.startswith("@cell "):
                begun = None
                progress(line.split()[1])
    return (begun, child.returncode) if begun is not None else None


def verdict(cell: Cell, folder: Path) -> dict[str, Any]:
    """What came of a cell: `state` is caught, missed, n/a, failed or missing, with `why` and the codes found.

    `codes` are those that stopped the engine; `found`, all that the step's groups were found to break.
    """
    if cell.reason:
        return {"cell": cell.name, "state": "n/a", "why": cell.reason, "codes": []}
    try:
        result = json.loads((folder / f"{cell.name}.json").read_text())
    except (OSError, ValueError):
        return {"cell": cell.name, "state": "missing", "why": "no result", "codes": []}
    codes = result.get("codes", [])
    if reason := result.get("not_applicable"):
        return {"cell": cell.name, "state": "n/a", "why": reason, "codes": []}
    state, why = "missed", ""
    if "failed" in result:
        state, why = "failed", result["failed"]
    elif "planted" not in result:
        state, why = "missing", "no result"
    elif result["planted"] is None:
        state, why = "failed", f"the fault could not be planted in {result['steps'] + 1} steps"
    elif not result["caught"]:
        why = f"planted in step {result['planted']}; the engine ended with {result['error'] or 'all its tokens'}"
    elif result["step"] != result["planted"]:
        why = f"planted in step {result['planted']}, found in step {result['step']}"
    elif result["released"] and result["released"][-1] >= result["planted"]:
        why = f"planted in step {result['planted']}, but step {result['released'][-1]} was released"
    else:
        state, why = "caught", f"step {result['step']}"
    return {
        "cell": cell.name,
        "state": state,
        "why": why,
        "codes": codes,
        "found": sorted(result.get("violations", {})),
    }


def summarize(wanted: Sequence[Cell], folder: Path) -> dict[str, Any]:
    """Verdicts of all cells, and the counts: kinds that exist somewhere, cells that exist, cells caught."""
    rows = [verdict(cell, folder) for cell in wanted]
    states = [row["state"] for row in rows]
    real = [cell for cell, row in zip(wanted, rows, strict=True) if row["state"] != "n/a"]
    return {
        "kinds": len({cell.kind for cell in real}),
        "cells": len(real),
        "caught": states.count("caught"),
        "not_applicable": states.count("n/a"),
        "rows": rows,
        "passed": bool(real) and states.count("caught") == len(real),
    }


def table(wanted: Sequence[Cell], summary: dict[str, Any]) -> str:
    """The matrix as text: a line a kind, a column for each engine, architecture and schedule."""
    found = {row["cell"]: row for row in summary["rows"]}
    columns = sorted({(c.engine, c.architecture, c.schedule) for c in wanted}, reverse=True)
    kinds = list(dict.fromkeys(cell.kind for cell in wanted))
    heads = [f"{engine} {architecture} {schedule}" for engine, architecture, schedule in columns]
    lines = [f"{'kind':<26}" + " | ".join(f"{head:<20}" for head in heads)]
    for kind in kinds:
        shown = []
        for engine, architecture, schedule in columns:
            row = found.get(Cell(engine, kind, architecture, schedule).name)
            text = "" if row is None else " ".join([row["state"], *row["codes"]])
            shown.append(f"{text[:20]:<20}")
        lines.append(f"{kind:<26}" + " | ".join(shown))
    lines += ["", f"{summary['caught']} of {summary['cells']} cells caught, {summary['kinds']} kinds"]
    for row in summary["rows"]:
        if row["state"] not in ("caught", "n/a"):
            lines.append(f"{row['state']}: {row['cell']}: {row['why']}")
    reasons: dict[str, list[str]] = {}
    for cell, row in zip(wanted, summary["rows"], strict=True):
        if row["state"] == "n/a":
            place = f"{cell.kind} ({cell.engine} {cell.architecture})"
            reasons.setdefault(row["why"], []).append(place)
    lines += [f"n/a: {why}: {', '.join(dict.fromkeys(places))}" for why, places in reasons.items()]
    return "\n".join(lines)


def checkpoints(given: Sequence[str] = ()) -> dict[str, str]:
    """The checkpoint of each architecture: `NAME=FOLDER` as given, the others built by the `ascend-sim` command."""
    models = {}
    for item in given:
        name, equals, folder = item.partition("=")
        if not equals or name not in (*ARCHITECTURES.values(), "draft"):
            known = ", ".join((*ARCHITECTURES.values(), "draft"))
            raise GuardError(f"--model must be NAME=FOLDER with NAME among {known}, got {item!r}")
        models[name] = folder
    for name, recipe in [*((name, name) for name in ARCHITECTURES.values()), ("draft", "eagle")]:
        if name not in models:
            models[name] = _build(recipe)
    return models


def _build(recipe: str) -> str:
    code = "import sys; from ascend_sim.cli import app; app(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, "model", recipe], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise GuardError(f"inject needs ascend-sim beside vLLM, to build the model {recipe!r}: {last}")
    return done.stdout.strip().splitlines()[-1]


def main(arguments: Sequence[str]) -> int:
    """`kv-plan-guard inject`: 0 when every cell that exists was caught; GuardError for bad input."""
    parser = argparse.ArgumentParser(prog="kv-plan-guard inject", description="Plant faults in live engines.")
    parser.add_argument("--engine", action="append", help="sim, core; may be repeated (default: both)")
    parser.add_argument("--kind", action="append", help="a kind of fault; may be repeated (default: all)")
    parser.add_argument("--model", action="append", default=[], help="NAME=FOLDER of a checkpoint")
    parser.add_argument("--out", type=Path, default=Path("out/inject"), help="folder for results; kept ones count")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(list(arguments))
    wanted = cells(options.engine or ENGINES, options.kind)
    run(
        wanted,
        options.out,
        checkpoints(options.model),
        progress=lambda name: print(name, file=sys.stderr, flush=True),
    )
    summary = summarize(wanted, options.out)
    sys.stdout.write((json.dumps(summary, indent=1) if options.json else table(wanted, summary)) + "\n")
    return 0 if summary["passed"] else 1
