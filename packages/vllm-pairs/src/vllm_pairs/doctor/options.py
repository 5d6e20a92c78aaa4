"""All that an expression may be, where `infer` has one certain answer: whatever the source puts there.

An annotation that the code does not hold to (`self.runner: A = B(...)`), or one name for the classes of several
branches, leaves more than one; a rule that asks what may be called takes each.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.infer import Inference
    from vllm_pairs.doctor.scopes import Scope, Source

_DEPTH = 5  # bindings that are followed one behind the other


class Options:
    """Reads expressions in scopes."""

    def __init__(self, inference: Inference) -> None:
        self.inference, self.classes = inference, inference.classes

    def of(self, node: ast.AST, scope: Scope, depth: int = _DEPTH) -> list[Value]:
        """What an expression may be, the certain answer first."""
        one = self.inference.value(node, scope)
        found = [one] if isinstance(one, Value) else []
        for source, where in self._bindings(node, scope) if depth else ():
            if source.kind == "import":
                imported = self.inference.source(source, where)
                found += [imported] if isinstance(imported, Value) else []
            for part in (source.beside, source.node if source.kind == "expr" else None):
                found += self.of(part, where, depth - 1) if part is not None else []
        if isinstance(node, ast.Call) and depth:
            for called in self.of(node.func, scope, depth - 1):
                if called.sort in ("class", "type"):
                    found.append(Value("instance", called.ref))
                elif called.sort == "def":
                    found += self._returned(called, depth - 1)
        return list(dict.fromkeys(found))

    def _bindings(self, node: ast.AST, scope: Scope) -> Iterator[tuple[Source, Scope]]:
        """What is bound to a local name or to an attribute of self, each with the scope it is read in."""
        if isinstance(node, ast.Name) and (bound := scope.find(node.id)) is not None:
            yield from ((source, bound[0]) for source in bound[1])
        elif isinstance(node, ast.Attribute):
            base = self.inference.value(node.value, scope)
            if isinstance(base, Value) and base.sort == "instance":
                for setter in self.classes.setters(base.ref, node.attr):
                    for method, source in self.inference.assignments(setter).get(node.attr, ()):
                        yield source, self.inference.scope(setter.module, method, setter, base.ref)

    def _returned(self, called: Value, depth: int) -> list[Value]:
        """What a function of the trees may return."""
        node = called.node or self.inference.world.node(called.ref)
        if not isinstance(node, ast.FunctionDef):
            return []
        outer = Ref(called.ref.module, called.ref.qualname.rpartition(".")[0])
        owner = outer if self.classes.outline(outer) is not None else None
        scope = self.inference.scope(called.ref.module, node, owner, called.owner or owner)
        parts = [part.value for part in walk(node) if isinstance(part, ast.Return) and part.value is not None]
        return [one for part in parts for one in self.of(part, scope, depth)]
