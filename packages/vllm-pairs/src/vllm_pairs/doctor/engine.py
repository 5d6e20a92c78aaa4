"""Put the parts together: open both trees, read their outlines, run every rule."""

from __future__ import annotations

import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from vllm_pairs.doctor import attributes, imports
from vllm_pairs.doctor.analysis import Analysis
from vllm_pairs.doctor.callables import Callables
from vllm_pairs.doctor.calls import CallRule
from vllm_pairs.doctor.findings import Finding, Report
from vllm_pairs.doctor.hooks import check_hooks
from vllm_pairs.doctor.narrowed import NarrowedRule
from vllm_pairs.doctor.outline import Outline, outlines
from vllm_pairs.doctor.overrides import OverrideRule
from vllm_pairs.doctor.replacements import Replacement, ReplacementRule, collect
from vllm_pairs.doctor.rules import BY_KIND
from vllm_pairs.doctor.severity import Severities
from vllm_pairs.doctor.sites import Sites
from vllm_pairs.doctor.sources import open_tree
from vllm_pairs.doctor.uninitialised import check_uninitialised
from vllm_pairs.doctor.world import World
from vllm_pairs.pairs import CORE_DISTRIBUTIONS, PLUGIN_DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vllm_pairs.doctor.hooks import HookSource
    from vllm_pairs.doctor.sources import Tree

CORE, PLUGIN = "vllm", "vllm_ascend"


def _silent(what: str, done: int, of: int) -> None:
    """No progress is shown."""


class Workbench:
    """Runs cells of cores and plugins; a tree and its outlines are read once and shared by its cells."""

    def __init__(self, progress: Callable[[str, int, int], None] = _silent, processes: int | None = None) -> None:
        self.progress, self.processes = progress, processes
        self._trees: dict[tuple[str, str, str | None], Tree] = {}
        self._syntax: tuple[str, dict[str, ast.Module | None]] = ("", {})
        self._outlines: dict[tuple[str, str | None], dict[str, Outline]] = {}

    def core(self, where: str | Path, version: str | None = None) -> Tree:
        """The core's tree."""
        return self._open(where, CORE, CORE_DISTRIBUTIONS, version)

    def plugin(self, where: str | Path, version: str | None = None) -> Tree:
        """The plugin's tree."""
        return self._open(where, PLUGIN, (PLUGIN_DISTRIBUTION,), version)

    def _open(self, where: str | Path, package: str, names: tuple[str, ...], version: str | None) -> Tree:
        key = (str(where), package, version)
        if key not in self._trees:
            self._trees[key] = open_tree(where, package, names, version)
        return self._trees[key]

    def outlines_of(
        self, tree: Tree, core_version: str | None, keep: dict[str, ast.Module | None] | None = None
    ) -> dict[str, Outline]:
        """The outlines of a tree, as the core's version decides its branches."""
        key = (tree.sha256, core_version)
        if key not in self._outlines:
            done = 0

            def step(count: int) -> None:
                nonlocal done
                done += count
                self.progress(f"reading {tree.name} {tree.version or ''}", done, len(tree.sources))

            self._outlines[key] = outlines(tree, core_version, self.processes, step, keep)
        return self._outlines[key]

    def run(self, core: Tree, plugin: Tree, hooks: Sequence[HookSource] = ()) -> Report:
        """All findings of one cell; `hooks` are targets to look for."""
        start = time.perf_counter()
        collecting = gc.isenabled()
        gc.disable()  # hundreds of megabytes of syntax trees, without cycles worth a search
        try:
            findings = self._findings(core, plugin, hooks)
        finally:
            if collecting:
                gc.enable()
        return Report(core.info, plugin.info, tuple(findings), seconds=time.perf_counter() - start)

    def _findings(self, core: Tree, plugin: Tree, hooks: Sequence[HookSource]) -> list[Finding]:
        kept: dict[str, ast.Module | None] = {}
        if self._syntax[0] == core.sha256:
            kept.update(self._syntax[1])
        with ThreadPoolExecutor(1) as other:  # the core's files go to processes, the plugin's are read here meanwhile
            reading = other.submit(self.outlines_of, core, core.version)
            of_plugin = self.outlines_of(plugin, core.version, kept)
            of_core = reading.result()
        world = World(core.version, (core, of_core), (plugin, of_plugin), kept=kept)
        analysis = Analysis(world, CORE, PLUGIN)
        self._rules(analysis)
        parsed = {module: tree for module, tree in world.parsed.items() if world.tree_of(module) is core}
        self._syntax = (core.sha256, parsed)  # of the last core only: a hundred megabytes or more
        findings = [*_unreadable(world, core, plugin), *analysis.findings(Severities(analysis).of)]
        findings += check_hooks(analysis, hooks)
        return sorted(findings, key=lambda finding: finding.order)

    def _rules(self, analysis: Analysis) -> None:
        callables, sites = Callables(analysis), Sites(analysis)
        calls, overrides = CallRule(analysis, callables), OverrideRule(analysis, callables, sites)
        replaced: list[Replacement] = []
        modules = analysis.plugin_modules()
        for number, module in enumerate(modules, 1):
            for node, place in analysis.walker.module(module):
                kind = node.__class__
                if kind is ast.Attribute:
                    attributes.check_attributes(analysis, node, place)
                elif kind is ast.Call:
                    imports.check_imports(analysis, node, place)
                    attributes.check_attributes(analysis, node, place)
                    calls.check(node, place)
                    collect(analysis, node, place, replaced)
                elif kind is ast.ClassDef:
                    overrides.check(node, place)
                    check_uninitialised(analysis, node, place)
                elif kind is ast.Import or kind is ast.ImportFrom:
                    imports.check_imports(analysis, node, place)
                elif kind is ast.Assign:
                    collect(analysis, node, place, replaced)
            self.progress("checking the plugin", number, len(modules))
        rule = ReplacementRule(analysis, callables, sites)
        for one in replaced:
            rule.check(one)
        narrowed = NarrowedRule(analysis, sites)  # knows by now what is replaced
        for module in modules:
            for node, place in analysis.walker.classes(module):
                narrowed.check(node, place)


def _unreadable(world: World, *trees: Tree) -> list[Finding]:
    """What could not be read, as findings: parts that nothing is said of."""
    rule = BY_KIND["unreadable"]
    problems = [(problem.file, problem.line, problem.reason, tree) for tree in trees for problem in tree.problems]
    for tree in trees:
        for module, path in tree.files.items():
            if (problem := world.outlines[module].problem) is not None:
                problems.append((path, problem[0], problem[1], tree))
    return [
        Finding(
            rule=rule.id,
            kind=rule.kind,
            exception="",
            severity="rare-path",
            level="warning",
            confidence="high",
            symbol=file,
            name="",
            file=file,
            line=line,
            end_line=line,
            message=f"{file}: {reason}",
            core_file=file if tree.package == CORE else None,
            core_line=line if tree.package == CORE else None,
        )
        for file, line, reason, tree in problems
    ]
