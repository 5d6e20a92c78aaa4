"""Greedy generation in this process: what ``ascend-sim run`` shows, and a small seam for tests and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_sim.activation import activate
from ascend_sim.smoke.scenarios import BASE_ENGINE

if TYPE_CHECKING:
    from pathlib import Path

# The smoke's engine, with what a person expects besides: text, and vLLM's own choice of caching and scheduling.
ENGINE: dict[str, Any] = {
    name: value
    for name, value in BASE_ENGINE.items()
    if name not in ("skip_tokenizer_init", "enable_prefix_caching", "async_scheduling", "disable_log_stats")
}


def generate(model: Path, prompts: list[str], max_tokens: int, mode: str = "ascend") -> dict[str, Any]:
    """Generate `max_tokens` tokens greedily for each prompt; returns outputs, the runner's name and the counters'
    averages.
    """
    activate(mode)
    from vllm import LLM, SamplingParams

    from ascend_sim import counters
    from ascend_sim.smoke.engine import description

    llm = LLM(model=str(model), **ENGINE)
    counters.reset()
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return {
        "mode": mode,
        **description(llm),
        "outputs": [
            {"prompt": prompt, "text": output.outputs[0].text, "token_ids": list(output.outputs[0].token_ids)}
            for prompt, output in zip(prompts, outputs, strict=True)
        ],
        "per_decode_step": dict(counters.per_decode_step()) if mode == "ascend" else {},
    }
