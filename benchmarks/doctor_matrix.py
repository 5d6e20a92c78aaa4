"""`vllm-pairs doctor` over every plugin release and every core release, against what really failed when they were run.

Prints the matrix and, per cell of the truth, recall (each real failure is a finding) and precision (each error that the
doctor says comes at import or start-up is real); `out/doctor/summary.json` has the figures. The truth is what
`nox -s bench -- doctor_truth` left under out/doctor/truth, else the recorded one beside this script.
"""

# env: light

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT / "tools"))

import _doctor_join as join  # noqa: E402  # these are found on the path that was just set
import doctor_page  # noqa: E402
import doctor_sources  # noqa: E402
import envs  # noqa: E402

sys.path.pop(0)  # siblings of this script have names of libraries

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402
from vllm_pairs.doctor import Workbench  # noqa: E402
from vllm_pairs.doctor.command import cached_run  # noqa: E402

OUT = ROOT / "out" / "doctor"
RECORD = ROOT / "benchmarks" / "doctor_truth.json.xz"
PAGE_FIGURES = ROOT / "docs" / "figures" / "doctor.json"  # what the site's page is made from
LEAST_RECALL, LEAST_PRECISION = 0.95, 0.8
MOST_COLD_S, MOST_CACHED_S, MOST_MIB = 30.0, 5.0, 2048
SAID = ("error", "warning")  # what the doctor prints at its default confidence
CLI = [sys.executable, "-m", "vllm_pairs.cli", "doctor"]


def load_truth() -> dict[tuple[str, str], dict[str, Any]]:
    """Cells of the truth by (core, plugin): those run here, else those recorded."""
    files = sorted((OUT / "truth").glob("*.json"))
    if files:
        cells = [json.loads(path.read_text(encoding="utf-8")) for path in files]
    elif RECORD.is_file():
        cells = unpack(json.loads(lzma.decompress(RECORD.read_bytes())))
    else:
        cells = []
    return {(cell["core"], cell["plugin"]): cell for cell in cells}


def pack(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells as they are recorded: without edits, the lines that ran as ranges."""
    packed = []
    for cell in cells:
        executed = {
            name: {file: ranges(lines) for file, lines in sorted(table.items())}
            for name, table in cell["executed"].items()
        }
        packed.append({name: value for name, value in cell.items() if name != "edits"} | {"executed": executed})
    return {"version": 1, "cells": packed}


def unpack(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The inverse of `pack`, edits aside."""
    if record.get("version") != 1:
        raise ValueError(f"{RECORD.name}: version {record.get('version')!r}, this bench reads 1")
    for cell in record["cells"]:
        for table in cell["executed"].values():
            for file, pairs in table.items():
                table[file] = [line for first, last in pairs for line in range(first, last + 1)]
    return list(record["cells"])


def ranges(lines: list[int]) -> list[tuple[int, int]]:
    """Sorted lines as (first, last) of each run."""
    runs: list[tuple[int, int]] = []
    for line in lines:
        if runs and runs[-1][1] == line - 1:
            runs[-1] = runs[-1][0], line
        else:
            runs.append((line, line))
    return runs


def verified_core(plugin: str) -> str | None:
    """The core that a plugin release runs on: its pair is verified, or a baseline that runs with named substitutes."""
    for row in envs.buildable_rows():
        if row.get("vllm_ascend") == plugin and row["status"] in ("verified", "baseline"):
            return str(row["vllm"])
    return None


def verified_pairs() -> set[tuple[str, str]]:
    """Core and plugin of every verified pair."""
    return {(row["vllm"], row["vllm_ascend"]) for row in envs.buildable_rows() if row["status"] == "verified"}


def run_core(core: doctor_sources.Source, plugins: list[doctor_sources.Source]) -> dict[str, dict[str, Any]]:
    """Reports of one core's cells by plugin, each tree read once; kept by the content of all that they depend on."""
    bench = Workbench(processes=1)
    core_side = bench.core(core.tree, core.version)
    reports = {}
    for plugin in plugins:
        plugin_side = bench.plugin(plugin.tree, plugin.version)
        report = cached_run(bench, core_side, plugin_side, [], use_cache=True, folder=OUT / "reports")
        reports[plugin.version] = report.as_dict("medium")
    return reports


def run_doctor(
    console: Console, only_cores: list[str], only_plugins: list[str]
) -> dict[tuple[str, str], dict[str, Any]]:
    """The report of every cell, or of those named: cores side by side, one to a processor."""
    every = doctor_sources.sources()
    cores = [s for s in every if s.kind == "core" and s.version in (only_cores or [s.version])]
    plugins = [s for s in every if s.kind == "plugin" and s.version in (only_plugins or [s.version])]
    for source in (*cores, *plugins):
        doctor_sources.ensure(source, console.print)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        running = {core.version: pool.submit(run_core, core, plugins) for core in cores}
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"{len(cores)} cores x {len(plugins)} plugins", total=len(cores))
            for _ in as_completed(running.values()):
                progress.advance(task)
    return {(core, plugin): report for core in running for plugin, report in running[core].result().items()}


def newest_pair() -> tuple[Path, Path]:
    """Trees of the newest plugin and of the core that it was made for."""
    every = doctor_sources.sources()
    plugin = every[-1]
    core = next(s for s in every if s.kind == "core" and doctor_sources.same_release(s.version, plugin.version))
    return core.tree, plugin.tree


def timed_command(core: Path, plugin: Path) -> dict[str, float]:
    """Seconds of the command with an empty cache and again with what it left there, and its peak memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"XDG_CACHE_HOME": folder}
        seconds = []
        for _ in range(2):
            started = time.monotonic()
            command = [*CLI, "--core", str(core), "--plugin", str(plugin), "--json"]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            seconds.append(round(time.monotonic() - started, 2))
            if done.returncode not in (0, 1):
                raise RuntimeError(f"{' '.join(command[1:])}: exit status {done.returncode}: {done.stderr[-500:]}")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"seconds_cold": seconds[0], "seconds_cached": seconds[1], "peak_mib": round(peak)}


def compare(
    reports: dict[tuple[str, str], dict[str, Any]], cells: dict[tuple[str, str], dict[str, Any]]
) -> list[join.Verdict]:
    """Every cell of the truth that is not a plugin's own working pair."""
    verdicts = []
    for (core, plugin), cell in cells.items():
        own = verified_core(plugin)
        if core == own or (core, plugin) not in reports:
            continue
        baseline = cells.get((own, plugin)) if own else None
        if own and baseline is None:
            continue  # nothing says which failures the plugin has anyway
        verdicts.append(join.judge(cell, baseline, reports[core, plugin]["findings"], SAID))
    return verdicts


def cell_row(
    core: str, plugin: str, report: dict[str, Any], cell: dict[str, Any] | None, verdict: join.Verdict | None
) -> dict[str, Any]:
    """One cell of the matrix as the summary has it."""
    counts = report["counts"]
    row: dict[str, Any] = {"core": core, "plugin": plugin, "errors": counts["error"], "warnings": counts["warning"]}
    early = [f for f in report["findings"] if f["level"] == "error" and f["severity"] in join.EARLY]
    row["early_errors"] = len(early)
    row["verified"] = (core, plugin) in verified_pairs()
    row["own"] = core == verified_core(plugin)
    if row["verified"]:  # few, and each has to be explained
        kept = ("id", "level", "severity", "confidence", "symbol", "file", "line", "message")
        row["findings"] = [{name: f[name] for name in kept} for f in report["findings"] if f["level"] in SAID]
    if cell:
        phases = cell["phases"]
        row["ran"] = "step" if phases.get("dense", {}).get("done") else phases.get("dense", {}).get("stage", "import")
        row["stopped_by"] = phases.get("dense", {}).get("stopped_by", "")
    if verdict:
        row |= {"real": len(verdict.rows), "found": verdict.found, "found_as_error": len(verdict.rows)}
        row["found_as_error"] -= verdict.missed_as_error
        row["judged"] = {word: len(findings) for word, findings in verdict.judged.items()}
        row["excluded"] = verdict.excluded
        row["missed"] = [
            f"{r.kind} {r.symbol} {r.argument} {r.file}:{r.line}".replace("  ", " ") for r in verdict.missed
        ]
        for word in ("false", "unclear", "not reached"):
            row[word] = [f"{f['id']} {f['symbol']} {f['name']} {f['file']}:{f['line']}" for f in verdict.judged[word]]
    return row


def summary(rows: list[dict[str, Any]], verdicts: list[join.Verdict], times: dict[str, float]) -> dict[str, Any]:
    """The figures, the rows and whether all bounds hold."""
    on_verified, reasons = [row for row in rows if row["verified"]], doctor_page.reasons()
    real = sum(len(verdict.rows) for verdict in verdicts)
    found = sum(verdict.found for verdict in verdicts)
    judged = {word: sum(len(verdict.judged[word]) for verdict in verdicts) for word in join.WORDS}
    figures: dict[str, Any] = {
        "cells": len(rows),
        "cells_with_truth": sum("real" in row and row["ran"] != "import" for row in rows),
        "errors_on_verified": sum(row["errors"] for row in on_verified),
        "warnings_on_verified": sum(row["warnings"] for row in on_verified),
        "warnings_unexplained": sum(one["id"] not in reasons for row in on_verified for one in row["findings"]),
        "real_failures": real,
        "recall": join.ratio(found, real),
        "recall_as_error": join.ratio(real - sum(verdict.missed_as_error for verdict in verdicts), real),
        "precision": join.ratio(judged["real"], judged["real"] + judged["false"]),
        **{f"early_errors_{word.replace(' ', '_')}": judged[word] for word in join.WORDS},
        **times,
    }
    bounds = {
        "errors_on_verified": figures["errors_on_verified"] == 0,
        "warnings_unexplained": figures["warnings_unexplained"] == 0,
        "cells_with_truth": figures["cells_with_truth"] >= 12,  # imported only is not enough: the runner was tried
        "recall": (figures["recall"] or 0.0) >= LEAST_RECALL,
        "precision": (figures["precision"] or 0.0) >= LEAST_PRECISION,
    }
    limits = {"seconds_cold": MOST_COLD_S, "seconds_cached": MOST_CACHED_S, "peak_mib": MOST_MIB}
    bounds |= {name: times[name] < limit for name, limit in limits.items() if name in times}
    host = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    host["system"] = platform.system()
    return {
        "name": "doctor",
        "version": 1,
        "pair": "all",
        "host": host,
        "seed": 0,
        "figures": figures,
        "bounds": bounds,
        "rows": rows,
        "passed": all(bounds.values()),
    }


def show(console: Console, report: dict[str, Any]) -> None:
    """The matrix, the truth's table, what was missed and what was false."""
    rows = report["rows"]
    plugins = list(dict.fromkeys(row["plugin"] for row in rows))
    matrix = Table("core", *plugins, title="errors / warnings of the doctor")
    for core in dict.fromkeys(row["core"] for row in rows):
        cells = {row["plugin"]: f"{row['errors']} / {row['warnings']}" for row in rows if row["core"] == core}
        matrix.add_row(core, *(cells[plugin] for plugin in plugins))
    console.print(matrix)
    columns = ("core", "plugin", "ran to", "real", "found", "as error", *(f"early: {word}" for word in join.WORDS))
    truth = Table(*columns, title="against execution")
    for row in rows:
        if "real" in row:
            judged = [row["judged"][word] for word in join.WORDS]
            values = [row["core"], row["plugin"], row["ran"], row["real"], row["found"], row["found_as_error"], *judged]
            truth.add_row(*map(str, values))
    console.print(truth)
    for word in ("missed", "false", "unclear", "not reached"):
        for row in rows:
            for line in row.get(word, ()):
                console.print(
                    f"{word}: {row['core']} + {row['plugin']}: {line}", markup=False, highlight=False, soft_wrap=True
                )
    for name, value in report["figures"].items():
        text = f"{value:.3f}" if isinstance(value, float) else str(value)
        holds = {True: "", False: "  does not hold"}[report["bounds"].get(name, True)]
        console.print(f"{name:26} {text}{holds}", highlight=False)


def main(argv: list[str] | None = None) -> int:
    """Run, print, write; exit status 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--record",
        action="store_true",
        help="record the truth that was run here beside this script, and the figures for the site",
    )
    parser.add_argument("--core", action="append", default=[], help="only this core release; no figure is written")
    parser.add_argument("--plugin", action="append", default=[], help="only this plugin release; likewise")
    options = parser.parse_args(argv)
    console = Console()
    part = bool(options.core or options.plugin)
    try:
        cells = load_truth()
        if options.record:
            packed = json.dumps(pack(list(cells.values())), separators=(",", ":"), sort_keys=True)
            RECORD.write_bytes(lzma.compress(packed.encode(), preset=9 | lzma.PRESET_EXTREME))
            console.print(f"recorded {len(cells)} cells in {RECORD.relative_to(ROOT)}")
        reports = run_doctor(console, options.core, options.plugin)
        times = {} if part else timed_command(*newest_pair())
    except envs.EnvError as error:
        console.print(f"doctor: {error}", style="red", markup=False)
        return 2
    verdicts = compare(reports, cells)
    by_cell = {(verdict.core, verdict.plugin): verdict for verdict in verdicts}
    rows = [cell_row(*key, report, cells.get(key), by_cell.get(key)) for key, report in reports.items()]
    report = summary(rows, verdicts, times)
    if part:
        show(console, report)
        return 0
    for path in (OUT / "summary.json", *([PAGE_FIGURES] if options.record else [])):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        os.replace(scratch, path)
    show(console, report)
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
