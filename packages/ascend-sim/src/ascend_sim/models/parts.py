"""Sizes and pieces that the tiny models share.

Head size 64 (the CPU attention needs at least 32); two KV heads, one for each of two tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any

from ascend_sim.models.recipe import Tensor
from ascend_sim.models.tokenizer import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE

HIDDEN = 256
INTERMEDIATE = 128
HEADS = 4
KV_HEADS = 2
HEAD_SIZE = 64
LAYERS = 2
MAX_LEN = 2048


def base_config(architecture: str, model_type: str, **other: Any) -> dict[str, Any]:
    """Return the part of `config.json` that all our models share, with `other` on top."""
    return {
        "architectures": [architecture], "model_type": model_type, "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE, "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_LEN, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID, **other,
    }  # fmt: skip


def embeddings() -> dict[str, Tensor]:
    """Return the embedding (spread 1, so that the token decides), the last norm and the head."""
    return {
        "model.embed_tokens.weight": Tensor((VOCAB_SIZE, HIDDEN), std=1.0),
        "model.norm.weight": Tensor((HIDDEN,), "ones"),
        "lm_head.weight": Tensor((VOCAB_SIZE, HIDDEN)),
    }


def attention(prefix: str, *, bias: bool = True, out_std: float = 0.15) -> dict[str, Tensor]:
    """Return q, k, v and o projections under `prefix`."""
    out: dict[str, Tensor] = {}
    for letter, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        out[f"{prefix}{letter}_proj.weight"] = Tensor((heads * HEAD_SIZE, HIDDEN))
        if bias:
            out[f"{prefix}{letter}_proj.bias"] = Tensor((heads * HEAD_SIZE,))
    out[f"{prefix}o_proj.weight"] = Tensor((HIDDEN, HEADS * HEAD_SIZE), std=out_std)
    return out


def mlp(prefix: str, intermediate: int = INTERMEDIATE, *, out_std: float = 0.15) -> dict[str, Tensor]:
    """Return gate, up and down projections under `prefix`."""
    return {
        f"{prefix}gate_proj.weight": Tensor((intermediate, HIDDEN)),
        f"{prefix}up_proj.weight": Tensor((intermediate, HIDDEN)),
        f"{prefix}down_proj.weight": Tensor((HIDDEN, intermediate), std=out_std),
    }


def norms(prefix: str, *names: str) -> dict[str, Tensor]:
    """Return norms of ones under `prefix`."""
    return {f"{prefix}{name}.weight": Tensor((HIDDEN,), "ones") for name in names}
