"""Recipes of the Qwen2 family: dense GQA, sliding window, and MiMo (Qwen2 with one MTP layer), and the EAGLE draft.

Sizes: head size 64 (the CPU attention needs at least 32); two KV heads, one for each of two tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any

from ascend_sim.models.recipe import Recipe, Tensor
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


def _qwen2_tensors() -> dict[str, Tensor]:
    out = embeddings()
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        out |= attention(prefix + "self_attn.") | mlp(prefix + "mlp.")
        out |= norms(prefix, "input_layernorm", "post_attention_layernorm")
    return out


def dense() -> Recipe:
    """Return Qwen2 with grouped-query attention."""
    return Recipe(base_config("Qwen2ForCausalLM", "qwen2"), _qwen2_tensors())


def mimo() -> Recipe:
    """Return MiMo: the dense model with one multi-token-prediction layer, whose output stays near its input."""
    prefix = "model.mtp_layers.0."
    tensors = _qwen2_tensors() | attention(prefix + "self_attn.", out_std=0.01) | mlp(prefix + "mlp.", out_std=0.01)
    tensors |= norms(
        prefix, "input_layernorm", "post_attention_layernorm", "token_layernorm", "hidden_layernorm", "final_layernorm"
    )
    tensors[prefix + "input_proj.weight"] = Tensor((HIDDEN, 2 * HIDDEN), "identity_first")
    return Recipe(base_config("MiMoForCausalLM", "mimo", num_nextn_predict_layers=1), tensors)


def eagle() -> Recipe:
    """Return an EAGLE draft for `dense`: one Llama layer that lets the target's hidden state through."""
    prefix = "layers.0."
    tensors = attention(prefix + "self_attn.", bias=False, out_std=0.01) | mlp(prefix + "mlp.", out_std=0.01)
    tensors |= norms(prefix, "post_attention_layernorm")
    tensors["fc.weight"] = Tensor((HIDDEN, 2 * HIDDEN), "identity_last")
    config = base_config("LlamaForCausalLM", "llama", num_hidden_layers=1, attention_bias=False, mlp_bias=False)
    return Recipe(config, tensors)
