"""Find what a hook's target names: the object that holds it and the function under everything we put there.

Invariant: a target is read from the `__dict__` of its holder, never through attribute access, so that its kind
(function, staticmethod, classmethod, property, inherited) is seen as it is.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.errors import Difference

Kind = Literal["function", "method", "staticmethod", "classmethod"]
_FORM = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class TargetProblem(Exception):  # noqa: N818 - it becomes a HookRefused, with the hook's own words
    """A target cannot be hooked: which difference, what was expected, what was found."""

    def __init__(self, difference: Difference, expected: str, found: str) -> None:
        super().__init__(found)
        self.difference, self.expected, self.found = difference, expected, found


@dataclass(frozen=True)
class Target:
    """A resolved target: `raw` is the holder's own entry (None when inherited), `function` the plain callable."""

    text: str
    holder: Any  # a class, or a module
    name: str
    kind: Kind
    raw: Any
    function: Callable[..., Any]

    @property
    def key(self) -> tuple[int, str]:
        """Two texts may name one place (a re-export); the holder's identity and the name are the place."""
        return id(self.holder), self.name


def check_form(text: str) -> None:
    """ValueError unless the text is "module:Class.method" or "module:function"."""
    if not isinstance(text, str) or not _FORM.fullmatch(text):
        raise ValueError(f"target must look like 'package.module:Class.method', got {text!r}")


def resolve(text: str) -> Target:
    """The place a target names; imports its module. TargetProblem where it is missing or of another kind."""
    module_name, _, path = text.partition(":")
    try:
        holder: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise TargetProblem("module", f"a module {module_name}", f"{type(error).__name__}: {error}") from error
    *outer, name = path.split(".")
    for step in outer:
        try:
            holder = inspect.getattr_static(holder, step)
        except AttributeError as error:
            raise TargetProblem("missing", f"a class {path.rpartition('.')[0]}", f"no {step!r} there") from error
    if not isinstance(holder, type | ModuleType):
        raise TargetProblem("kind", "a class or a module", f"{type(holder).__name__} {'.'.join(outer)!r}")
    raw = vars(holder).get(name)
    found = raw
    if found is None and isinstance(holder, type):
        found = next((vars(base)[name] for base in holder.__mro__[1:] if name in vars(base)), None)
    if found is None:
        raise TargetProblem("missing", f"a function {path}", f"no {name!r} there")
    kind, function = _kind(holder, found)
    return Target(text=text, holder=holder, name=name, kind=kind, raw=raw, function=function)


def _kind(holder: Any, found: Any) -> tuple[Kind, Callable[..., Any]]:
    """What sort of function an entry is, and the function inside."""
    if isinstance(found, staticmethod):
        return "staticmethod", found.__func__
    if isinstance(found, classmethod):
        return "classmethod", found.__func__
    # A wrapper (functools.wraps, wrapt) stands for a function; a class, a property or a bare object does not.
    if isinstance(found, FunctionType) or (callable(found) and hasattr(found, "__wrapped__")):
        return ("method" if isinstance(holder, type) else "function"), found
    raise TargetProblem("kind", "a function or a method", f"{type(found).__name__}")
