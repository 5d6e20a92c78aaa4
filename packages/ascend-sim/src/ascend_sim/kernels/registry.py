"""Install and remove the fast kernels of this process, and say what is in place and why."""

from __future__ import annotations

import importlib
import logging
import os
from dataclasses import dataclass, field
from typing import Any

from ascend_sim.kernels import contract
from ascend_sim.kernels.spec import ENVIRONMENT, parse
from ascend_sim.kernels.swap import FastKernel, replace_everywhere
from ascend_sim.kernels.table import KERNELS, Kernel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KernelStatus:
    """One kernel in one module: which implementation runs, why, and what has been called.

    `fast` False means Triton's interpreter; `reason` then says why. `calls` counts launches of an installed fast
    kernel, `declined` how many of them the interpreter ran, by reason. `places` are all module attributes that hold it.
    """

    name: str
    target: str
    fast: bool
    reason: str
    places: tuple[str, ...] = ()
    calls: int = 0
    declined: dict[str, int] = field(default_factory=dict)


_installed: dict[str, FastKernel] = {}  # by target
_statuses: dict[str, KernelStatus] = {}


def install(spec: str | None = None) -> list[KernelStatus]:
    """Put the fast kernels in place, after vLLM's (and vllm-ascend's) worker modules are imported; a second call
    replaces the first.

    `spec` as in `parse`; ``None`` takes ``ASCEND_SIM_KERNELS``, else all fast. Raises `KernelSpecError` with nothing
    changed. Modules that this vLLM does not have are left out; a kernel whose source is not one the fast function was
    tested against stays in the interpreter and its status says so.
    """
    wanted = parse(os.environ.get(ENVIRONMENT, "") if spec is None else spec, [kernel.name for kernel in KERNELS])
    remove()
    for kernel in KERNELS:
        for target in kernel.targets:
            found = _find(target)
            if isinstance(found, str):
                _statuses[target] = KernelStatus(kernel.name, target, fast=False, reason=found)
            else:
                _statuses[target] = _install_one(kernel, target, found, wanted[kernel.name])
    kept = [f"{s.target} ({s.reason})" for s in _statuses.values() if s.reason.startswith("source")]
    if kept:
        log.warning("kernels left to Triton's interpreter: %s", "; ".join(kept))
    return status()


def remove() -> None:
    """Put every Triton kernel back where a fast one stands. Idempotent."""
    for fast in _installed.values():
        replace_everywhere(fast, fast.original)
    _installed.clear()
    _statuses.clear()


def status() -> list[KernelStatus]:
    """What `install` did, with the calls counted since; empty before it. Targets that this vLLM does not have are
    included.
    """
    return [_with_counts(entry) for entry in _statuses.values()]


def _with_counts(entry: KernelStatus) -> KernelStatus:
    fast = _installed.get(entry.target)
    if fast is None:
        return entry
    return KernelStatus(entry.name, entry.target, True, entry.reason, entry.places, fast.calls, dict(fast.declined))


def _install_one(kernel: Kernel, target: str, original: Any, wanted: bool) -> KernelStatus:
    if not wanted:
        return KernelStatus(kernel.name, target, fast=False, reason=f"{ENVIRONMENT} asks for the interpreter")
    try:
        digest = contract.source_digest(original)
    except OSError as error:
        return KernelStatus(kernel.name, target, fast=False, reason=f"source not readable: {error}")
    function = kernel.function_for(digest)
    if function is None:
        reason = f"source {digest} is not one the fast kernel was tested against"
        return KernelStatus(kernel.name, target, fast=False, reason=reason)
    fast = FastKernel(kernel.name, original, contract.parameters(original), function)
    _installed[target] = fast
    places = tuple(replace_everywhere(original, fast))
    return KernelStatus(kernel.name, target, fast=True, reason="installed", places=places)


def _find(target: str) -> Any:
    """The Triton kernel at ``module:attribute``, or a sentence that says why there is none."""
    path, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        return f"no such module here ({error})"
    found = getattr(module, attribute, None)
    if found is None:
        return "no such kernel in this version"
    if not contract.is_triton_kernel(found):
        return f"not a Triton kernel but {type(found).__name__}"
    return found
