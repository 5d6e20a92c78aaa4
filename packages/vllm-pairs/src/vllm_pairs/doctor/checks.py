"""Every rule over a plugin's modules, or over a share of them; the shares of two processes are put together.

First the modules are read: what is imported, read and called, and what the plugin puts where. Overrides and
replacements are judged when all of that is known, whichever module says it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor import attributes, imports
from vllm_pairs.doctor.callables import Callables
from vllm_pairs.doctor.calls import CallRule
from vllm_pairs.doctor.narrowed import NarrowedRule
from vllm_pairs.doctor.overrides import OverrideRule
from vllm_pairs.doctor.replacements import Replacement, ReplacementRule, collect
from vllm_pairs.doctor.sites import Sites
from vllm_pairs.doctor.twin import Twin
from vllm_pairs.doctor.uninitialised import check_uninitialised

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.places import Place


class Checks:
    """The rules over some of the plugin's modules."""

    def __init__(self, analysis: Analysis, modules: list[str]) -> None:
        self.analysis, self.modules = analysis, modules
        self._callables, self._sites = Callables(analysis), Sites(analysis)
        self._calls = CallRule(analysis, self._callables)
        self._replaced: list[Replacement] = []
        self._classes: list[tuple[ast.ClassDef, Place]] = []

    def read(self, step: Callable[[], None]) -> None:
        """Look at every node; `step` is called after each module."""
        analysis = self.analysis
        for module in self.modules:
            for node, place in analysis.walker.module(module):
                kind = node.__class__
                if kind is ast.Attribute:
                    attributes.check_attributes(analysis, node, place)
                elif kind is ast.Call:
                    imports.check_imports(analysis, node, place)
                    attributes.check_attributes(analysis, node, place)
                    self._calls.check(node, place)
                    collect(analysis, node, place, self._replaced)
                elif isinstance(node, ast.ClassDef):
                    self._classes.append((node, place))
                elif kind is ast.Import or kind is ast.ImportFrom:
                    imports.check_imports(analysis, node, place)
                elif kind is ast.Assign:
                    collect(analysis, node, place, self._replaced)
            step()

    def judge(self) -> None:
        """Look at classes and replacements, all modules having been read."""
        overrides = OverrideRule(self.analysis, self._callables, self._sites)
        for node, place in self._classes:
            overrides.check(node, place)
            check_uninitialised(self.analysis, node, place)
        rule = ReplacementRule(self.analysis, self._callables, self._sites)
        for one in self._replaced:
            rule.check(one)
        narrowed = NarrowedRule(self.analysis, self._sites)
        for node, place in self._classes:
            narrowed.check(node, place)


def run(analysis: Analysis, fork: bool, progress: Callable[[str, int, int], None]) -> None:
    """Run every rule over the plugin; with `fork`, half of its modules in a copy of this process."""
    modules = analysis.plugin_modules()
    shares: tuple[list[str], list[str]] = _shares(analysis, modules) if fork else (modules, [])
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        progress("checking the plugin", min(len(modules), done * len(modules) // len(shares[0])), len(modules))

    def other(talk: Callable[[Any], Any]) -> Any:
        its = Checks(analysis, shares[1])
        its.read(lambda: None)
        analysis.take_put(talk(analysis.put()))
        its.judge()
        return analysis.found()

    twin = None
    if fork:
        try:
            twin = Twin(other)
        except OSError:  # no room for another process: all of it here
            shares = (modules, [])
    try:
        own = Checks(analysis, shares[0])
        own.read(step)
        if twin is not None:
            its = twin.receive()
            twin.send(analysis.put())
            analysis.take_put(its)
        own.judge()
        if twin is not None:
            analysis.take_found(twin.receive())
    finally:
        if twin is not None:
            twin.end()


def _shares(analysis: Analysis, modules: list[str]) -> tuple[list[str], list[str]]:
    """The modules in two parts of about one size."""
    sources = analysis.world.roots[analysis.plugin].sources
    parts: tuple[list[str], list[str]] = [], []
    sizes = [0, 0]
    for module in sorted(modules, key=lambda name: len(sources.get(name, b"")), reverse=True):
        smaller = sizes.index(min(sizes))
        parts[smaller].append(module)
        sizes[smaller] += len(sources.get(module, b""))
    return sorted(parts[0]), sorted(parts[1])
