"""What an attribute of a module, a class or an object is, as far as the source says: see `infer`."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from vllm_pairs.doctor.annotations import Annotations
from vllm_pairs.doctor.nodes import statements
from vllm_pairs.doctor.scopes import Source, module_scope
from vllm_pairs.doctor.world import UNKNOWN, Found, Ref, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_pairs.doctor.classes import Classes
    from vllm_pairs.doctor.scopes import Scope
    from vllm_pairs.doctor.world import FunctionNode


class Members(ABC):
    """The half of `Inference` that answers for attributes; the other reads expressions."""

    def __init__(self, classes: Classes) -> None:
        self.classes, self.world = classes, classes.world
        self.annotations = Annotations(self.world)
        self._attributes: dict[tuple[str, Ref, Ref | None, str], Found | None] = {}
        self._assigned: dict[Ref, dict[str, list[tuple[FunctionNode, Source]]]] = {}
        self._modules: dict[str, Scope] = {}
        self._cut = 0  # counts answers that were not looked for to the end

    @abstractmethod
    def value(self, node: ast.AST | None, scope: Scope) -> Found:
        """What an expression is in a scope."""

    @abstractmethod
    def scope(
        self, module: str, node: FunctionNode, owner: Ref | None, self_type: Ref | None, parent: Scope | None = None
    ) -> Scope:
        """The scope of a function."""

    @abstractmethod
    def join(self, found: Iterable[Found | None]) -> Found:
        """One answer for several."""

    @abstractmethod
    def _global(self, module: str, name: str) -> Found: ...

    @abstractmethod
    def source(self, source: Source, scope: Scope) -> Found | None:
        """What one thing that a name is bound to is; None for `None`."""

    def module_scope(self, module: str, tree: ast.Module) -> Scope:
        """A module's scope, made once."""
        if module not in self._modules:
            self._modules[module] = module_scope(module, tree)
        return self._modules[module]

    def attribute(self, base: Value, name: str) -> Found:
        """What an attribute of something is; UNKNOWN also where there is none."""
        if base.sort == "module":
            return self._global(base.ref.module, name)
        if base.sort in ("instance", "class", "type"):
            return self._member(base, name, self.classes.owner(base.ref, name))
        if base.sort == "super" and base.owner is not None:
            found = self.classes.owner(base.owner, name, after=base.ref)
            return self._member(Value("instance", base.owner, bound=base.bound), name, found) if found else UNKNOWN
        return UNKNOWN

    def _member(self, base: Value, name: str, owner: Ref | None) -> Found:
        key = (base.sort, base.ref, owner, name)
        if key not in self._attributes:
            self._attributes[key] = None  # asked for again while it is found out
            self._attributes[key] = self._find_member(base, name, owner)
        found = self._attributes[key]
        if found is None:
            self._cut += 1
        return found or UNKNOWN

    def _find_member(self, base: Value, name: str, owner: Ref | None) -> Found:
        if owner is not None:
            kind = self.classes.kind(owner, name)
            inner = Ref(owner.module, f"{owner.qualname}.{name}")
            if kind == "class":
                return Value("class", inner)
            if kind == "property":
                node = self.world.node(inner)
                if base.sort != "instance" or not isinstance(node, ast.FunctionDef) or node.returns is None:
                    return UNKNOWN
                return self.annotations.read(node.returns, owner.module, None, base.ref)
            if kind != "value":
                bound = 0 if kind == "staticmethod" or (kind == "method" and base.sort != "instance") else 1
                return Value("def", inner, owner=base.ref, bound=bound)
        if base.sort != "instance":
            return self._class_value(base.ref, name, owner)
        return self._instance_value(base.ref, name, owner)

    def _class_value(self, ref: Ref, name: str, owner: Ref | None) -> Found:
        node = self.world.node(owner) if owner is not None else None
        if owner is None or not isinstance(node, ast.ClassDef):
            return UNKNOWN
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and part.target.id == name:
                return self.annotations.read(part.annotation, owner.module, None, ref)
            if isinstance(part, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in part.targets):
                tree = self.world.syntax(owner.module)
                return self.value(part.value, self.module_scope(owner.module, tree)) if tree is not None else UNKNOWN
        return UNKNOWN

    def _instance_value(self, ref: Ref, name: str, owner: Ref | None) -> Found:
        found: list[Found | None] = []
        for setter in self.classes.setters(ref, name):
            for method, source in self.assignments(setter).get(name, ()):
                scope = self.scope(setter.module, method, setter, ref)
                value = self.source(source, scope)
                if source.kind == "annotation":
                    found = [value]
                    break
                found.append(value)
            else:
                continue
            break
        for lower in self.classes.subclasses(ref):  # an object of this class may be one of these
            outline = self.classes.outline(lower)
            if outline is not None and name in outline.instance:
                for method, source in self.assignments(lower).get(name, ()):
                    found.append(self.source(source, self.scope(lower.module, method, lower, lower)))
        if owner is not None:
            from_class = self._class_value(ref, name, owner)
            if from_class is not UNKNOWN or not found:
                return from_class
        return self.join(found)

    def assignments(self, ref: Ref) -> dict[str, list[tuple[FunctionNode, Source]]]:
        """What the methods of a class set on self."""
        if ref not in self._assigned:
            made: dict[str, list[tuple[FunctionNode, Source]]] = {}
            node = self.world.node(ref)
            for method in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.args.args:
                    for name, source in _self_assignments(method, method.args.args[0].arg):
                        made.setdefault(name, []).append((method, source))
            self._assigned[ref] = made
        return self._assigned[ref]


def _self_assignments(method: FunctionNode, own: str) -> list[tuple[str, Source]]:
    found: list[tuple[str, Source]] = []
    for node in statements(method):
        targets: list[tuple[ast.expr, Source]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List):
                    targets += [(part, Source("part", node.value, index)) for index, part in enumerate(target.elts)]
                else:
                    targets.append((target, Source("expr", node.value)))
        elif isinstance(node, ast.AnnAssign):
            targets = [(node.target, Source("annotation", node.annotation, beside=node.value))]
        elif isinstance(node, ast.AugAssign | ast.For):
            targets = [(node.target, Source("unknown"))]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets = [(node.optional_vars, Source("unknown"))]
        for target, source in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == own:
                found.append((target.attr, source))
    return found
