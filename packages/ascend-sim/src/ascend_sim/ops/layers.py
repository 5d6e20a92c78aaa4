"""Normalisation, activation and sampling operators."""

from __future__ import annotations

import torch

from ascend_sim.ops import operator, require


@operator
def npu_rms_norm(x: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm over the last dimension in float32; returns (normed * gamma, reciprocal RMS)."""
    require(x.shape[-1] == gamma.shape[-1], "npu_rms_norm", f"x {tuple(x.shape)} and gamma {tuple(gamma.shape)} differ")
    wide = x.float()
    reciprocal = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * reciprocal).to(x.dtype) * gamma, reciprocal


@operator
def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """RMSNorm of ``x1 + x2``; returns (normed, reciprocal RMS, sum)."""
    require(x1.shape == x2.shape, "npu_add_rms_norm", f"shapes {tuple(x1.shape)} and {tuple(x2.shape)} differ")
    total = x1 + x2
    normed, reciprocal = npu_rms_norm(total, gamma, epsilon)
    return normed, reciprocal, total


@operator
def npu_swiglu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """SiLU of the first half times the second half along `dim`."""
    require(x.shape[dim] % 2 == 0, "npu_swiglu", f"dimension {dim} of {tuple(x.shape)} is odd")
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


@operator
def npu_top_k_top_p(logits: torch.Tensor, p: torch.Tensor | None, k: torch.Tensor | None) -> torch.Tensor:
    """Mask `logits` [requests, vocabulary] by top-k then top-p, as vLLM's own torch implementation does."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    return apply_top_k_top_p_pytorch(logits, k, p)
