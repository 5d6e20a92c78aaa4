"""Streams, events, copies and devices of the simulated NPU.

`install(torch)` comes before vLLM is imported, `install_late()` once `vllm.v1.worker.cpu.shm` has been. Nothing is
patched until one of them is called.
"""

from __future__ import annotations

from typing import Any

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
    from .npu_namespace import build_namespace

    install_copies(torch)
    install_devices(torch)
    torch.npu = build_namespace()
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


def install_runner_checks(runner_class: Any) -> None:
    """Put the lazy mode's check of host lengths on vllm-ascend's runner class; without that mode nothing happens."""
    from .late import check_runner_lengths

    check_runner_lengths(runner_class)


__all__ = ["ACCELERATOR", "install", "install_late", "install_runner_checks"]
