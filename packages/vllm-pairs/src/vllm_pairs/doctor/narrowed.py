"""Rule: an override that counts on a class of the plugin's for a parameter, while the core passes its own class.

The plugin derives a class from the core's, adds attributes, and annotates the parameter with it; its own callers pass
it. Where the core itself makes an object of its class and calls the method, the added attributes are not there.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.sites import MOST_MODULES, replaced, still_runs
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.places import Place
    from vllm_pairs.doctor.sites import Site, Sites
    from vllm_pairs.doctor.world import FunctionNode

_DEPTH = 3  # calls that a parameter is followed through
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NarrowedRule:
    """Checks the overrides of a plugin's classes."""

    def __init__(self, analysis: Analysis, sites: Sites) -> None:
        self.analysis, self.sites, self.classes = analysis, sites, analysis.classes
        self._seen: set[tuple[str, int, str]] = set()
        self._passing: dict[tuple[str, Ref], Site | None] = {}

    def check(self, node: ast.AST, place: Place) -> None:
        """Look at one node: a class of the plugin."""
        if not isinstance(node, ast.ClassDef) or place.function is not None or place.scope.owner is not None:
            return
        ref = Ref(place.module, node.name)
        if self.classes.outline(ref) is None:
            return
        for part in node.body:
            if isinstance(part, _FUNCTIONS):
                owner = self.classes.owner(ref, part.name, after=ref)
                if owner is not None and self.analysis.is_core(owner):
                    self._method(ref, part, owner)

    def _method(self, ref: Ref, node: FunctionNode, owner: Ref) -> None:
        core = self.analysis.world.node(Ref(owner.module, f"{owner.qualname}.{node.name}"))
        if not isinstance(core, _FUNCTIONS):
            return
        theirs = {part.arg: part.annotation for part in (*core.args.args, *core.args.kwonlyargs)}
        for part in (*node.args.args, *node.args.kwonlyargs):
            if part.annotation is None or theirs.get(part.arg) is None:
                continue
            wanted = self._class(part.annotation, ref.module)
            given = self._class(theirs[part.arg], owner.module)
            if wanted is None or given is None or wanted == given or not self.analysis.is_plugin(wanted):
                continue
            if self.analysis.is_core(given) and given in self.classes.mro(wanted).refs:
                self._parameter(ref, node, part.arg, wanted, given)

    def _class(self, annotation: ast.expr | None, module: str) -> Ref | None:
        found = self.analysis.inference.annotations.read(annotation, module) if annotation is not None else None
        return found.ref if isinstance(found, Value) and found.sort == "instance" else None

    def _parameter(self, ref: Ref, node: FunctionNode, name: str, wanted: Ref, given: Ref) -> None:
        site = self._site(node.name, given)
        if site is None or not self.classes.mro(given).complete:
            return
        function = Ref(ref.module, f"{ref.qualname}.{node.name}")
        for read, place in self._reads(function, node, ref, name, _DEPTH):
            if self.classes.has(given, read.attr, instance=True) is not False or read.attr in place.scope.tested:
                continue
            if self.classes.has(wanted, read.attr, instance=True) is not True:
                continue
            key = (place.module, read.lineno, f"{given}.{read.attr}")
            if key in self._seen:
                continue
            self._seen.add(key)
            self.analysis.add(
                Draft(
                    kind="narrowed-parameter",
                    symbol=f"{given}.{read.attr}",
                    name=read.attr,
                    node=read,
                    place=place,
                    message=f"{read.attr!r} of {name!r} is {wanted.qualname}'s; the core passes a {given.qualname}",
                    confidence="medium",
                    core=Ref(site.module),
                    core_line=site.node.lineno,
                    core_has=f"{given.qualname} has no {read.attr}",
                    function=site.place.function,
                    conditional=True,
                )
            )

    def _reads(
        self, function: Ref, node: FunctionNode, owner: Ref | None, name: str, depth: int
    ) -> Iterator[tuple[ast.Attribute, Place]]:
        """Attributes read of a parameter on every way through a function, also where it is handed on."""
        for part, place in self.analysis.walker.function(function, node, owner, owner):
            if place.conditional or place.function != function:
                continue
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
                if isinstance(part.value, ast.Name) and part.value.id == name:
                    yield part, place
            elif isinstance(part, ast.Call) and depth:
                yield from self._handed_on(part, place, name, depth)

    def _handed_on(self, call: ast.Call, place: Place, name: str, depth: int) -> Iterator[tuple[ast.Attribute, Place]]:
        positions = [i for i, value in enumerate(call.args) if isinstance(value, ast.Name) and value.id == name]
        words = [word.arg for word in call.keywords if isinstance(word.value, ast.Name) and word.value.id == name]
        if not positions and not words:
            return
        value = self.analysis.inference.value(call.func, place.scope)
        if not isinstance(value, Value) or value.sort != "def" or not self.analysis.is_plugin(value):
            return
        node = self.analysis.world.node(value.ref)
        if not isinstance(node, _FUNCTIONS):
            return
        parameters = [part.arg for part in node.args.args][value.bound :]
        names = [parameters[i] for i in positions if i < len(parameters)] + [word for word in words if word]
        outer = Ref(value.ref.module, value.ref.qualname.rpartition(".")[0])
        owner = outer if self.classes.outline(outer) is not None else None
        for inner in names:
            yield from self._reads(value.ref, node, owner, inner, depth - 1)

    def _site(self, method: str, given: Ref) -> Site | None:
        """A call of the method in the core that passes an object of the core's own making, and that still runs."""
        key = (method, given)
        if key not in self._passing:
            self._passing[key] = self._find_site(method, given)
        return self._passing[key]

    def _find_site(self, method: str, given: Ref) -> Site | None:
        modules = self.sites.modules(method)
        for module in modules if len(modules) <= MOST_MODULES else ():
            for site in self.sites.of(method, module, lambda call: isinstance(call.func, ast.Attribute)):
                values = [*site.node.args, *(word.value for word in site.node.keywords)]
                if any(self._is_made(value, site, given) for value in values) and self._is_run(site, 3):
                    return site
        return None

    def _is_made(self, value: ast.expr, site: Site, given: Ref) -> bool:
        """Whether an argument is an object that the calling function itself makes of the class."""
        made: list[ast.AST | None] = [value]
        if isinstance(value, ast.Name) and (bound := site.place.scope.find(value.id)) is not None:
            made = [source.node for source in bound[1] if source.kind == "expr"]
        for node in made:
            if isinstance(node, ast.Call):
                found = self.analysis.inference.value(node.func, site.place.scope)
                if found == Value("class", given):
                    return True
        return False

    def _is_run(self, site: Site, depth: int) -> bool:
        """Whether a core function that a site stands in can run beside the plugin: asked of its callers, too."""
        function = site.place.function
        if function is None or replaced(self.analysis, site):
            return False
        method = site.place.scope.method_scope()
        if method is not None and method.owner is not None:
            below = [one for one in self.classes.subclasses(method.owner) if self.analysis.is_plugin(one)]
            return not below or any(still_runs(self.analysis, one, site) for one in below)
        name = function.qualname.partition(".")[0]
        if not depth:
            return True
        for module in self.sites.modules(name):
            if (module, name) in self.analysis.injected:
                continue
            if any(self._is_run(caller, depth - 1) for caller in self.sites.of(name, module, lambda call: True)):
                return True
        return False
