"""Where the core itself calls something: its call sites by name, with what the called expression is."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_pairs.doctor.walk import Place
from vllm_pairs.doctor.world import Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.analysis import Analysis

MOST_MODULES = 60  # a name that more modules call (forward, get, append ...) is looked for only near its class


@dataclass(frozen=True, slots=True)
class Site:
    """A call in the core."""

    module: str
    node: ast.Call
    place: Place


class Sites:
    """Call sites of the core; a module is walked at the first question about it."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self._by_module: dict[str, dict[str, list[Site]]] = {}
        self._calling: dict[str, list[str]] = {}
        for module, outline in sorted(analysis.world.outlines.items()):
            if analysis.core in (module, module.partition(".")[0]):
                for name in outline.calls:
                    self._calling.setdefault(name, []).append(module)

    def modules(self, name: str) -> list[str]:
        """The core's modules that call something of this name."""
        return self._calling.get(name, [])

    def of(self, name: str, module: str) -> list[Site]:
        """The calls of a name in one module."""
        if module not in self._by_module:
            found: dict[str, list[Site]] = {}
            for node, place in self.analysis.walker.module(module):
                if isinstance(node, ast.Call) and not place.typing:
                    function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
                    last = getattr(function, "attr", None) or getattr(function, "id", None)
                    if last is not None:
                        found.setdefault(last, []).append(Site(module, node, place))
            self._by_module[module] = found
        return self._by_module[module].get(name, [])

    def receiver(self, site: Site) -> Value | None:
        """What a method is called on at a site, None where it is not known (or nothing: a bare name)."""
        if not isinstance(site.node.func, ast.Attribute):
            return None
        found = self.analysis.inference.value(site.node.func.value, site.place.scope)
        return found if isinstance(found, Value) else None
