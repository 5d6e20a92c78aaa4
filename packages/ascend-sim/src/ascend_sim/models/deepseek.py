"""Recipe of the DeepSeek-V2 family: multi-head latent attention, dense MLP.

The latent sizes are those of the real models: vLLM's CPU kernel and Ascend's operator are made for 512 + 64 only.
"""

from __future__ import annotations

from ascend_sim.models.parts import HEADS, HIDDEN, LAYERS, base_config, embeddings, mlp, norms
from ascend_sim.models.recipe import Recipe, Tensor

LATENT = 512
ROPE = 64
NOPE = 128
VALUE = 128


def mla() -> Recipe:
    """Return DeepSeek-V2 without experts."""
    tensors = embeddings()
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        tensors |= {
            attention + "q_proj.weight": Tensor((HEADS * (NOPE + ROPE), HIDDEN)),
            attention + "kv_a_proj_with_mqa.weight": Tensor((LATENT + ROPE, HIDDEN)),
            attention + "kv_a_layernorm.weight": Tensor((LATENT,), "ones"),
            attention + "kv_b_proj.weight": Tensor((HEADS * (NOPE + VALUE), LATENT), std=0.05),
            attention + "o_proj.weight": Tensor((HIDDEN, HEADS * VALUE)),
        }
        # Every layer is dense (`first_k_dense_replace`); the configuration class wants numbers of experts all the same.
        tensors |= mlp(prefix + "mlp.") | norms(prefix, "input_layernorm", "post_attention_layernorm")
    config = base_config(
        "DeepseekV2ForCausalLM", "deepseek_v2", num_key_value_heads=HEADS, kv_lora_rank=LATENT, q_lora_rank=None,
        qk_rope_head_dim=ROPE, qk_nope_head_dim=NOPE, v_head_dim=VALUE, n_routed_experts=4, n_shared_experts=1,
        first_k_dense_replace=LAYERS, moe_layer_freq=1, norm_topk_prob=False, routed_scaling_factor=1.0,
        attention_bias=False,
    )  # fmt: skip
    del config["head_dim"]
    return Recipe(config, tensors)
