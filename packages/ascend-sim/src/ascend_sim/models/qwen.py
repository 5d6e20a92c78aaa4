"""Recipes of the Qwen family: dense grouped-query attention, MiMo (dense with one MTP layer), mixture of experts."""

from __future__ import annotations

from ascend_sim.models.parts import HEAD_SIZE, HIDDEN, LAYERS, attention, base_config, embeddings, mlp, norms
from ascend_sim.models.recipe import Recipe, Tensor

EXPERTS = 4
EXPERTS_PER_TOKEN = 2
EXPERT_INTERMEDIATE = 64


def _qwen2_tensors(layers: int = LAYERS) -> dict[str, Tensor]:
    out = embeddings()
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        out |= attention(prefix + "self_attn.") | mlp(prefix + "mlp.")
        out |= norms(prefix, "input_layernorm", "post_attention_layernorm")
    return out


def dense(layers: int = LAYERS) -> Recipe:
    """Return Qwen2 with grouped-query attention."""
    return Recipe(base_config("Qwen2ForCausalLM", "qwen2", num_hidden_layers=layers), _qwen2_tensors(layers))


def mimo() -> Recipe:
    """Return MiMo: the dense model with one multi-token-prediction layer, whose output stays near its input."""
    prefix = "model.mtp_layers.0."
    tensors = _qwen2_tensors() | attention(prefix + "self_attn.", out_std=0.01) | mlp(prefix + "mlp.", out_std=0.01)
    tensors |= norms(
        prefix, "input_layernorm", "post_attention_layernorm", "token_layernorm", "hidden_layernorm", "final_layernorm"
    )
    tensors[prefix + "input_proj.weight"] = Tensor((HIDDEN, 2 * HIDDEN), "identity_first")
    # The configuration class is Qwen2's: the real one, `mimo`, is remote code, which a checkpoint here must not need.
    return Recipe(base_config("MiMoForCausalLM", "qwen2", num_nextn_predict_layers=1), tensors)


def moe() -> Recipe:
    """Return Qwen3-MoE: four experts a layer, two of them for a token."""
    tensors = embeddings()
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= attention(prefix + "self_attn.", bias=False)
        tensors |= {f"{prefix}self_attn.{letter}_norm.weight": Tensor((HEAD_SIZE,), "ones") for letter in "qk"}
        tensors |= norms(prefix, "input_layernorm", "post_attention_layernorm")
        tensors[prefix + "mlp.gate.weight"] = Tensor((EXPERTS, HIDDEN))
        for expert in range(EXPERTS):
            tensors |= mlp(f"{prefix}mlp.experts.{expert}.", EXPERT_INTERMEDIATE)
    config = base_config(
        "Qwen3MoeForCausalLM", "qwen3_moe", num_experts=EXPERTS, num_experts_per_tok=EXPERTS_PER_TOKEN,
        moe_intermediate_size=EXPERT_INTERMEDIATE, decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[],
        attention_bias=False, use_sliding_window=False, sliding_window=None, router_aux_loss_coef=0.0,
    )  # fmt: skip
    return Recipe(config, tensors)
