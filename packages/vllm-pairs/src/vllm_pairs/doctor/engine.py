"""Put the parts together: open both trees, read their outlines, run every rule."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from vllm_pairs.doctor import checks
from vllm_pairs.doctor.analysis import Analysis
from vllm_pairs.doctor.findings import Finding, Report
from vllm_pairs.doctor.hooks import check_hooks
from vllm_pairs.doctor.nodes import uncollected
from vllm_pairs.doctor.outline import Outline, outlines
from vllm_pairs.doctor.rules import BY_KIND
from vllm_pairs.doctor.severity import Severities
from vllm_pairs.doctor.sources import open_tree
from vllm_pairs.doctor.twin import can_fork
from vllm_pairs.doctor.world import World
from vllm_pairs.pairs import CORE_DISTRIBUTIONS, PLUGIN_DISTRIBUTION

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from vllm_pairs.doctor.hooks import HookSource
    from vllm_pairs.doctor.sources import Tree

CORE, PLUGIN = "vllm", "vllm_ascend"
FEW = 100  # modules of a plugin that one process checks


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
        with uncollected():
            findings = self._findings(core, plugin, hooks)
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
        # A copy of this process takes half of it, not where the core's syntax trees are to stay for the next plugin.
        checks.run(analysis, self.processes != 1 and len(plugin.sources) > FEW and can_fork(), self.progress)
        parsed = {module: tree for module, tree in world.parsed.items() if world.tree_of(module) is core}
        self._syntax = (core.sha256, parsed)  # of the last core only: a hundred megabytes or more
        made = analysis.findings(Severities(analysis).of)
        findings = [*_unreadable(world, analysis.walker.too_deep, core, plugin), *made]
        findings += check_hooks(analysis, hooks)
        return sorted(findings, key=lambda finding: finding.order)


def _unreadable(world: World, too_deep: set[str], *trees: Tree) -> list[Finding]:
    """What could not be read, as findings: parts that nothing is said of."""
    rule = BY_KIND["unreadable"]
    problems = [(problem.file, problem.line, problem.reason, tree) for tree in trees for problem in tree.problems]
    for tree in trees:
        for module, path in tree.files.items():
            if (problem := world.outlines[module].problem) is not None:
                problems.append((path, problem[0], problem[1], tree))
            elif module in too_deep:
                problems.append((path, 1, "nested too deeply: a part of it is not looked into", tree))
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
