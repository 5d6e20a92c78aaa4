"""Children of syntax-tree nodes, faster than `ast.iter_child_nodes`: fields that never hold a statement or an
expression are not looked at. The order is the source's."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = frozenset(
    "ctx op ops id attr arg name names kind type_comment lineno module level conversion simple is_async asname rest "
    "type_ignores kwd_attrs".split()
)
_FIELDS: dict[type, tuple[str, ...]] = {
    made: tuple(field for field in made._fields if field not in _PLAIN)
    for made in vars(ast).values()
    if isinstance(made, type) and issubclass(made, ast.AST)
}
_FIELDS[ast.Constant] = _FIELDS[ast.MatchSingleton] = _FIELDS[ast.Import] = _FIELDS[ast.ImportFrom] = _FIELDS[ast.Global] = _FIELDS[ast.Nonlocal] = ()
if hasattr(ast, "TypeAlias"):
    _FIELDS[ast.TypeAlias] = ("name", "type_params", "value")


def children(node: ast.AST) -> list[ast.AST]:
    """The statements, expressions, handlers and arguments right below a node."""
    found: list[ast.AST] = []
    for field in _FIELDS[node.__class__]:
        value = getattr(node, field, None)
        if value.__class__ is list:
            found += [item for item in value if item is not None]
        elif value is not None:
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything below, in no order."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += children(one)
