"""The keywords that `**` brings into a call, where the source says them: a dict display, `dict(...)`, a local of such.

A local counts where it is made once, is only given constant keys and is only spread: anything else done to it (pop,
update, handed on) leaves its keys unknown. A key that a condition adds may or may not be there.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, NamedTuple

from vllm_pairs.doctor.nodes import walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.scopes import Scope

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Keys(NamedTuple):
    """Keys that are there for sure, and whether these are all."""

    names: tuple[str, ...]
    all: bool


NO_KEYS = Keys((), all=False)


def keys_of(node: ast.expr, scope: Scope) -> Keys:
    """The keys of what `**` is applied to."""
    if isinstance(node, ast.Dict):
        parts = [
            _key(key) if key is not None else keys_of(value, scope)
            for key, value in zip(node.keys, node.values, strict=True)
        ]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        parts = [
            Keys((word.arg,), all=True) if word.arg is not None else keys_of(word.value, scope)
            for word in node.keywords
        ]
    elif isinstance(node, ast.Name):
        return _local(node, scope)
    else:
        return NO_KEYS
    names = dict.fromkeys(name for part in parts for name in part.names)
    return Keys(tuple(names), all(part.all for part in parts))


def _key(node: ast.expr) -> Keys:
    return Keys((node.value,), all=True) if isinstance(node, ast.Constant) and isinstance(node.value, str) else NO_KEYS


def _local(name: ast.Name, scope: Scope) -> Keys:
    bound = scope.find(name.id)
    function = bound[0].node if bound is not None else None
    if not isinstance(function, _FUNCTIONS):
        return NO_KEYS
    made = [
        (block, part, value)
        for block in _blocks(function)
        for part in block
        if (value := _made(part, name.id)) is not None
    ]
    if len(made) != 1:
        return NO_KEYS
    block, statement, value = made[0]
    if not statement.lineno < name.lineno <= (block[-1].end_lineno or 0):
        return NO_KEYS
    keys = keys_of(value, scope)
    names, known = list(keys.names), {id(part) for part in walk(statement)}
    whole = keys.all
    for inner in _blocks(function):
        for part in inner:
            if isinstance(part, ast.Assign) and (key := _stored(part, name.id)) is not None:
                known.add(id(part.targets[0].value))  # type: ignore[attr-defined]  # `_stored` looked
                if inner is block and part.lineno < name.lineno:
                    names.append(key)
                else:
                    whole = False
    every = list(walk(function))
    known.update(id(node.value) for node in every if isinstance(node, ast.keyword) and node.arg is None)
    if any(isinstance(node, ast.Name) and node.id == name.id and id(node) not in known for node in every):
        return NO_KEYS
    return Keys(tuple(dict.fromkeys(names)), whole)


def _made(part: ast.stmt, name: str) -> ast.expr | None:
    """What a statement binds to the name."""
    if isinstance(part, ast.Assign) and len(part.targets) == 1:
        target: ast.expr = part.targets[0]
    elif isinstance(part, ast.AnnAssign) and part.value is not None:
        target = part.target
    else:
        return None
    return part.value if isinstance(target, ast.Name) and target.id == name else None


def _stored(part: ast.Assign, name: str) -> str | None:
    """The key under which a statement puts something into the dict of this name."""
    target = part.targets[0]
    if len(part.targets) != 1 or not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return None
    if target.value.id != name or not isinstance(target.slice, ast.Constant):
        return None
    return target.slice.value if isinstance(target.slice.value, str) else None


def _blocks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[list[ast.stmt]]:
    """The function's body and every block inside it."""
    for node in walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block
