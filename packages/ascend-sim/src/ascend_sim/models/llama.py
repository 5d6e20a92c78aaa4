"""Recipes of the Llama family: sliding-window layers mixed with full ones, and the EAGLE draft of the dense model."""

from __future__ import annotations

from ascend_sim.models.parts import HIDDEN, LAYERS, attention, base_config, embeddings, mlp, norms
from ascend_sim.models.recipe import Recipe, Tensor

SLIDING_WINDOW = 32
"""Tokens that a sliding layer sees, the query's own among them: short, so that every test prompt passes it."""


def sliding() -> Recipe:
    """Return Llama with one sliding-window layer and one full layer: two KV cache groups."""
    tensors = embeddings()
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        tensors |= attention(prefix + "self_attn.", bias=False) | mlp(prefix + "mlp.")
        tensors |= norms(prefix, "input_layernorm", "post_attention_layernorm")
    layer_types = ["sliding_attention" if layer % 2 == 0 else "full_attention" for layer in range(LAYERS)]
    config = base_config(
        "LlamaForCausalLM", "llama", sliding_window=SLIDING_WINDOW, layer_types=layer_types,
        attention_bias=False, mlp_bias=False,
    )  # fmt: skip
    return Recipe(config, tensors)


def eagle() -> Recipe:
    """Return an EAGLE draft for `dense`: one Llama layer that lets the target's hidden state through."""
    prefix = "layers.0."
    tensors = attention(prefix + "self_attn.", bias=False, out_std=0.01) | mlp(prefix + "mlp.", out_std=0.01)
    tensors |= norms(prefix, "post_attention_layernorm")
    tensors["fc.weight"] = Tensor((HIDDEN, 2 * HIDDEN), "identity_last")
    config = base_config("LlamaForCausalLM", "llama", num_hidden_layers=1, attention_bias=False, mlp_bias=False)
    return Recipe(config, tensors)
