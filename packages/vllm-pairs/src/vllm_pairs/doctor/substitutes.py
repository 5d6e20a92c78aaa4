"""Rule: a plugin's class that stands in place of a core class, without deriving from it, must do what the core asks.

The core goes on to call what its own class has on objects that are now of the plugin's: each such call must find a
method there, and one that takes it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.signatures import misfits, shape_of
from vllm_pairs.doctor.sites import MOST_MODULES
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Callable as Callable_
    from collections.abc import Iterator

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.callables import Callables
    from vllm_pairs.doctor.findings import Confidence
    from vllm_pairs.doctor.places import Place
    from vllm_pairs.doctor.sites import Placed, Site, Sites


@dataclass(frozen=True)
class Substitute:
    """`module.name` of the core was `original` and is `ours`; `place` is where the plugin says so."""

    module: str
    original: Ref
    ours: Ref
    place: Place


@dataclass(frozen=True)
class Read:
    """A place in the core where an attribute is read."""

    module: str
    node: ast.Attribute
    place: Place


class SubstituteRule:
    """Checks the members of such classes against the core's calls; `sure` says how surely a call is made."""

    def __init__(
        self, analysis: Analysis, callables: Callables, sites: Sites, sure: Callable_[[Placed], Confidence]
    ) -> None:
        self.analysis, self.callables, self.sites, self.sure = analysis, callables, sites, sure
        self.classes = analysis.classes

    def check(self, one: Substitute) -> None:
        """Look at one class."""
        if not self.analysis.is_plugin(one.ours) or one.original in self.classes.mro(one.ours).refs:
            return  # a derived class overrides, which is another rule's
        for name in self._methods(one.original):
            for site in self._sites(one, name):
                if self._fails(one, name, site):
                    break  # the first one raises
        self._values(one)

    def _values(self, one: Substitute) -> None:
        """What the core reads as a value of the class's objects must be no method of ours, and be there."""
        names = {name for ref in self.classes.mro(one.original).refs for name in self._set_on_self(ref)}
        names = {name for name in names if self.classes.owner(one.original, name) is None}
        wrong = {name: self._wrong_value(one.ours, name) for name in names}
        for node, place in self.analysis.walker.module(one.module) if any(wrong.values()) else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and (kind := wrong.get(node.attr)):
                base = self.analysis.inference.value(node.value, place.scope)
                method = place.scope.method_scope()
                if base != Value("instance", one.original) or (method is not None and method.owner == one.original):
                    continue
                owner = self.classes.owner(one.ours, node.attr)
                at = Ref(owner.module, f"{owner.qualname}.{node.attr}") if owner is not None else one.ours
                what = f"has {node.attr!r} as a method" if owner is not None else f"has no {node.attr!r}"
                self._add(one, Read(one.module, node, place), kind, at, f"{one.ours}.{node.attr}", node.attr, what)
                wrong[node.attr] = ""

    def _set_on_self(self, ref: Ref) -> frozenset[str]:
        outline = self.classes.outline(ref)
        return outline.instance if outline is not None else frozenset()

    def _wrong_value(self, ours: Ref, name: str) -> str:
        """The kind of finding that a read of the value meets; "" for none."""
        owner = self.classes.owner(ours, name)
        if self.classes.setters(ours, name):
            return ""
        if owner is not None and self.classes.kind(owner, name) in ("method", "classmethod", "staticmethod"):
            return "override-kind"
        return "substitute-member" if self.classes.has(ours, name, instance=True) is False else ""

    def _methods(self, ref: Ref) -> list[str]:
        found: dict[str, None] = {}
        for one in self.classes.mro(ref).refs:
            outline = self.classes.outline(one)
            found.update(dict.fromkeys(outline.members if outline is not None else ()))
        return [name for name in found if not name.startswith("__")]

    def _sites(self, one: Substitute, name: str) -> Iterator[Site]:
        """Calls of a member in the core, on an object of the class."""
        modules = self.sites.modules(name)
        for module in modules if len(modules) <= MOST_MODULES else [m for m in modules if m == one.module]:
            for site in self.sites.of(name, module, lambda call: isinstance(call.func, ast.Attribute)):
                receiver = self.sites.receiver(site)
                if receiver is not None and receiver.sort == "instance" and receiver.ref == one.original:
                    yield site

    def _fails(self, one: Substitute, name: str, site: Site) -> bool:
        owner = self.classes.owner(one.ours, name)
        if owner is None:
            if self.classes.has(one.ours, name, instance=True) is not False:
                return False
            self._add(one, site, "substitute-member", one.ours, f"{one.ours}.{name}", name, f"has no {name!r}")
            return True
        member = Ref(owner.module, f"{owner.qualname}.{name}")
        kind = self.classes.kind(owner, name)
        if kind == "property":
            self._add(one, site, "override-kind", member, str(member), name, f"has {name!r} as a property")
            return True
        if kind in ("value", "class"):
            return False
        found = self.callables.function(Value("def", member, bound=int(kind != "staticmethod")))
        refused = misfits(found.signature, shape_of(site.node)) if found is not None else []
        for wrong in refused:
            what = f"has a {name!r} that {wrong.text}"
            self._add(one, site, "replacement-signature", member, str(member), wrong.argument, what)
        return bool(refused)

    def _add(self, one: Substitute, site: Site | Read, kind: str, at: Ref, symbol: str, name: str, what: str) -> None:
        # A core module that was imported earlier keeps the core's class.
        confidence = self.sure(site) if site.module == one.module else "low"
        self.analysis.add(
            Draft(
                kind=kind,
                symbol=symbol,
                name=name,
                node=self.analysis.world.node(at) or one.place.statement,
                place=replace(one.place, module=at.module),  # where it is defined
                message=f"{one.ours.qualname} stands in place of {one.original.qualname} and {what}; the core uses it",
                confidence=confidence,
                core=Ref(site.module),
                core_line=site.node.lineno,
                core_has=ast.unparse(site.node.func if isinstance(site.node, ast.Call) else site.node),
                function=site.place.function,
                conditional=site.place.conditional,
            )
        )
