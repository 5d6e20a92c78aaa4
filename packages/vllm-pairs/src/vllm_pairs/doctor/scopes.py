"""Scopes: what each name of a function or module body is bound to, as expressions that are read when asked for."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.nodes import FIELDS, children
from vllm_pairs.doctor.outline import absolute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.world import Found, FunctionNode, Ref

SourceKind = Literal["expr", "annotation", "each", "enter", "part", "def", "class", "import", "unknown"]
_INSPECTED = ("_fields", "__dataclass_fields__", "model_fields", "__code__")
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_PASSED = frozenset({ast.Name, ast.Constant, type(None)})
_ELSEWHERE = frozenset({*_NESTED, ast.Global, ast.Nonlocal})  # what has a scope of its own, or speaks of another
_ASKING = frozenset({ast.Call, ast.Attribute})  # what `_note_tests` looks at
_BINDING = frozenset(  # and `_bind_one`
    {
        ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.comprehension, ast.withitem,
        ast.ExceptHandler, ast.Import, ast.ImportFrom, ast.MatchAs, ast.MatchStar,
    }
)  # fmt: skip


@dataclass(slots=True)
class Source:
    """One thing a name is bound to: an expression, an annotation, an element of an iterable, part of a tuple ..."""

    kind: SourceKind
    node: ast.AST | None = None
    index: int = 0
    target: tuple[str, str | None] | None = None
    beside: ast.AST | None = None  # of an annotated assignment its value


@dataclass
class Scope:
    """A function's (or module's) body: its bindings, the class it belongs to and the class `self` is taken to be.

    `tested` are attribute names asked for with hasattr or getattr, `checked` the expressions an isinstance looks at: of
    both, nothing is claimed but in the branch where the isinstance holds (`narrowed`). `inspects`: it looks at fields
    or signatures, and so at what a call takes.
    """

    module: str
    node: ast.AST
    owner: Ref | None = None
    self_type: Ref | None = None
    parent: Scope | None = None
    names: dict[str, list[Source]] = field(default_factory=dict)
    tested: set[str] = field(default_factory=set)
    checked: set[str] = field(default_factory=set)
    narrowed: dict[str, ast.expr] = field(default_factory=dict)  # `a.b` under isinstance(a.b, C): C, by the text
    inspects: bool = False
    own_name: str = ""  # the name of the first parameter of a method
    own_class: bool = False  # it is the class itself
    known: dict[str, Found | None] = field(default_factory=dict)  # what names were found to be; None: being found
    values: dict[int, Found] = field(default_factory=dict)  # and expressions, by the identity of their node

    def find(self, name: str) -> tuple[Scope, list[Source]] | None:
        """Where a name is bound, from the inside out; None: at module level or not at all."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope, scope.names[name]
            scope = scope.parent
        return None

    def method_scope(self) -> Scope | None:
        """The nearest scope that has a self."""
        scope: Scope | None = self
        while scope is not None and not scope.own_name:
            scope = scope.parent
        return scope


def function_scope(
    module: str,
    is_package: bool,
    node: FunctionNode | ast.Lambda,
    *,
    owner: Ref | None = None,
    self_type: Ref | None = None,
    parent: Scope | None = None,
) -> Scope:
    """The scope of a function; `owner` is the class whose body it stands in."""
    scope = Scope(module, node, owner, self_type or owner, parent)
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    for argument in arguments:
        found = Source("annotation", argument.annotation) if argument.annotation else Source("unknown")
        scope.names[argument.arg] = [found]
    for rest in (node.args.vararg, node.args.kwarg):
        if rest is not None:
            scope.names[rest.arg] = [Source("unknown")]
    if owner is not None and not isinstance(node, ast.Lambda):
        decorators = {last_name(one.func if isinstance(one, ast.Call) else one) for one in node.decorator_list}
        positional = [*node.args.posonlyargs, *node.args.args]
        if positional and "staticmethod" not in decorators:
            scope.own_name = positional[0].arg
            scope.own_class = "classmethod" in decorators or node.name in ("__new__", "__init_subclass__")
            scope.names.pop(scope.own_name)
    body = node.body if isinstance(node.body, list) else [node.body]
    for part in body:
        _bind(scope, is_package, part)
    return scope


def module_scope(module: str, node: ast.Module) -> Scope:
    """A module's scope has no names of its own: they are the world's members."""
    scope = Scope(module, node)
    for part in _own(node):
        _note_tests(scope, part)
    return scope


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below that belong to this scope."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += [child for child in children(one) if not isinstance(child, _NESTED)]


def _note_tests(scope: Scope, node: ast.AST) -> None:
    if isinstance(node, ast.Attribute) and node.attr in _INSPECTED:
        scope.inspects = True
    if not isinstance(node, ast.Call):
        return
    if last_name(node.func) in ("signature", "getfullargspec", "fields"):
        scope.inspects = True
    if not isinstance(node.func, ast.Name) or len(node.args) < 2:
        return
    asks = node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) > 2)
    if asks and isinstance(node.args[1], ast.Constant):
        scope.tested.add(str(node.args[1].value))
    elif node.func.id in ("isinstance", "issubclass"):
        scope.checked.add(ast.unparse(node.args[0]))


def _bind(scope: Scope, is_package: bool, top: ast.AST) -> None:
    stack = [top]
    outer: set[str] = set()
    while stack:
        node = stack.pop()
        kind = node.__class__
        if kind in _ELSEWHERE:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                scope.names.setdefault(node.name, []).append(Source("def", node))
                stack += [*node.decorator_list, *node.args.defaults]
            elif isinstance(node, ast.ClassDef):
                scope.names.setdefault(node.name, []).append(Source("class", node))
            elif isinstance(node, ast.Global | ast.Nonlocal):
                outer.update(node.names)
            continue
        if kind in _ASKING:
            _note_tests(scope, node)
        elif kind in _BINDING:
            _bind_one(scope, is_package, node)
        for part in FIELDS[kind]:
            value: Any = getattr(node, part, None)
            if value.__class__ is list:
                stack += [item for item in value if item.__class__ not in _PASSED]
            elif value.__class__ not in _PASSED:
                stack.append(value)
    for name in outer:
        scope.names[name] = [Source("unknown")]


def _bind_one(scope: Scope, is_package: bool, node: ast.AST) -> None:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            _bind_target(scope, target, Source("expr", node.value))
    elif isinstance(node, ast.AnnAssign):
        _bind_target(scope, node.target, Source("annotation", node.annotation, beside=node.value))
    elif isinstance(node, ast.AugAssign):
        _bind_target(scope, node.target, Source("unknown"))
    elif isinstance(node, ast.NamedExpr):
        _bind_target(scope, node.target, Source("expr", node.value))
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        _bind_target(scope, node.target, Source("each", node.iter))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _bind_target(scope, node.optional_vars, Source("enter", node.context_expr))
    elif isinstance(node, ast.ExceptHandler) and node.name:
        scope.names.setdefault(node.name, []).append(Source("unknown"))
    elif isinstance(node, ast.Import):
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.partition(".")[0]
            source = Source("import", node, target=(whole, None))
            scope.names.setdefault(alias.asname or whole, []).append(source)
    elif isinstance(node, ast.ImportFrom):
        module = absolute(scope.module, is_package, node)
        for alias in node.names:
            source = Source("import", node, target=(module, alias.name))
            scope.names.setdefault(alias.asname or alias.name, []).append(source)
    elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
        scope.names.setdefault(node.name, []).append(Source("unknown"))


def _bind_target(scope: Scope, target: ast.expr, source: Source) -> None:
    if isinstance(target, ast.Name):
        scope.names.setdefault(target.id, []).append(source)
    elif isinstance(target, ast.Starred):
        _bind_target(scope, target.value, Source("unknown"))
    elif isinstance(target, ast.Tuple | ast.List):
        for index, part in enumerate(target.elts):
            inner = Source("part", source.node, index) if source.kind in ("expr", "each") else Source("unknown")
            if source.kind == "each":
                inner = Source("unknown")
            _bind_target(scope, part, inner)
