"""Where the core itself calls something: its call sites by name, with what the called expression is."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.options import Options
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.places import Place

MOST_MODULES = 60  # a name that more modules call (forward, get, append ...) is looked for only near its class


class Placed(Protocol):
    """Something that stands in the core."""

    @property
    def place(self) -> Place:
        """With these surroundings."""


@dataclass(frozen=True, slots=True)
class Site:
    """A call in the core."""

    module: str
    node: ast.Call
    place: Place


class Sites:
    """Call sites of the core; a module is walked at the first question about it."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.options = analysis, Options(analysis.inference)
        self._placed: dict[str, dict[str, list[Site]]] = {}
        self._calls: dict[str, dict[str, list[ast.Call]]] = {}
        self._calling: dict[str, list[str]] = {}
        for module, outline in sorted(analysis.world.outlines.items()):
            if analysis.core in (module, module.partition(".")[0]):
                for name in outline.calls:
                    self._calling.setdefault(name, []).append(module)

    def modules(self, name: str) -> list[str]:
        """The core's modules that call something of this name."""
        return self._calling.get(name, [])

    def of(self, name: str, module: str, wanted: Callable[[ast.Call], bool]) -> list[Site]:
        """The calls of a name in one module for which `wanted` holds; surroundings are looked at only for those."""
        if not any(wanted(call) for call in self._named(module).get(name, ())):
            return []
        if module not in self._placed:
            found: dict[str, list[Site]] = {}
            for node, place in self.analysis.walker.module(module):
                if isinstance(node, ast.Call) and not place.typing and (last := called_name(node)):
                    found.setdefault(last, []).append(Site(module, node, place))
            self._placed[module] = found
        return [site for site in self._placed[module].get(name, []) if wanted(site.node)]

    def _named(self, module: str) -> dict[str, list[ast.Call]]:
        if module not in self._calls:
            found: dict[str, list[ast.Call]] = {}
            tree = self.analysis.world.syntax(module)
            for node in walk(tree) if tree is not None else ():
                if isinstance(node, ast.Call) and (last := called_name(node)):
                    found.setdefault(last, []).append(node)
            self._calls[module] = found
        return self._calls[module]

    def receivers(self, site: Site) -> list[Value]:
        """What a method may be called on at a site: what it is annotated with, and everything that is put there."""
        if not isinstance(site.node.func, ast.Attribute):
            return []
        return self.options.of(site.node.func.value, site.place.scope)

    def receiver(self, site: Site) -> Value | None:
        """What a method is called on at a site, None where it is not known (or nothing: a bare name)."""
        if not isinstance(site.node.func, ast.Attribute):
            return None
        found = self.analysis.inference.value(site.node.func.value, site.place.scope)
        return found if isinstance(found, Value) else None


def replaced(analysis: Analysis, site: Placed) -> bool:
    """Whether the plugin puts something else in place of the function that a site stands in."""
    function = site.place.function
    if function is None:
        return False
    outer, _, name = function.qualname.partition(".<locals>")[0].rpartition(".")
    ref = Ref(function.module, outer)
    below = analysis.classes.subclasses(ref) if outer else ()
    return any((str(one), name) in analysis.injected for one in (ref, *below))


def still_runs(analysis: Analysis, ref: Ref, site: Placed) -> bool:
    """Whether the core method that a site stands in runs for a class of the plugin: inherited, or called by its own."""
    function = site.place.function
    if function is None:
        return False
    outer, _, method = function.qualname.partition(".<locals>")[0].rpartition(".")
    if replaced(analysis, site):
        return False
    found = analysis.classes.owner(ref, method)
    if found is None or analysis.is_core(found):
        return found == Ref(function.module, outer)
    node = analysis.world.node(Ref(found.module, f"{found.qualname}.{method}"))
    return node is not None and any(
        isinstance(part, ast.Attribute) and part.attr == method and isinstance(part.ctx, ast.Load)
        for part in walk(node)
    )


def called_name(call: ast.Call) -> str:
    """The last name of what is called, also behind a kernel's grid; "" for none."""
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
