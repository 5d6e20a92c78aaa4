"""Annotations as values: which class an annotated name has, through Optional, containers, strings and type[...]."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.words import words
from vllm_pairs.doctor.world import UNKNOWN, Found, Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.scopes import Scope
    from vllm_pairs.doctor.world import World

_THROUGH = frozenset({"Optional", "ClassVar", "Final", "Annotated", "Required", "NotRequired", "InitVar", "Ref"})
_EACH = words(
    "list List Sequence Iterable Iterator Collection set Set frozenset FrozenSet deque Deque MutableSequence Generator"
)
_VALUES = words("dict Dict Mapping MutableMapping defaultdict OrderedDict DefaultDict")


class Annotations:
    """Reads annotations in the names of their module."""

    def __init__(self, world: World) -> None:
        self.world = world

    def read(self, node: ast.expr, module: str, scope: Scope | None = None, own: Ref | None = None) -> Found:
        """What something annotated so is; `own` is what Self means."""
        if isinstance(node, ast.Constant):
            return self._text(node.value, module, scope, own) if isinstance(node.value, str) else UNKNOWN
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            parts = [part for part in _union(node) if not _is_none(part)]
            return self.read(parts[0], module, scope, own) if len(parts) == 1 else UNKNOWN
        if isinstance(node, ast.Subscript):
            return self._generic(node, module, scope, own)
        if isinstance(node, ast.Name | ast.Attribute):
            if last_name(node) == "Self" and own is not None:
                return Value("instance", own)
            found = self._class(node, module, scope)
            return Value("instance", found) if found is not None else UNKNOWN
        return UNKNOWN

    def _class(self, node: ast.expr, module: str, scope: Scope | None) -> Ref | None:
        if isinstance(node, ast.Name) and scope is not None and (bound := scope.find(node.id)) is not None:
            target = bound[1][0].target if len(bound[1]) == 1 else None
            if target is None or target[1] is None:
                return None
            module, node = target[0], ast.Name(target[1])
        found = self.world.lookup(module, node, typing=True)
        return found.ref if isinstance(found, Value) and found.sort == "class" else None

    def _text(self, text: str, module: str, scope: Scope | None, own: Ref | None) -> Found:
        try:
            inner = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            return UNKNOWN
        return UNKNOWN if isinstance(inner, ast.Constant) else self.read(inner, module, scope, own)

    def _generic(self, node: ast.Subscript, module: str, scope: Scope | None, own: Ref | None) -> Found:
        head, parts = last_name(node.value), _parts(node)
        if head == "Union":
            parts = [part for part in parts if not _is_none(part)]
            return self.read(parts[0], module, scope, own) if len(parts) == 1 else UNKNOWN
        if head in _THROUGH and parts:
            return self.read(parts[0], module, scope, own)
        if head in ("type", "Type") and len(parts) == 1:
            found = self.read(parts[0], module, scope, own)
            return Value("type", found.ref) if isinstance(found, Value) and found.sort == "instance" else UNKNOWN
        element: Found = UNKNOWN
        if head in _EACH and parts:
            element = self.read(parts[0], module, scope, own)
        elif head in _VALUES and len(parts) == 2:
            element = self.read(parts[1], module, scope, own)
        elif head in ("tuple", "Tuple") and len(parts) == 2 and isinstance(parts[1], ast.Constant):
            element = self.read(parts[0], module, scope, own)
        elif head not in ("tuple", "Tuple", "Callable", "Literal"):
            generic = self._class(node.value, module, scope)  # a class of the trees
            return Value("instance", generic) if generic is not None else UNKNOWN
        return Value("list", element.ref, element=element) if isinstance(element, Value) else UNKNOWN

    def tuple_parts(self, node: ast.expr) -> list[ast.expr]:
        """The annotations of a tuple's places; [] for anything else."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value.strip(), mode="eval").body
            except SyntaxError:
                return []
        if isinstance(node, ast.Subscript) and last_name(node.value) in ("tuple", "Tuple"):
            parts = _parts(node)
            return [] if any(isinstance(part, ast.Constant) and part.value is ... for part in parts) else parts
        return []


def _parts(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _union(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_union(node.left), *_union(node.right)]
    return [node]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
