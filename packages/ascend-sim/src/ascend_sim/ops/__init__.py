"""Reference operators: what a ``torch_npu`` operator computes, in plain torch, with the contract checks the real one
makes.

One function per operator, named as in ``torch_npu`` and registered with `operator`. Everything without a reference is
refused by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])
_operators: dict[str, Callable[..., Any]] = {}


class ContractError(ValueError):
    """An operator was called with arguments that the real operator refuses or reads out of bounds for."""


def operator(function: _Function) -> _Function:
    """Register `function` as the reference of the ``torch_npu`` operator of the same name."""
    _operators[function.__name__] = function
    return function


def require(holds: bool, operator_name: str, message: str) -> None:
    """Raise `ContractError` naming the operator unless the condition holds."""
    if not holds:
        raise ContractError(f"{operator_name}: {message}")


def operators() -> dict[str, Callable[..., Any]]:
    """All reference operators by name; imports every module of this package."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
    return dict(_operators)
