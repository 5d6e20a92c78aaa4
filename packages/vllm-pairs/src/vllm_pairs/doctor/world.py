"""Both trees as one place to look names up in: modules, what a name in one of them is, and syntax trees on demand.

Invariant: an answer is certain or it is `UNKNOWN`; `MISSING` is said only where every way a name can come to be was
looked at (definitions, imports, star imports, submodules, module-level `__getattr__`).
"""

from __future__ import annotations

import ast
import contextlib
import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from vllm_pairs.doctor.conditions import Conditions
from vllm_pairs.doctor.nodes import children
from vllm_pairs.doctor.outline import Outline, absolute, parse, prune_if
from vllm_pairs.doctor.words import words

if TYPE_CHECKING:
    from vllm_pairs.doctor.sources import Tree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Sort = Literal["module", "class", "def", "instance", "type", "super", "list", "value"]


@dataclass(frozen=True, slots=True)
class Ref:
    """A definition: its module and its qualified name ("" for the module itself)."""

    module: str
    qualname: str = ""

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}" if self.qualname else self.module


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression is: a module, a class, a function, or something of a class.

    `instance` is an object of class `ref` (or of a subclass), `type` a class that is `ref` or a subclass of it, `list`
    something whose elements are `element`. A method has the class it was reached through as `owner` and, if bound, one
    filled parameter. `node` is there for functions that no qualified name reaches (nested ones, lambdas).
    """

    sort: Sort
    ref: Ref
    owner: Ref | None = None
    bound: int = 0
    element: Value | None = None
    node: FunctionNode | ast.Lambda | None = field(default=None, compare=False)


class _Answer:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


UNKNOWN: Final = _Answer("UNKNOWN")
MISSING: Final = _Answer("MISSING")
Found = Value | _Answer


class World:
    """The core and the plugin (and, for their hooks, more packages), with the core's version for conditions."""

    def __init__(
        self,
        core_version: str | None,
        *sides: tuple[Tree, dict[str, Outline]],
        kept: dict[str, ast.Module | None] | None = None,
    ) -> None:
        self.core_version = core_version
        self.trees = [tree for tree, _ in sides]
        self.roots = {tree.package: tree for tree in self.trees}
        self.outlines: dict[str, Outline] = {}
        for _, outlines in sides:
            self.outlines.update(outlines)
        self.parsed: dict[str, ast.Module | None] = dict(kept or {})
        self._nodes: dict[str, dict[str, ast.AST]] = {}
        self._resolving: set[tuple[str, str]] = set()

    def tree_of(self, module: str) -> Tree | None:
        """The tree a module belongs to, None for other libraries."""
        return self.roots.get(module.partition(".")[0])

    def path(self, module: str) -> str | None:
        """A module's file, relative."""
        tree = self.tree_of(module)
        return tree.files.get(module) if tree else None

    def has_module(self, module: str) -> bool | None:
        """Whether a module exists; None for other libraries."""
        tree = self.tree_of(module)
        if tree is None:
            return None
        return module in tree.files or module in tree.folders or module in tree.native

    def nearest_name(self, module: str, name: str) -> tuple[str, int]:
        """What a module has where a name is not, in words, and the line of the name nearest to it (else 1)."""
        names = outline.names if (outline := self.outlines.get(module)) is not None else {}
        close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)
        has = f"{module} has no {name}"
        return (f"{has}; it has {close[0]}", names[close[0]].line) if close else (has, 1)

    def nearest(self, module: str) -> str:
        """The longest existing package of a missing module's path."""
        while module and not self.has_module(module):
            module = module.rpartition(".")[0]
        return module

    def syntax(self, module: str) -> ast.Module | None:
        """A module's pruned syntax tree, None where there is none to read."""
        if module not in self.parsed:
            tree = self.tree_of(module)
            source = tree.sources.get(module) if tree else None
            made = None
            if tree is not None and source is not None and self.outlines[module].problem is None:
                with contextlib.suppress(RecursionError):  # deeper down the stack than where its outline was read
                    made = prune_if(parse(source, tree.files[module]), source, self.core_version)
            self.parsed[module] = made
        return self.parsed[module]

    def node(self, ref: Ref) -> ast.AST | None:
        """The definition (def or class) a reference names; None also where there are several."""
        if ref.module not in self._nodes:
            nodes: dict[str, ast.AST] = {}
            tree = self.syntax(ref.module)
            if tree is not None:
                _collect(tree, "", nodes)
            self._nodes[ref.module] = nodes
        found = self._nodes[ref.module].get(ref.qualname)
        return None if found is _SEVERAL else found

    def conditions(self) -> Conditions:
        """Fresh conditions for the core's version."""
        return Conditions(self.core_version)

    def member(self, module: str, name: str, *, typing: bool = False) -> Found:
        """What `module.name` is; a name bound only for type checkers is MISSING unless `typing`."""
        key = (module, name)
        if key in self._resolving:
            return UNKNOWN  # modules that import from each other
        self._resolving.add(key)
        try:
            return self._member(module, name, typing)
        finally:
            self._resolving.discard(key)

    def _member(self, module: str, name: str, typing: bool) -> Found:
        outline = self.outlines.get(module)
        if outline is None:
            return self._without_outline(module, name)
        bound = outline.names.get(name) or (outline.typing_names.get(name) if typing else None)
        if bound is not None:
            if bound.kind == "import" and bound.target is not None:
                if bound.several:
                    return UNKNOWN
                return self._imported(bound.target, typing=typing or name in outline.typing_names)
            if bound.several or bound.kind == "value":
                return self._value(module, name) if not bound.several else UNKNOWN
            return Value("class" if bound.kind == "class" else "def", Ref(module, name))
        if self.has_module(f"{module}.{name}"):
            return Value("module", Ref(f"{module}.{name}"))
        if name in _MODULE_NAMES or outline.open or (outline.lazy is not None and name in outline.lazy):
            return UNKNOWN
        doubt = False
        for source in outline.stars:
            if self.has_module(source) is None:
                doubt = True
                continue
            found = self.member(source, name)
            if found is not MISSING:
                return found
        return UNKNOWN if doubt else MISSING

    def _without_outline(self, module: str, name: str) -> Found:
        if self.has_module(f"{module}.{name}"):
            return Value("module", Ref(f"{module}.{name}"))
        tree = self.tree_of(module)
        return MISSING if tree is not None and module in tree.folders else UNKNOWN

    def _imported(self, target: tuple[str, str | None], *, typing: bool) -> Found:
        module, name = target
        if self.tree_of(module) is None:
            return UNKNOWN
        if name is None:
            return Value("module", Ref(module)) if self.has_module(module) else UNKNOWN
        if not self.has_module(module):
            return UNKNOWN  # the import itself is reported where it stands
        found = self.member(module, name, typing=typing)
        return UNKNOWN if found is MISSING else found

    def imported_as(self, module: str, name: str) -> list[Found]:
        """What the imports of a module's own code bind to a name, each of them; empty where something else does."""
        found: list[Found] = []
        stack: list[ast.AST] = [tree] if (tree := self.syntax(module)) is not None else []
        while stack:
            node = stack.pop()
            if isinstance(node, ast.ImportFrom):
                source = absolute(module, self.roots[module.partition(".")[0]].is_package(module), node)
                bound = [alias.name for alias in node.names if (alias.asname or alias.name) == name]
                found += [self._imported((source, one), typing=False) for one in bound]
            elif isinstance(node, _DEFS):
                if node.name == name:
                    return []
            elif isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
                return []
            else:
                stack += children(node)
        return found

    def _value(self, module: str, name: str) -> Found:
        """A module-level assignment: an alias of something known, else UNKNOWN."""
        tree = self.syntax(module)
        for node in tree.body if tree is not None else ():
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self.lookup(module, node.value) if isinstance(node.value, ast.Name | ast.Attribute) else UNKNOWN
        return UNKNOWN

    def lookup(self, module: str, node: ast.expr, *, typing: bool = False) -> Found:
        """What a dotted name in a module's own scope is (only modules, classes and functions)."""
        if isinstance(node, ast.Name):
            found = self.member(module, node.id, typing=typing)
            return UNKNOWN if found is MISSING else found
        if isinstance(node, ast.Attribute):
            base = self.lookup(module, node.value, typing=typing)
            if isinstance(base, Value) and base.sort == "module":
                return self.member(base.ref.module, node.attr, typing=typing)
            if isinstance(base, Value) and base.sort == "class":
                inner = f"{base.ref.qualname}.{node.attr}"
                if inner in self.outlines[base.ref.module].classes:
                    return Value("class", Ref(base.ref.module, inner))
        return UNKNOWN


_SEVERAL = ast.Pass()
_MODULE_NAMES = words("__name__ __file__ __path__ __doc__ __dict__ __all__ __spec__ __package__ __loader__")


def _collect(node: ast.AST, prefix: str, nodes: dict[str, ast.AST]) -> None:
    for child in children(node):
        if isinstance(child, _DEFS):
            name = f"{prefix}{child.name}"
            marks = [ast.unparse(decorator) for decorator in child.decorator_list]
            if any(mark.endswith((".setter", ".deleter", "overload", ".register")) for mark in marks):
                continue  # of a property its getter stays
            nodes[name] = _SEVERAL if name in nodes else child
            if isinstance(child, ast.ClassDef):
                _collect(child, f"{name}.", nodes)
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            _collect(child, prefix, nodes)
