"""Rule: what the plugin assigns into the core's modules and classes must take the core's own calls."""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft, Injection
from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.findings import CONFIDENCES
from vllm_pairs.doctor.signatures import misfit, misfits, narrower, shape_of
from vllm_pairs.doctor.sites import MOST_MODULES, replaced, still_runs
from vllm_pairs.doctor.substitutes import Substitute, SubstituteRule
from vllm_pairs.doctor.world import MISSING, UNKNOWN, Ref, Value

if TYPE_CHECKING:
    from collections.abc import Callable as Callable_
    from collections.abc import Iterator

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.callables import Callable, Callables
    from vllm_pairs.doctor.findings import Confidence
    from vllm_pairs.doctor.places import Place
    from vllm_pairs.doctor.signatures import Misfit
    from vllm_pairs.doctor.sites import Placed, Site, Sites


@dataclass(frozen=True)
class Replacement:
    """`owner.name = value` in the plugin, where the owner is a module or class of the core."""

    owner: Value
    name: str
    value: ast.expr
    node: ast.Assign | ast.Call
    place: Place

    @property
    def key(self) -> tuple[str, str]:
        """As `Analysis.injected` holds it."""
        return str(self.owner.ref), self.name


def collect(analysis: Analysis, node: ast.AST, place: Place, found: list[Replacement]) -> None:
    """Look at one node: an assignment into the core; also fills `Analysis.injected` and `stand_ins`."""
    before = len(found)
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _target(analysis, target, node.value, node, place, found)
    elif isinstance(node, ast.Call) and last_name(node.func) == "setattr" and len(node.args) == 3:
        owner, name, value = node.args
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            _into(analysis, owner, name.value, value, node, place, found)
    for one in found[before:]:
        analysis.injected.setdefault(one.key, []).append(Injection(place.module, place.function, one.node.lineno))


def _target(
    analysis: Analysis, target: ast.expr, value: ast.expr, node: ast.Assign, place: Place, found: list[Replacement]
) -> None:
    if isinstance(target, ast.Attribute):
        _into(analysis, target.value, target.attr, value, node, place, found)
    elif (
        isinstance(target, ast.Subscript)
        and ast.unparse(target.value) == "sys.modules"
        and isinstance(target.slice, ast.Constant)
    ):
        analysis.stand_ins.add(str(target.slice.value))


def _into(
    analysis: Analysis,
    owner: ast.expr,
    name: str,
    value: ast.expr,
    node: ast.Assign | ast.Call,
    place: Place,
    found: list[Replacement],
) -> None:
    known = analysis.inference.value(owner, place.scope)
    if isinstance(known, Value) and known.sort in ("module", "class") and analysis.is_core(known):
        found.append(Replacement(known, name, value, node, place))


class ReplacementRule:
    """Checks the replacements against the core's call sites."""

    def __init__(self, analysis: Analysis, callables: Callables, sites: Sites) -> None:
        self.analysis, self.callables, self.sites = analysis, callables, sites
        self.substitutes = SubstituteRule(analysis, callables, sites, self._sure)

    def check(self, one: Replacement) -> None:
        """Look at one replacement."""
        if one.owner.sort == "module":
            original = self.analysis.world.member(one.owner.ref.module, one.name)
            if original is MISSING:
                self._gone(one)
                return
        else:
            if self.analysis.classes.has(one.owner.ref, one.name, instance=False) is False:
                self._gone(one)
                return
            original = self.analysis.inference.attribute(one.owner, one.name)
        if not isinstance(original, Value):
            return
        values, complete = self._values(one)
        drafts = [self._compare(one, original, value) for value in values if value.ref != original.ref]
        certain = complete and all(drafts)  # of several that a branch chooses from, one may take the calls
        for draft in itertools.chain.from_iterable(drafts):
            self.analysis.add(draft if certain else replace(draft, conditional=True))

    def _values(self, one: Replacement) -> tuple[list[Value], bool]:
        """What is put there, each where branches import different things under one name; whether that is all."""
        node = _unwrapped(one.value)
        found = [self.analysis.inference.value(node, one.place.scope)]
        if found == [UNKNOWN] and isinstance(node, ast.Name) and one.place.scope.find(node.id) is None:
            found = self.analysis.world.imported_as(one.place.module, node.id)
        values = [value for value in found if isinstance(value, Value)]
        return values, len(values) == len(found)

    def _compare(self, one: Replacement, original: Value, value: Value) -> list[Draft]:
        """A draft for each argument that the value refuses, with the surest call that passes it."""
        self.analysis.replaced.setdefault(original.ref, []).append(value)
        if one.owner.sort == "module" and original.sort == value.sort == "class":
            self.substitutes.check(Substitute(one.owner.ref.module, original.ref, value.ref, one.place))
        before, after = self.callables.of(original), self.callables.of(value)
        if before is None or after is None:
            return []
        if one.owner.sort == "class":
            before = self._bound(one, before)
            after = self._bound_new(one, value, after, static=before.signature.bound == 0)
        wrong = narrower(before.signature, after.signature)
        if wrong is None:
            return []
        old, new = before.signature, after.signature

        def refused(call: ast.Call) -> bool:
            return misfit(new, shape_of(call)) is not None and misfit(old, shape_of(call)) is None

        best: dict[str, tuple[Site | None, Misfit, Confidence]] = {}
        for site, sure in self._sites(one, refused):
            for each in misfits(new, shape_of(site.node)):
                known = best.get(each.argument)
                if known is None or CONFIDENCES.index(sure) < CONFIDENCES.index(known[2]):
                    best[each.argument] = site, each, sure
        label = f"{one.owner.ref.qualname or one.owner.ref.module}.{one.name}"
        return [
            Draft(
                kind="replacement-signature",
                symbol=f"{value.ref}" if value.sort == "def" else f"{value.ref}.__init__",
                name=each.argument,
                node=self._definition(value, after) or one.node,
                place=one.place if value.ref.module == one.place.module else self._place(value, one.place),
                message=f"what replaces {label} {each.text}" + (", which the core passes" if called else ""),
                confidence=confidence,
                core=Ref(called.module) if called else original.ref,
                core_line=called.node.lineno if called else None,
                core_has=f"{one.name}{before.signature.text()}",
                function=called.place.function if called else one.place.function,
                conditional=called.place.conditional if called else False,
            )
            for called, each, confidence in best.values() or ((None, wrong, "low"),)
        ]

    def _definition(self, value: Value, found: Callable) -> ast.AST | None:
        """What refuses: the function, of a class of the plugin its constructor where it has one."""
        own = found.defined_by if found.defined_by.module == value.ref.module else value.ref
        return value.node or self.analysis.world.node(own) or self.analysis.world.node(value.ref)

    def _place(self, value: Value, place: Place) -> Place:
        """The finding stands where the replacement is defined."""
        tree = self.analysis.world.syntax(value.ref.module)
        if tree is None or not self.analysis.is_plugin(value):
            return place
        return replace(place, module=value.ref.module)

    def _gone(self, one: Replacement) -> None:
        owner = one.owner.ref
        self.analysis.add(
            Draft(
                kind="replacement-target",
                symbol=f"{owner}.{one.name}" if owner.qualname else f"{owner}:{one.name}",
                name=one.name,
                node=one.node,
                place=one.place,
                message=f"{owner.qualname or owner.module} of this core has no {one.name!r}: nothing is replaced",
                confidence="low",
                core=owner,
                core_line=None if owner.qualname else 1,
                core_has=f"no {one.name}",
            )
        )

    def _bound(self, one: Replacement, found: Callable) -> Callable:
        outer = self.analysis.classes.owner(one.owner.ref, one.name)
        kind = self.analysis.classes.kind(outer, one.name) if outer else "method"
        return _with_bound(found, 0 if kind == "staticmethod" else 1)

    def _bound_new(self, one: Replacement, value: Value, found: Callable, static: bool) -> Callable:
        """A plain function in place of a static method is fine while it is called through the class, as that is."""
        wrapper = last_name(one.value.func) if isinstance(one.value, ast.Call) else ""
        unbound = wrapper == "staticmethod" or value.sort != "def" or (static and not wrapper)
        return _with_bound(found, 0 if unbound else 1)

    def _sites(self, one: Replacement, wanted: Callable_[[ast.Call], bool]) -> Iterator[tuple[Site, Confidence]]:
        """The core's calls that reach the replacement, and how surely they are made."""
        modules = self.sites.modules(one.name)
        if one.owner.sort == "module":
            own = one.owner.ref.module
            for module in modules:
                for site in self.sites.of(one.name, module, wanted):
                    if self._late_bound(site, own, one.name):
                        yield site, self._sure(site)
            return
        near = one.owner.ref.module
        owner = self.analysis.classes.owner(one.owner.ref, one.name)
        for module in modules if len(modules) <= MOST_MODULES else [m for m in modules if m == near]:
            for site in self.sites.of(one.name, module, wanted):
                receiver = self.sites.receiver(site)
                if receiver is None or receiver.sort not in ("instance", "class", "type"):
                    continue
                if self.analysis.classes.owner(receiver.ref, one.name) == owner:
                    yield site, self._sure(site)

    def _sure(self, site: Placed) -> Confidence:
        """Whether the core's calling method still runs: the plugin may have a class of its own in its place."""
        if replaced(self.analysis, site):
            return "low"
        method = site.place.scope.method_scope()
        if method is None or method.owner is None or site.place.function is None:
            return "high"
        classes = self.analysis.classes
        below = [one for one in classes.subclasses(method.owner) if self.analysis.is_plugin(one)]
        if below:
            return "high" if any(still_runs(self.analysis, one, site) for one in below) else "low"
        bases = [one for one in classes.mro(method.owner).refs[1:] if self.analysis.is_core(one)]
        beside = any(self.analysis.is_plugin(one) for base in bases for one in classes.subclasses(base))
        return "low" if beside else "high"

    def _late_bound(self, site: Site, module: str, name: str) -> bool:
        """Whether a call looks the name up in the module that was written to, when it is made."""
        function = site.node.func.value if isinstance(site.node.func, ast.Subscript) else site.node.func
        if isinstance(function, ast.Name):
            bound = site.place.scope.find(name)
            if bound is None:
                return site.module == module
            targets = [source.target for source in bound[1]]
            return all(target == (module, name) for target in targets)  # imported when the function runs
        if isinstance(function, ast.Attribute):
            base = self.analysis.inference.value(function.value, site.place.scope)
            return isinstance(base, Value) and base.sort == "module" and base.ref.module == module
        return False


def _with_bound(found: Callable, bound: int) -> Callable:
    return replace(found, signature=replace(found.signature, bound=bound))


def _unwrapped(node: ast.expr) -> ast.expr:
    """The function inside `staticmethod(f)`, `classmethod(f)`, `wraps(g)(f)`."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and last_name(node.func) in ("staticmethod", "classmethod"):
        return node.args[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and last_name(node.func.func) == "wraps":
        return node.args[0]
    return node
