"""Streams, events, copies and devices of the simulated NPU.

`install(torch)` comes before vLLM is imported, `install_late()` once `vllm.v1.worker.cpu.shm` has been. Nothing is
patched until one of them is called.
"""

from __future__ import annotations

from typing import Any

from .patches import put, take_out
from .registry import ACCELERATOR

_installed = False
_installed_late = False


def install(torch: Any) -> None:
    """Put in devices, pinned memory, `torch.npu` and the counting methods; a second call does nothing."""
    global _installed
    if _installed:
        return
    from .copies import install_copies
    from .devices import install_devices
    from .host_results import install_host_results
    from .npu_namespace import add_torch_names, build_namespace

    install_copies(torch)
    install_devices(torch)
    install_host_results(torch)
    put(torch, "npu", build_namespace())
    add_torch_names(torch)
    _installed = True


def install_late() -> None:
    """Put in what vLLM's CPU worker module would overwrite; call it after that import, before the runner is made."""
    global _installed_late
    if _installed_late:
        return
    import torch

    from . import late

    install(torch)
    import vllm.v1.worker.cpu.shm  # noqa: F401 - it must have replaced the names before they are replaced again

    late.patch_torch_names(torch)
    late.patch_upload_helpers(torch)
    late.patch_output_copies()
    late.patch_readers()
    _installed_late = True


def uninstall() -> None:
    """Take everything out again; what was made meanwhile keeps what it has."""
    global _installed, _installed_late
    take_out()
    _installed = _installed_late = False


def prepare_runner_class(runner_class: Any) -> None:
    """Count the steps of `runner_class`, the runner the worker makes; with lazy copies also check its host lengths."""
    from .late import check_runner_lengths
    from .steps import count_steps

    count_steps(runner_class)
    check_runner_lengths(runner_class)


__all__ = ["ACCELERATOR", "install", "install_late", "prepare_runner_class", "uninstall"]
