"""Conditions that a version decides: `vllm_version_is("0.29.0")`, comparisons with `vllm.__version__`, TYPE_CHECKING.

Three-valued: True and False are certain, None is not known here. `prune` takes the branches that never run out of a
syntax tree, with everything after a statement that always leaves.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from vllm_pairs.doctor.nodes import walk

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_UNKNOWN: Any = object()


def last_name(node: ast.expr) -> str:
    """The last part of a dotted expression: `utils.vllm_version_is` gives "vllm_version_is"; "" for others."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@dataclass
class Conditions:
    """What is known of the environment: the core's version (None: unknown) and constants of the module at hand."""

    core_version: str | None
    constants: dict[str, bool] = field(default_factory=dict)
    nothing: set[str] = field(default_factory=set)  # names of the module that are None

    def note(self, node: ast.Assign, *, once: bool) -> None:
        """Remember `name = <something the version decides>`, where the name is set once."""
        truth = self.truth(node.value)
        target = node.targets[0]
        if once and truth is not None and isinstance(target, ast.Name) and not isinstance(node.value, ast.Constant):
            self.constants[target.id] = truth

    def truth(self, test: ast.expr) -> bool | None:
        """Whether a test holds; None where it is not decided by the version."""
        if isinstance(test, ast.Constant):
            return bool(test.value)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.truth(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            return self._bool_op(test)
        if isinstance(test, ast.Call) and last_name(test.func) == "vllm_version_is" and len(test.args) == 1:
            return self._version_is(test.args[0])
        if isinstance(test, ast.Compare):
            return self._compare(test)
        if isinstance(test, ast.Name | ast.Attribute):
            if is_type_checking(test):
                return False
            if isinstance(test, ast.Name) and test.id in self.nothing:
                return False
            return self.constants.get(test.id) if isinstance(test, ast.Name) else None
        return None

    def _bool_op(self, test: ast.BoolOp) -> bool | None:
        stops = isinstance(test.op, ast.Or)
        parts = [self.truth(value) for value in test.values]
        if stops in parts:
            return stops
        return None if None in parts else not stops

    def _version_is(self, argument: ast.expr) -> bool | None:
        if self.core_version is None or not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            return None
        try:
            return Version(Version(self.core_version).public) == Version(argument.value)
        except InvalidVersion:
            return None

    def _compare(self, test: ast.Compare) -> bool | None:
        if len(test.ops) != 1 or (compare := _COMPARE.get(type(test.ops[0]))) is None:
            return None
        if isinstance(test.ops[0], ast.Is | ast.IsNot):
            nothing = isinstance(test.left, ast.Name) and test.left.id in self.nothing
            if not nothing or not _is_none(test.comparators[0]):
                return None
            return isinstance(test.ops[0], ast.Is)
        left, right = self._value(test.left), self._value(test.comparators[0])
        if isinstance(left, Version) is not isinstance(right, Version):
            left, right = _as_version(left), _as_version(right)
        if left is _UNKNOWN or right is _UNKNOWN:
            return None
        try:
            return bool(compare(left, right))
        except TypeError:
            return None

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Tuple):
            parts = tuple(self._value(part) for part in node.elts)
            return _UNKNOWN if _UNKNOWN in parts else parts
        text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if text == "vllm.__version__" and self.core_version is not None:
            return Version(Version(self.core_version).public)
        if text == "sys.version_info":
            return tuple(sys.version_info[:2])
        if isinstance(node, ast.Call) and len(node.args) == 1 and last_name(node.func) in ("Version", "parse"):
            return _as_version(self._value(node.args[0]))
        return _UNKNOWN


def _as_version(value: Any) -> Any:
    if isinstance(value, Version):
        return value
    try:
        return Version(value) if isinstance(value, str) else _UNKNOWN
    except InvalidVersion:
        return _UNKNOWN


def is_type_checking(test: ast.expr) -> bool:
    """Whether a test is `TYPE_CHECKING` or `typing.TYPE_CHECKING`."""
    return last_name(test) == "TYPE_CHECKING"


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a block always ends in return, raise, continue or break."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.If):
        return leaves(last.body) and leaves(last.orelse)
    if isinstance(last, ast.With | ast.AsyncWith):
        return leaves(last.body)
    return isinstance(last, _LEAVES)


class _Pruner(ast.NodeTransformer):
    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        return self._function(node)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Any:
        """Names that a function sets once, to something the version decides, are constants of its body."""
        outer = dict(self.conditions.constants)
        bound = Counter(
            part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        )
        nothing = set(self.conditions.nothing)
        for name in (*bound, *(part.arg for part in walk(node.args) if isinstance(part, ast.arg))):
            self.conditions.constants.pop(name, None)
            self.conditions.nothing.discard(name)
        for part in walk(node):
            if isinstance(part, ast.Assign) and len(part.targets) == 1 and isinstance(part.targets[0], ast.Name):
                self.conditions.note(part, once=bound[part.targets[0].id] == 1)
        try:
            return self.generic_visit(node)
        finally:
            self.conditions.constants, self.conditions.nothing = outer, nothing

    def visit_If(self, node: ast.If) -> Any:
        if is_type_checking(node.test):
            return node  # its names are needed to read annotations
        truth = self.conditions.truth(node.test)
        if truth is None:
            return self.generic_visit(node)
        kept = ast.Module(body=node.body if truth else node.orelse, type_ignores=[])
        return self.generic_visit(kept).body or [ast.copy_location(ast.Pass(), node)]

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        truth = self.conditions.truth(node.test)
        if truth is None:
            return self.generic_visit(node)
        return self.visit(node.body if truth else node.orelse)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        stops = isinstance(node.op, ast.Or)
        for number, value in enumerate(node.values[:-1]):
            if self.conditions.truth(value) is stops:  # what follows is never evaluated
                node.values = node.values[: number + 1]
                return self.visit(node.values[0]) if number == 0 else self.generic_visit(node)
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and len(block) > 1:
                for number, statement in enumerate(block[:-1]):
                    if isinstance(statement, ast.stmt) and leaves([statement]):
                        del block[number + 1 :]
                        break
        return node


def _decided(body: list[ast.stmt], conditions: Conditions) -> list[ast.stmt]:
    """A module's statements with the branches that the version takes in place of the condition."""
    found: list[ast.stmt] = []
    for statement in body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            conditions.note(statement, once=True)
        truth = conditions.truth(statement.test) if isinstance(statement, ast.If) else None
        if not isinstance(statement, ast.If) or truth is None or is_type_checking(statement.test):
            found.append(statement)
        else:
            found += _decided(statement.body if truth else statement.orelse, conditions)
    return found


def _binds(node: ast.AST) -> list[str]:
    """The names that one statement of a module (or one alias of an import) binds."""
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return [part.id for part in walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def prune(tree: ast.Module, conditions: Conditions) -> ast.Module:
    """The tree with only what can run under the conditions; module constants that a version decides count too."""
    tree.body = _decided(tree.body, conditions)
    bound = Counter(
        name
        for statement in tree.body
        for part in (
            [statement, *statement.names] if isinstance(statement, ast.Import | ast.ImportFrom) else [statement]
        )
        for name in _binds(part)
    )
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            conditions.note(statement, once=True)
            target, value = statement.targets[0], statement.value
            if isinstance(target, ast.Name) and bound[target.id] == 1 and _is_none(value):
                conditions.nothing.add(target.id)
    pruned: ast.Module = _Pruner(conditions).visit(tree)
    return pruned
