"""The command `vllm-pairs doctor`: open both sides, answer from the cache or run, hide, bisect, print."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from vllm_pairs.doctor import cache, render, sarif, since, suppress
from vllm_pairs.doctor.engine import Workbench
from vllm_pairs.doctor.findings import CONFIDENCES, Confidence, DoctorError, Report
from vllm_pairs.doctor.hooks import hook_packages, read_hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID

    from vllm_pairs.doctor.hooks import HookSource
    from vllm_pairs.doctor.sources import Tree


_REDRAW_S = 0.1


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line."""

    core: str = ""
    plugin: str = ""
    core_version: str | None = None
    plugin_version: str | None = None
    confidence: str = "medium"
    since: tuple[str, ...] = ()
    suppressions: Path | None = None
    hooks: tuple[str, ...] = ()
    explain: str = ""
    output: str = "table"
    use_cache: bool = True


@contextlib.contextmanager
def progress_shown() -> Iterator[Callable[[str, int, int], None]]:
    """A progress line on standard error, gone when the work is done; nothing where that is no terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn when something is done and not by a thread of its own: with one, this process could not be forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        tasks: dict[str, TaskID] = {}
        drawn = 0.0

        def show(what: str, done: int, of: int) -> None:
            nonlocal drawn
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done)
            if done == of or time.monotonic() - drawn > _REDRAW_S:
                drawn = time.monotonic()
                bar.refresh()

        yield show


def run(request: Request) -> int:
    """Run the command; returns the exit status: 1 with errors, else 0. DoctorError for input that cannot be used."""
    if request.explain and "-" not in request.explain:
        print(render.explain(request.explain))
        return 0
    confidence = _confidence(request.confidence)
    suppressions = suppress.load(request.suppressions) if request.suppressions is not None else ()
    with progress_shown() as progress:
        report = make_report(request, Workbench(progress))
    report, said = suppress.apply(report, suppressions)
    for text in said:
        print(f"vllm-pairs doctor: {text}", file=sys.stderr)
    if request.explain:
        print(render.explain(request.explain, report))
        return 0
    _print(report, confidence, request.output)
    return 1 if report.count("error", confidence) else 0


def make_report(request: Request, bench: Workbench) -> Report:
    """The report of the request's cell, with `since` where older cores are given."""
    start = time.perf_counter()
    plugin = bench.plugin(request.plugin, request.plugin_version)
    hooks = _hooks(request.hooks)

    def cell(where: str, version: str | None) -> Report:
        return cached_run(bench, bench.core(where, version), plugin, hooks, request.use_cache)

    report = cell(request.core, request.core_version)
    if request.since:
        report = since.bisect(report, list(request.since), lambda where: cell(where, None), bench)
    return replace(report, seconds=time.perf_counter() - start)


def cached_run(
    bench: Workbench, core: Tree, plugin: Tree, hooks: list[HookSource], use_cache: bool, folder: Path | None = None
) -> Report:
    """One cell from the cache, or made and kept."""
    path = cache.path_of(folder or cache.default_folder(), core, plugin, also=repr(hooks))
    if use_cache and (kept := cache.read(path)) is not None:
        return replace(kept, cached=True)
    report = bench.run(core, plugin, hooks)
    if use_cache:
        cache.write(path, report)
    return report


def _hooks(wanted: tuple[str, ...]) -> list[HookSource]:
    folders = [Path(one) for one in wanted] if wanted else [folder for _, folder in hook_packages()]
    return [source for folder in folders for source in read_hooks(folder)]


def _confidence(text: str) -> Confidence:
    for one in CONFIDENCES:
        if one == text:
            return one
    raise DoctorError(f"--confidence must be one of {', '.join(CONFIDENCES)}, got {text!r}")


def _print(report: Report, confidence: Confidence, output: str) -> None:
    if output == "json":
        print(json.dumps(report.as_dict(confidence), indent=2))
    elif output == "sarif":
        from vllm_pairs import __version__

        print(json.dumps(sarif.as_sarif(report, confidence, __version__), indent=2))
    elif output == "table":
        if report.at(confidence):
            Console().print(render.as_table(report, confidence))
        print(render.summary(report, confidence))
    else:
        raise DoctorError(f"--format must be table, json or sarif, got {output!r}")
