"""What a fast kernel relies on: the exact source of the Triton kernel it stands for.

Equal parameter names do not make equal kernels (vLLM 0.26 and 0.27 differ in bodies under one signature), so the
contract is a digest of the normalised source of the kernel and of every helper kernel of vLLM it calls, directly or
not.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGES = ("vllm.", "vllm_ascend.")


def is_triton_kernel(candidate: Any) -> bool:
    """True for what ``@triton.jit`` returns (a compiled or an interpreted kernel)."""
    return type(candidate).__module__.startswith("triton.runtime") and inspect.isfunction(
        getattr(candidate, "fn", None)
    )


def parameters(kernel: Any) -> tuple[str, ...]:
    """Parameter names of a Triton kernel, in order."""
    return tuple(inspect.signature(kernel.fn).parameters)


def source_digest(kernel: Any) -> str:
    """First 12 hex digits of the SHA-256 over the normalised source of the kernel and its helpers; comments and layout
    do not count.

    Raises `OSError` where Python cannot find the source.
    """
    parts = sorted(f"{name}\n{_normalised(function)}" for name, function in _with_helpers(kernel))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _with_helpers(kernel: Any) -> Iterator[tuple[str, Any]]:
    """The kernel's function and those of the helpers it reaches by name, once each, as (name, function)."""
    seen: set[int] = set()
    waiting = [kernel]
    while waiting:
        function = waiting.pop().fn
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function.__name__, function
        reached = (function.__globals__.get(name) for name in function.__code__.co_names)
        waiting += [other for other in reached if is_triton_kernel(other) and other.fn.__module__.startswith(_PACKAGES)]


def _normalised(function: Any) -> str:
    """Source without comments, layout, decorators, docstring and annotations."""
    definition = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    definition.returns = None
    for argument in (*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs):
        argument.annotation = None
    if ast.get_docstring(definition) is not None:
        definition.body = definition.body[1:] or [ast.Pass()]
    return ast.unparse(definition)
