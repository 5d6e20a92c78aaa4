"""The one table of tiny models: what each is, where it runs, and the reason where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ascend_sim.models import deepseek, granite, llama, qwen
from ascend_sim.models.errors import RefusedModelError, UnknownModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ascend_sim.models.recipe import Recipe

Place = Literal["plain", "simulator"]
"""Where a model runs: the plain vLLM CPU engine, or the simulated Ascend runner."""


@dataclass(frozen=True)
class Architecture:
    """A tiny model.

    `refused` maps a place to the reason why the model does not run there; a place not named was run and compared.
    `draft_for` names the target of a draft, which is never served alone. `deviation` says where Ascend code computes
    another function than vLLM; the plain engine computes that same function with `plain_overrides` of `config.json`.
    """

    name: str
    description: str
    recipe: Callable[[], Recipe]
    refused: tuple[tuple[Place, str], ...] = ()
    draft_for: str | None = None
    deviation: str | None = None
    plain_overrides: tuple[tuple[str, Any], ...] = ()

    def runs(self, place: Place) -> bool:
        """Return whether the model runs there."""
        return self.draft_for is None and place not in dict(self.refused)

    def require(self, place: Place) -> None:
        """Raise `RefusedModelError` with the reason unless the model runs there."""
        if self.draft_for is not None:
            raise RefusedModelError(
                f"model {self.name!r} is a draft for {self.draft_for!r} and is not served alone: serve "
                f"{self.draft_for!r} with it in the speculative configuration"
            )
        if reason := dict(self.refused).get(place):
            others = ", ".join(repr(name) for name, other in ARCHITECTURES.items() if other.runs(place))
            raise RefusedModelError(f"model {self.name!r} does not run in the {place} engine: {reason}. Use {others}.")


# What vllm-ascend 0.30.0rc2 calls on these paths (ops/fused_moe, attention/mla_v1.py) and the simulator does not have.
_MOE = (
    "its expert layers (AscendMoERunner, AscendRoutedExperts) need the MoE communication context of the NPU "
    "platform and operators without a reference: _C_ascend::moe_gating_top_k, npu_moe_init_routing_v2, "
    "npu_grouped_matmul, npu_moe_token_unpermute"
)
_MLA = (
    "its attention layer (AscendMultiHeadLatentAttention) computes prefill in bfloat16, so that float32 tokens cannot "
    "be compared, and needs operators without a reference: npu_kv_rmsnorm_rope_cache, npu_interleave_rope, "
    "npu_fused_infer_attention_score_v2, npu_transpose_batchmatmul, npu_gather_pa_kv_cache, npu_attention_update, "
    "npu_format_cast"
)

ARCHITECTURES: dict[str, Architecture] = {
    entry.name: entry
    for entry in (
        Architecture("dense", "Qwen2: grouped-query attention, 2 layers", qwen.dense),
        Architecture(
            "sliding",
            "Llama: one sliding-window and one full attention layer",
            llama.sliding,
            # vllm_ascend/attention/attention_v1.py passes pre_tokens=sliding_window, and the operator's band keeps
            # pre_tokens keys before the query's own; vLLM's window counts the query's own.
            deviation="vllm-ascend's sliding window W sees W + 1 keys, vLLM's sees W",
            plain_overrides=(("sliding_window", llama.SLIDING_WINDOW + 1),),
        ),
        Architecture("moe", "Qwen3-MoE: four experts, two a token", qwen.moe, (("simulator", _MOE),)),
        Architecture("mla", "DeepSeek-V2: multi-head latent attention", deepseek.mla, (("simulator", _MLA),)),
        Architecture("hybrid", "Granite-4: one Mamba-2 and one attention layer", granite.hybrid),
        Architecture("mimo", "MiMo: the dense model with one multi-token-prediction layer", qwen.mimo),
        Architecture("eagle", "EAGLE draft: one Llama layer after the target's hidden state", llama.eagle, (), "dense"),
    )
}


def find(name: str) -> Architecture:
    """Return the entry of that name; raises `UnknownModelError` that lists the names."""
    try:
        return ARCHITECTURES[name]
    except KeyError:
        names = ", ".join(repr(known) for known in ARCHITECTURES)
        raise UnknownModelError(f"no tiny model {name!r}: known are {names}; or give a model directory") from None
