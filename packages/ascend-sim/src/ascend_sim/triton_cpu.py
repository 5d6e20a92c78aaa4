"""Triton on a CPU: the interpreter, a driver that says it is active, and the language extensions of Triton-Ascend.

vLLM keeps Triton only where exactly one backend driver is active (source: ``vllm/triton_utils/importing.py``).
"""

import sys
import types
from typing import Any

import wrapt

# Reported by the driver; vllm-ascend sizes its launch grids by them. One Ascend 910B die has 24 cube and 48 vector
# cores.
NUM_AICORE, NUM_VECTORCORE = 24, 48
# Extensions that kernels of vllm-ascend name at import; a kernel that really reaches one is refused by name.
EXTENSIONS = ("insert_slice", "extract_slice", "get_element")


class _Driver:
    """The part of a Triton driver that vLLM and vllm-ascend ask before any launch."""

    class utils:  # noqa: N801 - Triton's own spelling
        @staticmethod
        def get_device_properties(_index: int) -> dict[str, int]:
            return {"num_aicore": NUM_AICORE, "num_vectorcore": NUM_VECTORCORE}

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0


class _Backend:
    driver = _Driver
    compiler = None


def install(*, ascend: bool) -> None:
    """Register the backend and, for the Ascend runner, the language extensions. Before ``vllm.triton_utils`` is
    imported.
    """
    from triton.backends import backends

    backends["cpu"] = _Backend
    _answer_log1p()
    if ascend:
        _install_extensions()


def _install_extensions() -> None:
    import triton.language as tl

    for name in EXTENSIONS:
        if not hasattr(tl, name):
            setattr(tl, name, _refused(name))
    try:
        import triton.language.extra as extra
    except ImportError:
        return
    if not hasattr(extra, "cann"):
        cann = types.ModuleType("triton.language.extra.cann")
        cann.__path__ = []
        libdevice = types.ModuleType("triton.language.extra.cann.libdevice")
        libdevice.__getattr__ = _libdevice_function  # type: ignore[method-assign]
        cann.libdevice = libdevice  # type: ignore[attr-defined]
        extra.cann = cann
        sys.modules[cann.__name__] = cann
        sys.modules[libdevice.__name__] = libdevice


def _libdevice_function(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _refused(f"extra.cann.libdevice.{name}")


def _refused(name: str) -> Any:
    from ascend_sim.activation import SimulatorError

    def extension(*_args: Any, **_kwargs: Any) -> Any:
        raise SimulatorError(f"Triton-Ascend extension triton.language.{name} has no CPU reference in ascend-sim")

    extension.__name__ = name.rsplit(".", 1)[-1]
    return extension


def _answer_log1p() -> None:
    """Give the interpreter the one libdevice function that sampling needs, in each module that names it."""
    for name in ("vllm.v1.worker.gpu.sample.gumbel", "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"):
        wrapt.register_post_import_hook(_put_log1p, name)


def _put_log1p(module: Any) -> None:
    if hasattr(module, "tldevice"):
        module.tldevice = types.SimpleNamespace(log1p=_log1p)


def _log1p(x: Any) -> Any:
    """log(1 + x) of an interpreted value; `tl.log(x + 1)` would turn the smallest draws into infinite noise."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.core.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)
