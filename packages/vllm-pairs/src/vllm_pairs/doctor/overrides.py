"""Rules for classes of the plugin that derive from the core's: overrides, kinds, abstract methods, dataclass order."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.findings import CONFIDENCES
from vllm_pairs.doctor.signatures import misfit, misfits, narrower, shape_of
from vllm_pairs.doctor.sites import MOST_MODULES, still_runs
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.callables import Callables
    from vllm_pairs.doctor.findings import Confidence
    from vllm_pairs.doctor.places import Place
    from vllm_pairs.doctor.signatures import Misfit, Signature
    from vllm_pairs.doctor.sites import Site, Sites

_NOT_COMPARED = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__class_getitem__"})


@dataclass(frozen=True)
class Refused:
    """An argument that an override refuses, and the surest call of the core that passes it (None: none known)."""

    site: Site | None
    wrong: Misfit
    confidence: Confidence


class OverrideRule:
    """Checks a plugin's classes against the core's."""

    def __init__(self, analysis: Analysis, callables: Callables, sites: Sites) -> None:
        self.analysis, self.callables, self.sites = analysis, callables, sites
        self.classes = analysis.classes

    def check(self, node: ast.AST, place: Place) -> None:
        """Look at one node: a class of the plugin."""
        if not isinstance(node, ast.ClassDef) or place.function is not None:
            return
        ref = self._ref(node, place)
        if ref is None or not any(map(self.analysis.is_core, self.classes.mro(ref).refs)):
            return
        self._dataclass_order(ref, node, place)
        self._abstract(ref, node, place)
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name not in _NOT_COMPARED:
                self._member(ref, part, place)

    def _ref(self, node: ast.ClassDef, place: Place) -> Ref | None:
        outer = place.scope.owner.qualname + "." if place.scope.owner else ""
        ref = Ref(place.module, f"{outer}{node.name}")
        return ref if self.classes.outline(ref) is not None else None

    def _dataclass_order(self, ref: Ref, node: ast.ClassDef, place: Place) -> None:
        if self.analysis.constructors.data_kind(ref) != "plain":
            return
        if (wrong := self.analysis.constructors.wrong_order(ref)) is None:
            return
        before, after = wrong
        core = before if self.analysis.is_core(before.owner) else after
        if not self.analysis.is_core(core.owner):
            return
        self.analysis.add(
            Draft(
                kind="dataclass-order",
                symbol=f"{ref}.{after.name}",
                name=after.name,
                node=node,
                place=place,
                message=f"field {after.name!r} of {node.name} has no default and follows {before.name!r}, which has",
                core=core.owner,
                core_line=core.line,
                core_has=f"{core.owner.qualname}.{core.name} {'with' if core.has_default else 'without'} a default",
            )
        )

    def _abstract(self, ref: Ref, node: ast.ClassDef, place: Place) -> None:
        bases = self.classes.mro(ref)
        if self.classes.subclasses(ref) or not bases.complete or not self.classes.enforces_abstract(ref):
            return
        left = self.classes.left_abstract(ref)
        if not left or any(self.analysis.is_plugin(owner) for owner, _ in left):
            return  # abstract methods of its own: not made to be instantiated
        nearest = next(one for one in bases.refs if self.analysis.is_core(one))
        for owner, name in left:
            self.analysis.add(
                Draft(
                    kind="abstract-method",
                    symbol=f"{ref}.{name}",
                    name=name,
                    node=node,
                    place=place,
                    message=f"{node.name} leaves out {name!r}, which {owner.qualname} declares abstract",
                    # A core class between that leaves it out too is not made into objects either.
                    confidence="medium" if owner == nearest else "low",
                    core=Ref(owner.module, f"{owner.qualname}.{name}"),
                    core_has=f"abstract {owner.qualname}.{name}",
                    function=Ref(ref.module, f"{ref.qualname}.__init__"),
                )
            )

    def _member(self, ref: Ref, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place) -> None:
        owner = self.classes.owner(ref, node.name, after=ref)
        if owner is None or not self.analysis.is_core(owner):
            return
        core = Ref(owner.module, f"{owner.qualname}.{node.name}")
        ours, theirs = self.classes.kind(ref, node.name), self.classes.kind(owner, node.name)
        if (ours == "property") is not (theirs == "property") and theirs not in ("value", "class"):
            self._kind(ref, node, place, core, ours, theirs)
            return
        if theirs in ("value", "class", "property"):
            return
        base = self.callables.function(Value("def", core, bound=int(theirs != "staticmethod")))
        override = self.callables.function(
            Value("def", Ref(ref.module, f"{ref.qualname}.{node.name}"), bound=int(ours != "staticmethod"))
        )
        if base is None or override is None:
            return
        wrong = narrower(base.signature, override.signature)
        if wrong is None:
            return
        found = self._refused(ref, owner, node.name, base.signature, override.signature)
        for one in found or (Refused(None, wrong, "low"),):
            self._signature(ref, node, place, core, base.signature, override.signature, one)

    def _kind(
        self, ref: Ref, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place, core: Ref, ours: str, theirs: str
    ) -> None:
        self.analysis.add(
            Draft(
                kind="override-kind",
                symbol=f"{ref}.{node.name}",
                name=node.name,
                node=node,
                place=place,
                message=f"{ref.qualname}.{node.name} is a {ours}, the core's is a {theirs}",
                confidence="medium",
                core=core,
                core_has=theirs,
                function=Ref(ref.module, f"{ref.qualname}.{node.name}"),
            )
        )

    def _signature(
        self,
        ref: Ref,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        place: Place,
        core: Ref,
        base: Signature,
        override: Signature,
        refused: Refused,
    ) -> None:
        called, wrong = refused.site, refused.wrong
        self.analysis.add(
            Draft(
                kind="override-signature",
                symbol=f"{ref}.{node.name}",
                name=wrong.argument,
                node=node,
                place=place,
                message=f"{ref.qualname}.{node.name}{override.text()} {wrong.text}, which the core's own takes"
                + (" and the core passes so" if called else ""),
                confidence=refused.confidence,
                core=Ref(called.module) if called else core,
                core_line=called.node.lineno if called else None,
                core_has=f"{core.qualname}{base.text()}",
                function=called.place.function if called else Ref(ref.module, f"{ref.qualname}.{node.name}"),
                self_type=ref if called and refused.confidence == "high" else None,
                conditional=called.place.conditional if called else False,
            )
        )

    def _refused(self, ref: Ref, owner: Ref, name: str, base: Signature, override: Signature) -> list[Refused]:
        """Calls of the core that its own method takes and the override refuses: for each argument the surest one."""
        best: dict[str, Refused] = {}

        def refused(call: ast.Call) -> bool:
            shape = shape_of(call)
            return misfit(override, shape) is not None and misfit(base, shape) is None

        for site in self._sites(ref, name, refused):
            confidence = self._reaches(site, ref, owner)
            for wrong in misfits(override, shape_of(site.node)) if confidence is not None else ():
                known = best.get(wrong.argument)
                if confidence and (known is None or _surer(confidence, known.confidence)):
                    best[wrong.argument] = Refused(site, wrong, confidence)
        return list(best.values())

    def _sites(self, ref: Ref, name: str, wanted: Callable[[ast.Call], bool]) -> Iterator[Site]:
        near = {one.module for one in self.classes.mro(ref).refs if self.analysis.is_core(one)}
        calling = self.sites.modules(name)
        for module in calling if len(calling) <= MOST_MODULES else [one for one in calling if one in near]:
            yield from self.sites.of(name, module, wanted)

    def _reaches(self, site: Site, ref: Ref, owner: Ref) -> Confidence | None:
        """How surely a call site's object can be of the plugin's class."""
        receiver = next((one for one in self.sites.receivers(site) if one.ref in self.classes.mro(ref).refs), None)
        if receiver is None or receiver.sort not in ("instance", "type"):
            return None
        own = site.place.scope.method_scope()
        if own is None or own.owner is None:
            return "medium"
        if own.self_type == receiver.ref and _is_own(site, own.own_name):
            return "high" if still_runs(self.analysis, ref, site) else None
        derived = [one for one in self.classes.subclasses(own.owner) if self.analysis.is_plugin(one)]
        if derived:
            return "medium" if any(still_runs(self.analysis, one, site) for one in derived) else None
        # Nothing of the plugin's derives from the class: what runs the plugin may still be the core's own.
        return "medium"


def _surer(one: Confidence, other: Confidence) -> bool:
    return CONFIDENCES.index(one) < CONFIDENCES.index(other)


def _is_own(site: Site, own: str) -> bool:
    function = site.node.func
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == own
