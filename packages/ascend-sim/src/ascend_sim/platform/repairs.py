"""What must be answered inside vLLM and vllm-ascend so that the real worker patches and the real runner work on a CPU.

Each repair says why it exists. They are put in once a process, before the worker is built.
"""

from __future__ import annotations

import importlib
from typing import Any

# Kernels of vllm-ascend that Triton's interpreter cannot run: vLLM's own, which they replace, are kept.
KEPT_KERNELS = {
    "gumbel_sample": (
        "vllm.v1.worker.gpu.sample.gumbel",
        "vllm.v1.worker.gpu.sample.sampler",
        "vllm.v1.worker.gpu.spec_decode.speculator",
        "vllm.v1.worker.gpu.spec_decode.eagle.speculator",
        "vllm.v1.worker.gpu.spec_decode.dspark.speculator",
    ),
    "rejection_sample": (
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils",
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    ),
    # Its blocks are no power of two, which the interpreter asks for.
    "compute_token_logprobs": ("vllm.v1.worker.gpu.sample.logprob",),
    "compute_topk_logprobs": (
        "vllm.v1.worker.gpu.sample.sampler",
        "vllm.v1.worker.gpu.sample.prompt_logprob",
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
    ),
}
_done = False


def before_worker() -> None:
    """All repairs, then vllm-ascend's real worker patches. Idempotent."""
    global _done
    if _done:
        return
    _done = True
    import torch

    from ascend_sim import runtime

    runtime.install_late()
    _answer_private_use_registrations()
    importlib.import_module("vllm_ascend.ops")  # first: breaks a circular import between device_op and moe_mlp
    _allow_float32_cache(torch)
    _apply_worker_patches()
    from ascend_sim import kernels

    kernels.install()


def _answer_private_use_registrations() -> None:
    """vllm-ascend registers its torch operators for PrivateUse1, the NPU's dispatch key; here tensors are the CPU's."""
    import vllm.utils.torch_utils as torch_utils

    register = torch_utils.direct_register_custom_op

    def register_for_cpu(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("dispatch_key") == "PrivateUse1":
            kwargs["dispatch_key"] = "CPU"
        return register(*args, **kwargs)

    torch_utils.direct_register_custom_op = register_for_cpu


def _allow_float32_cache(torch: Any) -> None:
    """The backend refuses a float32 KV cache; exact comparison with the CPU engine needs one. Only that check is
    answered.
    """
    import vllm_ascend.attention.attention_v1 as attention

    if not hasattr(attention, "kv_cache_dtype_str_to_dtype"):
        return
    resolve = attention.kv_cache_dtype_str_to_dtype

    def resolve_for_check(*args: Any) -> Any:
        dtype = resolve(*args)
        return torch.bfloat16 if dtype == torch.float32 else dtype

    attention.kv_cache_dtype_str_to_dtype = resolve_for_check


def _apply_worker_patches() -> None:
    from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton
    from vllm_ascend.utils import adapt_patch

    kept = [(module, name, getattr(module, name)) for module, name in _kept_kernels()]
    adapt_patch()
    for module, name, function in kept:
        setattr(module, name, function)
    init_device_properties_triton()


def _kept_kernels() -> list[tuple[Any, str]]:
    found = []
    for name, modules in KEPT_KERNELS.items():
        for path in modules:
            try:
                module = importlib.import_module(path)
            except ImportError:
                continue  # not in this version of vLLM
            if hasattr(module, name):
                found.append((module, name))
    return found
