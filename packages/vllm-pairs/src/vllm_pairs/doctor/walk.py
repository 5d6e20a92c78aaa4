"""Walk a module's code with what surrounds each node: its scope, whether it always runs, what is caught around it."""

from __future__ import annotations

import ast
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from vllm_pairs.doctor.conditions import is_type_checking, last_name, leaves
from vllm_pairs.doctor.nodes import children, walk
from vllm_pairs.doctor.places import Place
from vllm_pairs.doctor.scopes import Scope, Source
from vllm_pairs.doctor.world import Ref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.infer import Inference
    from vllm_pairs.doctor.world import FunctionNode

_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_TRIES = (ast.Try, *((ast.TryStar,) if hasattr(ast, "TryStar") else ()))
_LEAVES = frozenset({ast.Name, ast.Constant})
_BRANCHING = frozenset({ast.Lambda, ast.IfExp, ast.BoolOp, *_COMPREHENSIONS})


Nodes = list[tuple[ast.AST, Place]]


class Walker:
    """Lists (node, place) for the nodes that rules look at, in the order of the source.

    Lists and not generators: a million nodes would each pass through a generator for every level they stand at.
    """

    def __init__(self, inference: Inference) -> None:
        self.inference = inference
        self.too_deep: set[str] = set()  # modules of which something is nested deeper than Python's stack

    def module(self, module: str) -> Nodes:
        """Everything in a module, bare names and constants left out."""
        out: Nodes = []
        tree = self.inference.world.syntax(module)
        if tree is not None and tree.body:
            with self._noted(module):
                scope = self.inference.module_scope(module, tree)
                self._block(out, tree.body, Place(module, scope, tree.body[0]), None)
        return out

    @contextlib.contextmanager
    def _noted(self, module: str) -> Iterator[None]:
        """Code nested deeper than Python's stack is left out, and said."""
        try:
            yield
        except RecursionError:
            self.too_deep.add(module)

    def function(self, function: Ref, node: FunctionNode, owner: Ref | None, own: Ref | None) -> Nodes:
        """Everything in one function's body, for a class of self; bare names and constants left out."""
        out: Nodes = []
        with self._noted(function.module):
            scope = self.inference.scope(function.module, node, owner, own or owner)
            self._block(out, node.body, Place(function.module, scope, node, function), None)
        return out

    def _block(self, out: Nodes, body: list[ast.stmt], place: Place, owner: Ref | None) -> None:
        for statement in body:
            here = place.at(statement)
            self._statement(out, statement, here, owner)
            if isinstance(statement, ast.If) and (_goes(statement.body) or _goes(statement.orelse)):
                place = place.doubted()

    def _statement(self, out: Nodes, node: ast.stmt, place: Place, owner: Ref | None) -> None:
        if isinstance(node, _DEFS):
            out.append((node, place))
            self._function(out, node, place, owner)
        elif isinstance(node, ast.ClassDef):
            out.append((node, place))
            for part in (*node.decorator_list, *node.bases, *(word.value for word in node.keywords)):
                self._expression(out, part, place)
            outer = owner.qualname + "." if owner is not None else ""
            inner = Ref(place.module, f"{outer}{node.name}")
            if place.function is not None and owner is None:
                inner = Ref(place.module, f"{place.function.qualname}.<locals>.{node.name}")
            scope = Scope(place.module, node, inner, inner, place.scope)
            self._block(out, node.body, replace(place, scope=scope), inner)
        elif isinstance(node, ast.If):
            self._if(out, node, place, owner)
        elif isinstance(node, _TRIES):
            self._try(out, node, place, owner)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._with(out, node, place, owner)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            head = node.test if isinstance(node, ast.While) else node.iter
            self._expression(out, head, place)
            inner_place = place.doubted() if isinstance(node, ast.While) else place
            self._block(out, node.body, inner_place, owner)
            self._block(out, node.orelse, place, owner)
        elif isinstance(node, ast.Match):
            self._expression(out, node.subject, place)
            for case in node.cases:
                self._block(out, case.body, place.doubted(), owner)
        else:
            out.append((node, place))
            for child in children(node):
                self._expression(out, child, place)

    def _function(
        self, out: Nodes, node: ast.FunctionDef | ast.AsyncFunctionDef, place: Place, owner: Ref | None
    ) -> None:
        defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None]
        for part in (*node.decorator_list, *defaults):
            self._expression(out, part, place)
        if owner is not None and place.scope.node.__class__ is ast.ClassDef:
            qualname = f"{owner.qualname}.{node.name}"
            parent = place.scope.parent
        elif place.function is not None:
            qualname = f"{place.function.qualname}.<locals>.{node.name}"
            parent, owner = place.scope, None
        else:
            qualname, parent, owner = node.name, None, None
        if parent is not None and isinstance(parent.node, ast.Module):
            parent = None
        scope = self.inference.scope(place.module, node, owner, owner, parent)
        # An exception handler around a def does not catch what the body raises later.
        body = Place(place.module, scope, node, Ref(place.module, qualname), typing=place.typing)
        self._block(out, node.body, body, None)

    def _if(self, out: Nodes, node: ast.If, place: Place, owner: Ref | None) -> None:
        if is_type_checking(node.test):
            self._block(out, node.body, replace(place, typing=True), owner)
            self._block(out, node.orelse, place, owner)
            return
        self._expression(out, node.test, place)
        inner = place.doubted(by_parameter=_is_parameter(node.test, place))
        narrowed = self._narrowed(node.test, place.scope)
        within = inner if narrowed is place.scope else replace(inner, scope=narrowed)
        self._block(out, node.body, within, owner)
        self._block(out, node.orelse, inner, owner)

    def _narrowed(self, test: ast.expr, scope: Scope) -> Scope:
        """In a branch under `isinstance(name, Class)` a name, or a chain of attributes, is of that class."""
        narrowed: Scope | None = None
        for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
            if not isinstance(part, ast.Call) or last_name(part.func) != "isinstance" or len(part.args) != 2:
                continue
            name, wanted = part.args
            if not isinstance(name, ast.Name | ast.Attribute) or not isinstance(wanted, ast.Name | ast.Attribute):
                continue
            if narrowed is None:
                narrowed = replace(
                    scope,
                    names=dict(scope.names),
                    checked=set(scope.checked),
                    narrowed=dict(scope.narrowed),
                    known={},
                    values={},
                )
            if isinstance(name, ast.Name):
                narrowed.names[name.id] = [Source("annotation", wanted)]
                narrowed.checked.discard(name.id)
            else:
                narrowed.narrowed[ast.unparse(name)] = wanted
        return narrowed or scope

    def _try(self, out: Nodes, node: ast.Try, place: Place, owner: Ref | None) -> None:
        caught: set[str] = set()
        for handler in node.handlers:
            if not (handler.body and isinstance(handler.body[-1], ast.Raise)):
                caught.update(_exceptions(handler.type))
        self._block(out, node.body, replace(place, handled=place.handled | caught), owner)
        for handler in node.handlers:
            self._block(out, handler.body, place.doubted(), owner)
        self._block(out, node.orelse, place.doubted() if caught else place, owner)
        self._block(out, node.finalbody, place, owner)

    def _with(self, out: Nodes, node: ast.With | ast.AsyncWith, place: Place, owner: Ref | None) -> None:
        caught: set[str] = set()
        for item in node.items:
            self._expression(out, item.context_expr, place)
            if item.optional_vars is not None:
                self._expression(out, item.optional_vars, place)
            call = item.context_expr
            if isinstance(call, ast.Call) and last_name(call.func) in ("suppress", "raises"):
                caught.update(name for argument in call.args for name in _exceptions(argument))
        self._block(out, node.body, replace(place, handled=place.handled | caught), owner)

    def _expression(self, out: Nodes, top: ast.AST, place: Place) -> None:
        stack = [top]
        while stack:
            node = stack.pop()
            kind = node.__class__
            if kind in _LEAVES:
                continue
            if kind in _BRANCHING:
                self._branching(out, node, place)
                continue
            out.append((node, place))
            below = children(node)
            below.reverse()
            stack += below

    def _branching(self, out: Nodes, node: ast.AST, place: Place) -> None:
        """An expression of which a part has a scope of its own, or is not always read."""
        if isinstance(node, ast.Lambda):
            self._lambda(out, node, place)
        elif isinstance(node, ast.IfExp):
            self._expression(out, node.test, place)
            self._expression(out, node.body, place.doubted(scope=self._narrowed(node.test, place.scope)))
            self._expression(out, node.orelse, place.doubted())
        elif isinstance(node, ast.BoolOp):
            self._expression(out, node.values[0], place)
            both = isinstance(node.op, ast.And)
            inner = place.doubted(scope=self._narrowed(node, place.scope) if both else None)
            for part in node.values[1:]:
                self._expression(out, part, inner)
        else:
            self._comprehension(out, node, place)

    def _lambda(self, out: Nodes, node: ast.Lambda, place: Place) -> None:
        scope = _inner(node, place)
        arguments = [
            *node.args.posonlyargs,
            *node.args.args,
            *node.args.kwonlyargs,
            node.args.vararg,
            node.args.kwarg,
        ]
        scope.names = {argument.arg: [Source("unknown")] for argument in arguments if argument is not None}
        name = f"{place.function.qualname}.<lambda>" if place.function is not None else "<lambda>"
        self._expression(out, node.body, replace(place.doubted(scope=scope), function=Ref(place.module, name)))

    def _comprehension(self, out: Nodes, node: ast.AST, place: Place) -> None:
        assert isinstance(node, _COMPREHENSIONS)
        scope = _inner(node, place)
        for part in node.generators:
            for target in walk(part.target):
                if isinstance(target, ast.Name):
                    each = target is part.target
                    scope.names[target.id] = [Source("each", part.iter) if each else Source("unknown")]
        conditional = place.conditional or any(part.ifs for part in node.generators)
        for part in node.generators:
            for test in part.ifs:
                scope = self._narrowed(test, scope)
        inner = replace(place, scope=scope, conditional=conditional)
        for part in node.generators:
            self._expression(out, part.iter, replace(place, scope=scope))
            for test in part.ifs:
                self._expression(out, test, inner)
        for result in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._expression(out, result, inner)


def _inner(node: ast.AST, place: Place) -> Scope:
    """The scope of an expression that has one of its own: what its function asks holds in it, too."""
    outer = place.scope
    return Scope(place.module, node, parent=outer, tested=outer.tested, checked=outer.checked, narrowed=outer.narrowed)


def _goes(body: list[ast.stmt]) -> bool:
    """Whether a branch ends here and the run goes on: after one that raises, what follows is what always runs."""
    return leaves(body) and not isinstance(body[-1], ast.Raise)


def _is_parameter(test: ast.expr, place: Place) -> bool:
    """Whether a condition is a parameter of the function and nothing else: its callers decide."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
    if not isinstance(test, ast.Name) or place.function is None:
        return False
    sources = place.scope.names.get(test.id, ())
    return bool(sources) and all(source.kind in ("annotation", "unknown") for source in sources)


def _exceptions(node: ast.expr | None) -> set[str]:
    """Names of the exceptions a handler catches; a bare one catches all."""
    if node is None:
        return {"BaseException"}
    if isinstance(node, ast.Tuple):
        return {last_name(part) for part in node.elts}
    return {last_name(node)}
