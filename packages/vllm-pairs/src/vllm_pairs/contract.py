"""What a hook relies on in its target: the signature's text and a hash of the normalised syntax tree.

A signature is no contract: one name has kept its signature over releases while its body changed. The hash covers what
a function does and nothing of how it is written down. Left out: comments, layout, positions, docstrings, and type
annotations (they change often and change no behaviour). Kept: names, defaults, decorators, every statement. The form
is written here, field by field, and not with ast.dump, whose output differs between Python versions.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any

from vllm_pairs.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable

# Positions are attributes and never fields; these fields are how it is written, not what it does.
_SKIPPED = frozenset({"type_comment", "type_params", "kind", "ctx", "annotation", "returns", "simple"})
_WITH_DOCSTRING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def signature_text(function: Callable[..., Any]) -> str:
    """The parameters of a function with defaults, without annotations: "(self, a, *, b=None)"."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ContractError(f"{function!r} has no signature: {error}") from error
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)  # a default that is an object shows its address, new in every process


def ast_sha256(function: Callable[..., Any]) -> str:
    """The hash (hex) of a function's normalised syntax tree; ContractError where it has no Python source."""
    return node_sha256(_definition(function))


def node_sha256(definition: ast.AST) -> str:
    """The hash of a definition that was read and not imported: the same as `ast_sha256` of the function it makes."""
    return hashlib.sha256(_normal(definition).encode()).hexdigest()


def runtime_wrapper(function: Callable[..., Any]) -> str | None:
    """Who wrapped a function after it was defined, or None.

    A decorator in the source is part of the hash. A `__wrapped__` without one was put there at run time, and then the
    source says nothing about what a call does.
    """
    if getattr(function, "__wrapped__", None) is None or _definition(function).decorator_list:
        return None
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else type(function).__module__


def _definition(function: Callable[..., Any]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError) as error:
        raise ContractError(f"{function!r} has no Python source to compare: {error}") from error
    node = tree.body[0] if tree.body else None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise ContractError(f"{function!r} is not defined by a def statement; only such a function has a contract")
    return node


def _normal(node: ast.AST) -> str:
    """One node as text; empty fields are left out, so that a field a later Python adds changes nothing."""
    if isinstance(node, ast.AnnAssign):
        if node.value is None:
            return ""  # a bare annotation does nothing inside a function
        node = ast.Assign(targets=[node.target], value=node.value)
    parts = []
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED or value is None or value == []:
            continue
        if isinstance(value, list):
            body = (
                value[1:]
                if field == "body" and isinstance(node, _WITH_DOCSTRING) and _is_docstring(value[0])
                else value
            )
            # None inside a list has a meaning (a dict's ** entry, a keyword without default), so it stays.
            shown = [_normal(item) if isinstance(item, ast.AST) else repr(item) for item in body]
            parts.append(f"{field}=[{','.join(text for text in shown if text)}]")
        elif isinstance(value, ast.AST):
            parts.append(f"{field}={_normal(value)}")
        else:
            # The type is part of a constant: 1, 1.0 and True are equal and are not the same.
            parts.append(f"{field}={type(value).__name__}:{value!r}")
    return f"{type(node).__name__}({','.join(parts)})"


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
