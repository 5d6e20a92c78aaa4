"""What an expression is: a module, a class, a function, or an object of a class, as far as the source says.

Invariant: UNKNOWN wherever the source leaves a doubt (several classes, untyped parameters, values of other libraries).
`None` is left out: an Optional is what it is when it is there.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.members import Members
from vllm_pairs.doctor.scopes import Scope, Source, function_scope
from vllm_pairs.doctor.world import MISSING, UNKNOWN, Found, Ref, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_pairs.doctor.classes import Classes
    from vllm_pairs.doctor.world import FunctionNode

_DEPTH = 24


class Inference(Members):
    """Reads expressions in scopes; remembers the types of attributes."""

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes)
        self._scopes: dict[tuple[int, Ref | None], Scope] = {}
        self._busy: set[object] = set()
        self._depth = 0

    def scope(
        self, module: str, node: FunctionNode, owner: Ref | None, self_type: Ref | None, parent: Scope | None = None
    ) -> Scope:
        """The scope of a function, made once for each class that `self` is taken to be."""
        key = (id(node), self_type)
        if key not in self._scopes:
            tree = self.world.tree_of(module)
            package = tree is not None and module in tree.files and tree.is_package(module)
            made = function_scope(module, package, node, owner=owner, self_type=self_type, parent=parent)
            self._scopes[key] = made
        return self._scopes[key]

    def value(self, node: ast.AST | None, scope: Scope) -> Found:
        """What an expression is in a scope; remembered where no answer on the way was cut short."""
        kept = scope.values.get(id(node))
        if kept is not None:
            return kept
        if self._depth > _DEPTH:
            self._cut += 1
            return UNKNOWN
        self._depth += 1
        before = self._cut
        try:
            found = self._value(node, scope)
        finally:
            self._depth -= 1
        if before == self._cut:
            scope.values[id(node)] = found
        return found

    def _value(self, node: ast.AST | None, scope: Scope) -> Found:
        if isinstance(node, ast.Name):
            return self._name(node.id, scope)
        if isinstance(node, ast.Attribute):
            if scope.checked or scope.narrowed:
                text = ast.unparse(node)
                if (wanted := scope.narrowed.get(text)) is not None:
                    return self.annotations.read(wanted, scope.module, scope)
                if text in scope.checked:
                    return UNKNOWN
            base = self.value(node.value, scope)
            return self.attribute(base, node.attr) if isinstance(base, Value) else UNKNOWN
        if isinstance(node, ast.Call):
            return self._call(node, scope)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Attribute) and ast.unparse(node.value) == "sys.modules":
                return self._loaded(node.slice)
            base = self.value(node.value, scope)
            if isinstance(base, Value) and base.sort == "list" and base.element is not None:
                return base if isinstance(node.slice, ast.Slice) else base.element
            return UNKNOWN
        if isinstance(node, ast.IfExp):
            return self.join([self._optional(node.body, scope), self._optional(node.orelse, scope)])
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self.join([self._optional(part, scope) for part in node.values])
        if isinstance(node, ast.NamedExpr):
            return self.value(node.value, scope)
        if isinstance(node, ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp):
            parts = node.elts if isinstance(node, ast.List | ast.Tuple) else [node.elt]
            element = self.join([self.value(part, scope) for part in parts]) if parts else UNKNOWN
            return Value("list", element.ref, element=element) if isinstance(element, Value) else UNKNOWN
        if isinstance(node, ast.Lambda):
            return Value("def", Ref(scope.module, "<lambda>"), node=node)
        return UNKNOWN

    def _optional(self, node: ast.AST | None, scope: Scope) -> Found | None:
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        return self.value(node, scope)

    def join(self, found: Iterable[Found | None]) -> Found:
        """One answer for several: the same, or the class that the others derive from; None stands for nothing."""
        joined: Found | None = None
        for one in found:
            if one is None:
                continue
            if not isinstance(one, Value):
                return UNKNOWN
            if joined is None or joined == one:
                joined = one
            elif isinstance(joined, Value) and joined.sort == one.sort == "instance":
                if joined.ref in self.classes.mro(one.ref).refs:
                    continue
                if one.ref not in self.classes.mro(joined.ref).refs:
                    return UNKNOWN
                joined = one
            else:
                return UNKNOWN
        return joined or UNKNOWN

    def _name(self, name: str, scope: Scope) -> Found:
        method = scope.method_scope()
        if method is not None and name == method.own_name and (scope is method or scope.find(name) is None):
            if method.self_type is None or name in scope.checked:
                return UNKNOWN
            return Value("type" if method.own_class else "instance", method.self_type)
        bound = scope.find(name)
        if bound is None:
            return self._global(scope.module, name)
        where, sources = bound
        if name in scope.checked or name in where.checked:
            return UNKNOWN
        if name not in where.known:
            where.known[name] = None  # asked for again while it is found out
            annotated = [source for source in sources if source.kind == "annotation"]
            where.known[name] = self.join(self.source(source, where) for source in annotated or sources)
        found = where.known[name]
        if found is None:
            self._cut += 1
        return found or UNKNOWN

    def _global(self, module: str, name: str) -> Found:
        found = self.world.member(module, name)
        if found is not UNKNOWN:
            return UNKNOWN if found is MISSING else found
        key = (module, name)
        if key in self._busy:
            self._cut += 1
            return UNKNOWN
        self._busy.add(key)
        try:
            return self._module_value(module, name)
        finally:
            self._busy.discard(key)

    def _module_value(self, module: str, name: str) -> Found:
        """An object that a module makes: `x: T = ...` or `x = T(...)`, also through imports."""
        outline = self.world.outlines.get(module)
        bound = outline.names.get(name) if outline else None
        if bound is None or bound.several:
            return UNKNOWN
        if bound.kind == "import" and bound.target is not None and bound.target[1] is not None:
            return self._global(bound.target[0], bound.target[1]) if self.world.tree_of(bound.target[0]) else UNKNOWN
        tree = self.world.syntax(module)
        for node in tree.body if tree is not None and bound.kind == "value" else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
                return self.annotations.read(node.annotation, module)
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self.value(node.value, self.module_scope(module, tree)) if tree is not None else UNKNOWN
        return UNKNOWN

    def source(self, source: Source, scope: Scope) -> Found | None:
        """What one thing that a name is bound to is; None for `None`."""
        key = (id(source), id(scope))
        if key in self._busy:
            self._cut += 1
            return UNKNOWN
        self._busy.add(key)
        try:
            return self._read_source(source, scope)
        finally:
            self._busy.discard(key)

    def _read_source(self, source: Source, scope: Scope) -> Found | None:
        node = source.node
        if source.kind == "annotation" and isinstance(node, ast.expr):
            return self.annotations.read(node, scope.module, scope, scope.self_type)
        if source.kind == "expr":
            return self._optional(node, scope)
        if source.kind == "each":
            found = self.value(node, scope)
            return found.element if isinstance(found, Value) and found.sort == "list" and found.element else UNKNOWN
        if source.kind == "part" and isinstance(node, ast.Call):
            return self._returned(node, scope, source.index)
        if source.kind == "part" and isinstance(node, ast.Tuple) and source.index < len(node.elts):
            return self.value(node.elts[source.index], scope)
        if source.kind == "def" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            outer = scope.node.name if isinstance(scope.node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            qualname = f"{scope.owner.qualname}.{outer}" if scope.owner else outer
            return Value("def", Ref(scope.module, f"{qualname}.<locals>.{node.name}"), node=node)
        if source.kind == "import" and source.target is not None:
            module, name = source.target
            if self.world.tree_of(module) is None:
                return UNKNOWN
            if name is None:
                return Value("module", Ref(module)) if self.world.has_module(module) else UNKNOWN
            return self._global(module, name) if self.world.has_module(module) else UNKNOWN
        return UNKNOWN

    def _loaded(self, name: ast.expr) -> Found:
        """A module by its full name as a text."""
        text = name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else ""
        return Value("module", Ref(text)) if text and self.world.has_module(text) else UNKNOWN

    def _call(self, node: ast.Call, scope: Scope) -> Found:
        called = last_name(node.func)
        if node.args and (called == "import_module" or (called == "get" and _is_modules(node.func))):
            return self._loaded(node.args[0])
        if isinstance(node.func, ast.Name) and called in (
            "super",
            "cast",
            "type",
            "list",
            "tuple",
            "sorted",
            "reversed",
        ):
            return self._builtin(node, called, scope)
        if called == "cast" and len(node.args) == 2:
            return self.annotations.read(node.args[0], scope.module, scope, scope.self_type)
        if isinstance(node.func, ast.Attribute) and called in ("values", "get", "pop", "copy"):
            base = self.value(node.func.value, scope)
            if isinstance(base, Value) and base.sort == "list":
                return base if called in ("values", "copy") else base.element or UNKNOWN
        found = self.value(node.func, scope)
        if not isinstance(found, Value):
            return UNKNOWN
        if found.sort in ("class", "type"):
            return Value("instance", found.ref)
        return self._returned(node, scope, None) if found.sort == "def" else UNKNOWN

    def _builtin(self, node: ast.Call, called: str, scope: Scope) -> Found:
        if called == "super":
            method = scope.method_scope()
            if method is None or method.owner is None or method.self_type is None or len(node.args) not in (0, 2):
                return UNKNOWN
            after = self.value(node.args[0], scope) if node.args else Value("class", method.owner)
            if not isinstance(after, Value) or after.sort != "class":
                return UNKNOWN
            return Value("super", after.ref, owner=method.self_type, bound=int(not method.own_class))
        if called == "cast" and len(node.args) == 2:
            return self.annotations.read(node.args[0], scope.module, scope, scope.self_type)
        if len(node.args) != 1:
            return UNKNOWN
        found = self.value(node.args[0], scope)
        if called == "type":
            return Value("type", found.ref) if isinstance(found, Value) and found.sort == "instance" else UNKNOWN
        return found if isinstance(found, Value) and found.sort == "list" else UNKNOWN

    def _returned(self, node: ast.Call, scope: Scope, index: int | None) -> Found:
        """What a call of a function returns, by its annotation; `index` picks a part of a tuple."""
        found = self.value(node.func, scope)
        if not isinstance(found, Value) or found.sort != "def":
            return UNKNOWN
        made = found.node or self.world.node(found.ref)
        if not isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef) or made.returns is None:
            return UNKNOWN
        if isinstance(made, ast.AsyncFunctionDef) or any(
            "contextmanager" in ast.unparse(d) for d in made.decorator_list
        ):
            return UNKNOWN
        module = found.ref.module
        if index is None:
            return self.annotations.read(made.returns, module, None, found.owner)
        parts = self.annotations.tuple_parts(made.returns)
        if index >= len(parts):
            return UNKNOWN
        return self.annotations.read(parts[index], module, None, found.owner)


def _is_modules(node: ast.expr) -> bool:
    """Whether this is a member of `sys.modules`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "modules"
