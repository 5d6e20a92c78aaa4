"""Greedy generation in this process: what ``ascend-sim run`` shows, and a small seam for tests and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_sim.activation import activate

if TYPE_CHECKING:
    from pathlib import Path

ENGINE: dict[str, Any] = {
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "kv_cache_memory_bytes": 64 << 20,
    "max_num_seqs": 8,
    "seed": 0,
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
