"""The module `torch.npu` that vllm-ascend expects: streams and events, and the device's answers of a CPU process.

What is not stood in for raises by name: an attribute that does not exist here is an AttributeError, a graph or an
allocator that exists on an NPU only is refused when it is used.
"""

from __future__ import annotations

import types
from typing import Any

from ascend_sim.standins.absent import NotSimulatedError

from . import streams
from .patches import put

NAME = "Ascend910B1"  # the device the simulator's SOC version names; a simulated one
TOTAL_BYTES = 64 << 30
FREE_BYTES = 48 << 30

_GRAPH_REASON = "ACL graphs are not simulated: run with enforce_eager=True (--enforce-eager)"
_ALLOCATOR_REASON = "the NPU's memory allocator is not simulated: run without sleep mode and without memory pools"


def _refusal(name: str, reason: str) -> Any:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotSimulatedError(f"torch.npu.{name}: {reason}")

    refuse.__name__ = name
    return refuse


def _refusing_class(name: str, reason: str) -> type:
    """A class that can be named in annotations and subclassed, but not instantiated."""
    return type(name, (), {"__new__": _refusal(name, reason), "__module__": "torch.npu", "__doc__": reason})


class NpuModule(types.ModuleType):
    """torch.npu; a name that is not stood in for is an AttributeError that says so."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self.__name__} has no attribute {name!r} in the simulator: add a stand-in to "
            "ascend_sim.runtime.npu_namespace or run this path on an NPU"
        )


class _Device:
    """`with torch.npu.device(i)`: there is one device."""

    def __init__(self, index: Any = None) -> None:
        self.index = index

    def __enter__(self) -> None: ...

    def __exit__(self, *exc: object) -> None: ...


def _nothing(*args: Any, **kwargs: Any) -> None:
    """A request that a CPU process has nothing to do for."""


def _zero(*args: Any, **kwargs: Any) -> int:
    return 0


def _memory_module() -> NpuModule:
    memory = NpuModule("torch.npu.memory")
    for name in ("NPUPluggableAllocator", "MemPool"):
        setattr(memory, name, _refusing_class(name, _ALLOCATOR_REASON))
    for name in ("use_mem_pool", "memory_snapshot", "change_current_allocator"):
        setattr(memory, name, _refusal(f"memory.{name}", _ALLOCATOR_REASON))
    return memory


def build_namespace() -> NpuModule:
    """A fresh module `torch.npu`."""
    npu = NpuModule("torch.npu")
    for name in ("Stream", "Event", "ExternalEvent", "stream", "current_stream", "default_stream", "set_stream"):
        setattr(npu, name, getattr(streams, name))
    npu.StreamContext = streams.stream  # type: ignore[attr-defined]
    npu.synchronize = streams.synchronize  # type: ignore[attr-defined]
    answers: dict[str, Any] = {
        # False keeps other libraries (transformers, accelerate) on their CPU paths; vllm-ascend's own paths do not ask.
        "is_available": lambda: False,
        "is_initialized": lambda: True,
        "device_count": _zero,
        "current_device": _zero,
        "device": _Device,
        "get_device_name": lambda device=None: NAME,
        "get_device_properties": lambda device=None: types.SimpleNamespace(
            name=NAME, total_memory=TOTAL_BYTES, cube_core_num=24, vector_core_num=48, multi_processor_count=24
        ),
        "mem_get_info": lambda device=None: (FREE_BYTES, TOTAL_BYTES),
        "memory_stats": lambda device=None: {},
        "is_current_stream_capturing": lambda: False,
        "config": types.SimpleNamespace(allow_internal_format=False),
        # What torch itself asks a device module for.
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": _nothing,
    }
    for name, answer in answers.items():
        setattr(npu, name, answer)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        setattr(npu, name, _zero)
    for name in (
        "set_device", "init", "empty_cache", "reset_peak_memory_stats", "set_compile_mode", "ipc_collect",
        "manual_seed", "manual_seed_all",
    ):  # fmt: skip
        setattr(npu, name, _nothing)
    for name in ("NPUGraph",):
        setattr(npu, name, _refusing_class(name, _GRAPH_REASON))
    for name in (
        "graph", "graph_pool_handle", "make_graphed_callables", "graph_task_group_begin", "graph_task_group_end",
        "graph_task_update_begin", "graph_task_update_end", "super_kernel_scope_begin", "super_kernel_scope_end",
    ):  # fmt: skip
        setattr(npu, name, _refusal(name, _GRAPH_REASON))
    npu.memory_snapshot = _refusal("memory_snapshot", _ALLOCATOR_REASON)  # type: ignore[attr-defined]
    npu.memory = _memory_module()  # type: ignore[attr-defined]
    return npu


def add_torch_names(torch: Any) -> None:
    """Names that torch_npu adds to torch itself and that vllm-ascend imports from there."""
    if not hasattr(torch.distributed, "is_hccl_available"):
        put(torch.distributed, "is_hccl_available", lambda: False)
    if not hasattr(torch.version, "cann"):
        put(torch.version, "cann", None)
