"""Children of syntax-tree nodes, faster than `ast.iter_child_nodes`: fields that never hold a statement or an
expression are not looked at. The order is the source's."""

from __future__ import annotations

import ast
import contextlib
import gc
from typing import TYPE_CHECKING, Any

from vllm_pairs.doctor.words import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.outline import Words

_PLAIN = words(
    "ctx op ops id attr arg name names kind type_comment lineno module level conversion simple is_async asname rest "
    "type_ignores kwd_attrs"
)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No search for cycles meanwhile: syntax trees have none, and hundreds of megabytes of them are gone through."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


FIELDS: dict[type, tuple[str, ...]] = {
    made: tuple(field for field in made._fields if field not in _PLAIN)
    for made in vars(ast).values()
    if isinstance(made, type) and issubclass(made, ast.AST)
}
FIELDS[ast.Constant] = FIELDS[ast.MatchSingleton] = FIELDS[ast.Import] = FIELDS[ast.ImportFrom] = FIELDS[
    ast.Global
] = FIELDS[ast.Nonlocal] = ()
if hasattr(ast, "TypeAlias"):
    FIELDS[ast.TypeAlias] = ("name", "type_params", "value")


_GAPS = frozenset({"keys", "kw_defaults"})  # lists in which None stands for nothing


def children(node: ast.AST) -> list[ast.AST]:
    """The statements, expressions, handlers and arguments right below a node."""
    found: list[ast.AST] = []
    for field in FIELDS[node.__class__]:
        value = getattr(node, field, None)
        if value.__class__ is list:
            found += value if field not in _GAPS else [item for item in value if item is not None]
        elif value is not None:
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything below, in no order."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        for field in FIELDS[one.__class__]:  # as `children` does, without a list for every node
            value: Any = getattr(one, field, None)
            if value.__class__ is list:
                stack += value if field not in _GAPS else [item for item in value if item is not None]
            elif value is not None:
                stack.append(value)


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases", "items")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """A definition and every statement, handler and `with` item below: `walk` without the expressions."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        for field in _BLOCKS:
            value: Any = getattr(one, field, None)
            if value.__class__ is list:
                stack += value


_LEAVES = frozenset({ast.Name, ast.Constant, type(None), str})
_SCANNED = {
    made: tuple(field for field in fields if field not in ("annotation", "returns", "type_params"))
    for made, fields in FIELDS.items()
}


def scan(top: ast.AST, own: str, found: Words) -> None:
    """Collect what a body calls and stores into `found`; `own` is the name that stands for self ("" for none).

    Each node is looked at once: this runs over every line of a core.
    """
    calls, stores, instance = found.calls, found.stores, found.instance
    stack = [top]
    while stack:
        node = stack.pop()
        kind = node.__class__
        if kind is ast.Call:
            _scan_call(node, own, found)  # type: ignore[arg-type]
        elif kind is ast.Attribute and node.ctx.__class__ is ast.Store:  # type: ignore[attr-defined]
            base = node.value  # type: ignore[attr-defined]
            to_self = base.__class__ is ast.Name and base.id == own
            (instance if to_self else stores).add(node.attr)  # type: ignore[attr-defined]
        for field in _SCANNED[kind]:
            value: Any = getattr(node, field, None)
            if value.__class__ is list:
                stack += [item for item in value if item.__class__ not in _LEAVES]
            elif value.__class__ not in _LEAVES:
                stack.append(value)
    calls.discard("")


def _scan_call(node: ast.Call, own: str, found: Words) -> None:
    function = node.func.value if isinstance(node.func, ast.Subscript) else node.func  # kernel[grid](...)
    if isinstance(function, ast.Attribute):
        found.calls.add(function.attr)
    elif isinstance(function, ast.Name):
        found.calls.add(function.id)
        if function.id == "setattr" and len(node.args) > 1:
            target, name = node.args[0], node.args[1]
            text = str(name.value) if isinstance(name, ast.Constant) else "*"
            if isinstance(target, ast.Name) and target.id == own:
                found.instance.add(text)
            elif text != "*":
                found.stores.add(text)
