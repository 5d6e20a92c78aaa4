"""Recipe of the Granite-4 family: one Mamba-2 layer and one attention layer, each with a dense MLP."""

from __future__ import annotations

from ascend_sim.models.parts import (
    HEAD_SIZE,
    HIDDEN,
    INTERMEDIATE,
    LAYERS,
    attention,
    base_config,
    embeddings,
    norms,
)
from ascend_sim.models.recipe import Recipe, Tensor

STATE = 16
MAMBA_HEADS = 8
MAMBA_HEAD_SIZE = 64
CONVOLUTION = 4
INNER = MAMBA_HEADS * MAMBA_HEAD_SIZE


def _mamba(prefix: str) -> dict[str, Tensor]:
    """Return a Mamba-2 mixer with one group; A in -[1, 4] and a small step, so that the state lives."""
    channels = INNER + 2 * STATE
    return {
        prefix + "in_proj.weight": Tensor((INNER + channels + MAMBA_HEADS, HIDDEN)),
        prefix + "conv1d.weight": Tensor((channels, 1, CONVOLUTION), std=0.5),
        prefix + "conv1d.bias": Tensor((channels,)),
        prefix + "A_log": Tensor((MAMBA_HEADS,), "uniform", std=1.4),
        prefix + "D": Tensor((MAMBA_HEADS,), "ones"),
        prefix + "dt_bias": Tensor((MAMBA_HEADS,), "uniform", low=-4.0, std=-1.0),
        prefix + "norm.weight": Tensor((INNER,), "ones"),
        prefix + "out_proj.weight": Tensor((HIDDEN, INNER)),
    }


def hybrid() -> Recipe:
    """Return Granite-4 hybrid without experts."""
    tensors = embeddings()
    layer_types = ["mamba" if layer % 2 == 0 else "attention" for layer in range(LAYERS)]
    for layer, kind in enumerate(layer_types):
        prefix = f"model.layers.{layer}."
        tensors |= _mamba(prefix + "mamba.") if kind == "mamba" else attention(prefix + "self_attn.", bias=False)
        tensors[prefix + "shared_mlp.input_linear.weight"] = Tensor((2 * INTERMEDIATE, HIDDEN))
        tensors[prefix + "shared_mlp.output_linear.weight"] = Tensor((HIDDEN, INTERMEDIATE))
        tensors |= norms(prefix, "input_layernorm", "post_attention_layernorm")
    config = base_config(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", layer_types=layer_types, num_local_experts=0,
        num_experts_per_tok=0, shared_intermediate_size=INTERMEDIATE, mamba_n_heads=MAMBA_HEADS,
        mamba_d_head=MAMBA_HEAD_SIZE, mamba_d_state=STATE, mamba_d_conv=CONVOLUTION, mamba_n_groups=1,
        mamba_expand=INNER // HIDDEN, mamba_conv_bias=True, mamba_proj_bias=False, mamba_chunk_size=256,
        position_embedding_type="rope", attention_bias=False, attention_multiplier=HEAD_SIZE**-0.5,
        embedding_multiplier=1.0, residual_multiplier=1.0, logits_scaling=1.0,
    )  # fmt: skip
    return Recipe(config, tensors)
