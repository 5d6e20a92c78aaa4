"""Cells of the doctor's ground truth: one core, several plugins, in the core's environment.

``python _doctor_cell.py JOB.json``. The process imports torch and vLLM once under the simulator and forks for every
attempt, the plugin's tree first on the path: first all plugin modules are imported, then the Model Runner V2 is
constructed and stepped. A failure is recorded with its site, repaired by an edit of that site alone, and the attempt is
made again until nothing new fails or no repair is known.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _doctor_book import Book
from _doctor_edits import PLUGIN, Edit
from _doctor_runs import FIRST, import_all, modules, run_engine, run_platform

# What the engine imports anyway; the parent has it, so that an attempt costs seconds.
CORE_MODULES = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.worker.gpu.model_runner",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.worker.cpu.model_runner",
    "vllm.v1.executor.uniproc_executor",
    "vllm.model_executor.models.qwen2",
    "vllm.model_executor.models.llama_eagle",
    "vllm.v1.attention.backends.cpu_attn",
)
ATTEMPT_SECONDS = 150
MOST_ATTEMPTS = 60


def log(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


class Cell:
    """The attempts of one core and one plugin; goes on from what an earlier run of it left."""

    def __init__(self, job: dict[str, Any], cell: dict[str, Any]) -> None:
        self.job, self.cell, self.name = job, cell, str(cell["name"])
        self.tree = Path(cell["tree"])
        self.book = Book(self.tree)
        self.rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.executed: dict[str, dict[str, set[int]]] = {"lines": {}, "entered": {}}
        self.notes: dict[str, Any] = {}
        self.seconds = 0.0
        with contextlib.suppress(FileNotFoundError):
            self._take_up(json.loads(Path(cell["out"]).read_text()))

    def _take_up(self, earlier: dict[str, Any]) -> None:
        for row in earlier["rows"]:
            self.rows[_key(row)] = row
        self.book.add(Edit(**edit) for edit in earlier["edits"] if not edit["name"].startswith(f"{PLUGIN}."))
        for name, table in earlier["executed"].items():
            self.executed[name] = {file: set(lines) for file, lines in table.items()}
        self.notes, self.seconds = earlier["phases"], earlier["seconds"]

    def fork(self, function: Any, *arguments: Any) -> dict[str, Any]:
        """Run a function in a forked child; its result, or what ended it."""
        out = Path(self.cell["out"]).with_suffix(".child")
        out.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            status = 1
            try:
                with Path(self.cell["log"]).open("a") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                self.enter()
                out.write_text(json.dumps(function(*arguments)))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        deadline = time.monotonic() + ATTEMPT_SECONDS
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                if out.exists():
                    result = dict(json.loads(out.read_text()))
                    out.unlink()
                    return result
                return {"ended": f"exit status {os.waitstatus_to_exitcode(status)}"}
            time.sleep(0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return {"ended": f"killed after {ATTEMPT_SECONDS} s"}

    def enter(self) -> None:
        """In a child: the plugin's tree comes first, here and in processes that vLLM starts."""
        sys.path.insert(0, str(self.tree))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.tree), os.environ.get("PYTHONPATH")]))
        self.book.install()

    def take(self, result: dict[str, Any], phase: str) -> list[Edit]:
        """Keep a child's rows and traces; returns the edits that are new."""
        for name, table in result.get("trace", {}).items():
            for file, lines in table.items():
                self.executed[name].setdefault(file, set()).update(lines)
        fresh: list[Edit] = []
        for row in result.get("findings", ()):
            edits = [Edit(**edit) for edit in row.pop("edits")]
            fresh += self.book.add(edits)
            self.rows.setdefault(_key(row), {"phase": phase} | row)
        return fresh

    def run(self, phases: list[str]) -> None:
        """Run phases and write the cell's file in one step after each."""
        for phase in phases:
            if phase == "eagle" and not self.notes.get("dense", {}).get("done"):
                self.notes[phase] = {"skipped": "the run without drafts did not end"}
                continue
            started = time.monotonic()
            if phase == "import":
                self.import_phase()
            else:
                self.run_phase(phase)
            self.seconds = round(self.seconds + time.monotonic() - started, 1)
            self.save(self.notes)

    def save(self, phases: dict[str, Any]) -> None:
        """Write the cell's file in one step; `phases` are those that need not be run again."""
        out = Path(self.cell["out"])
        scratch = out.with_suffix(".tmp")
        scratch.write_text(json.dumps(self.result() | {"phases": phases}))
        os.replace(scratch, out)

    def import_phase(self) -> None:
        """Import every module in a fresh child, then those with repairs in others until one finds nothing new."""
        names = every = modules(self.tree)
        failed: dict[str, str] = {}
        for round_number in range(1, 9):
            result = self.fork(import_all, self.book, names)
            fresh = self.take(result, "import")
            failed = {name: why for name, why in failed.items() if name not in names} | result.get("failed", {})
            self.notes["import"] = {
                "modules": len(every),
                "imported": len(every) - len(failed) if "failed" in result else 0,
                "failed": failed,
                "rounds": round_number,
                "ended": result.get("ended", ""),
            }
            log(
                f"{self.name}: import round {round_number}: {result.get('imported')} of {len(names)} modules, "
                f"{len(self.rows)} rows, {len(fresh)} new edits {result.get('ended', '')}"
            )
            if not fresh:
                return
            edited = {file.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for file in self.book.edits}
            # The start-up's modules always, and first: the plugin has circular imports that only their order avoids.
            first = {PLUGIN + name for name in FIRST}
            names = [name for name in every if name in edited or name in failed or name in first]

    def run_phase(self, scenario: str) -> None:
        """Construct and step the runner until it works or no repair is known."""
        for attempt in range(1, MOST_ATTEMPTS + 1):
            function = run_platform if scenario == "platform" else run_engine
            result = self.fork(function, self.book, self.job, scenario)
            phase = "start-up" if result.get("stage", "start-up") == "start-up" else "step"
            fresh = self.take(result, phase)
            self.notes[scenario] = {
                "attempts": attempt,
                "stage": result.get("stage", ""),
                "done": result.get("stage") == "done",
                "stopped_by": result.get("error", "") or result.get("ended", ""),
            }
            log(
                f"{self.name}: {scenario} attempt {attempt}: {result.get('stage')} "
                f"{result.get('error', '')[:150]} {result.get('ended', '')}"
            )
            if result.get("stage") == "done" or not fresh:
                return
            self.save({name: note for name, note in self.notes.items() if name != scenario})

    def result(self) -> dict[str, Any]:
        """What the truth's file holds."""
        return {
            "core": self.job["core"],
            "plugin": self.cell["plugin"],
            "seconds": self.seconds,
            "rows": sorted(self.rows.values(), key=lambda row: (row["file"], row["line"], row["symbol"])),
            "edits": [asdict(edit) for edits in self.book.edits.values() for edit in edits],
            "phases": self.notes,
            "executed": {n: {f: sorted(s) for f, s in t.items()} for n, t in self.executed.items()},
        }


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["kind"], row["symbol"], row["argument"], row["file"], row["line"]


def prepare(job: dict[str, Any]) -> None:
    """Activate the simulator and import torch and the core, not the plugin."""
    os.environ.update(job["environment"])
    import importlib.metadata as metadata

    import ascend_sim

    ascend_sim.activate()
    answer = metadata.entry_points

    def without_kit(**select: Any) -> Any:
        """The kit's own plugins are not what is looked at."""
        found: Any = answer(**select)
        kit = ("mrv2_metadata", "kv_plan_guard", "layerwise_sched", "vllm_pairs")
        if str(select.get("group", "")).startswith("vllm."):
            return type(found)(point for point in found if not point.value.startswith(kit))
        return found

    metadata.entry_points = without_kit
    for name in CORE_MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            log(f"core {job['core']} lacks {name}: {error}")
    import vllm.model_executor.models.registry as registry

    # A model's class is looked at in a process of its own, which imports all of this again: here it is a fork already.
    registry._run_in_subprocess = lambda function: function()
    if any(name.partition(".")[0] == PLUGIN and name != f"{PLUGIN}.vllm_ascend_C" for name in sys.modules):
        raise RuntimeError("the core imported the plugin: its modules cannot be looked at one by one")


def main(arguments: list[str]) -> int:
    """Run the job's cells one after the other."""
    job = json.loads(Path(arguments[0]).read_text())
    sys.path.pop(0)  # this script's folder: it has siblings named like libraries
    if job["core_tree"]:  # a core that no environment has: over another core's
        sys.path.insert(0, job["core_tree"])
        os.environ["PYTHONPATH"] = job["core_tree"]
    started = time.monotonic()
    prepare(job)
    log(f"core {job['core']} imported after {time.monotonic() - started:.0f} s")
    for cell in job["cells"]:
        Cell(job, cell).run(cell["phases"])
    sys.stdout.flush()
    os._exit(0)  # the engine's threads need no orderly end


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
