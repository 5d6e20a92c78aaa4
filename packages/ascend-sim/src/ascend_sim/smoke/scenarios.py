"""The scenarios of ``cpu-smoke``: what is asked of the engine, as data. No torch, no vLLM."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

# Engine arguments common to all scenarios. float32 and a fixed seed make greedy tokens comparable; 128 is Ascend's
# block size.
BASE_ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "kv_cache_memory_bytes": 64 << 20,
    "max_num_seqs": 8,
    "enable_prefix_caching": False,
    "async_scheduling": False,
    "disable_log_stats": False,
    "seed": 0,
}
# Token ids that prompts are drawn from: past the special tokens, inside the tiny models' vocabulary of 512.
FIRST_TOKEN, LAST_TOKEN = 10, 500
# What the reference leaves out: none of it may change a token.
NOT_OF_THE_REFERENCE = (
    "pipeline_parallel_size",
    "tensor_parallel_size",
    "distributed_executor_backend",
    "async_scheduling",
)


@dataclass(frozen=True)
class Scenario:
    """One scenario.

    `prompts` requests of `prompt_tokens` tokens, the first `shared_tokens` of them common to all; `new_tokens` greedy
    tokens each. `engine` overrides `BASE_ENGINE`. `warm_first` sends the first prompt alone before, so that the prefix
    cache holds it. `speculative` adds an EAGLE draft of that many tokens on the engine under test only: greedy
    speculation must not change a token. `processes` > 1 needs worker processes of its own and so a run of its own.
    `plugins` false keeps this kit's plugins out.
    """

    name: str
    title: str
    prompts: int
    prompt_tokens: int
    new_tokens: int
    prompt_seed: int
    shared_tokens: int = 0
    engine: dict[str, Any] = field(default_factory=dict)
    warm_first: bool = False
    speculative: int = 0
    acceptance: float = 0.7
    processes: int = 1
    must_preempt: bool = False
    must_hit_prefix: bool = False
    plugins: bool = True

    def prompt_token_ids(self) -> list[list[int]]:
        """The prompts, the same in every process: drawn from `prompt_seed` alone."""
        draw = random.Random(self.prompt_seed)
        shared = [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(self.shared_tokens)]
        own = self.prompt_tokens - self.shared_tokens
        return [shared + [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(own)] for _ in range(self.prompts)]

    def reference_question(self) -> str:
        """What this scenario asks of the reference, as text: equal where the reference tokens are the same."""
        engine = {name: value for name, value in self.engine.items() if name not in NOT_OF_THE_REFERENCE}
        return repr((self.prompt_token_ids(), self.new_tokens, self.warm_first, sorted(engine.items())))

    @property
    def tokens_expected(self) -> int:
        """Number of output tokens that are compared."""
        return self.prompts * self.new_tokens


SCENARIOS: tuple[Scenario, ...] = (
    # vllm-ascend as it is: its copies and waits are the figures that the plugins' are held against.
    Scenario(
        "batch-upstream",
        "batch, plugins off",
        prompts=8,
        prompt_tokens=30,
        new_tokens=32,
        prompt_seed=1,
        plugins=False,
    ),
    Scenario("batch", "batch", prompts=8, prompt_tokens=30, new_tokens=32, prompt_seed=1),
    Scenario(
        "chunked-prefill",
        "chunked prefill",
        prompts=6,
        prompt_tokens=200,
        new_tokens=16,
        prompt_seed=2,
        engine={"max_num_batched_tokens": 64},
    ),
    Scenario(
        "preemption",
        "preemption",
        prompts=8,
        prompt_tokens=100,
        new_tokens=60,
        prompt_seed=3,
        engine={"num_gpu_blocks_override": 9},
        must_preempt=True,
    ),
    Scenario(
        "prefix-cache",
        "prefix cache",
        prompts=8,
        prompt_tokens=300,
        new_tokens=16,
        prompt_seed=4,
        shared_tokens=256,
        engine={"enable_prefix_caching": True},
        warm_first=True,
        must_hit_prefix=True,
    ),
    Scenario("spec-sync", "spec sync", prompts=8, prompt_tokens=30, new_tokens=32, prompt_seed=1, speculative=3),
    Scenario(
        "spec-async",
        "spec async",
        prompts=8,
        prompt_tokens=30,
        new_tokens=32,
        prompt_seed=1,
        speculative=3,
        engine={"async_scheduling": True},
    ),
    Scenario(
        "pipeline-parallel",
        "pipeline parallel",
        prompts=8,
        prompt_tokens=30,
        new_tokens=32,
        prompt_seed=1,
        engine={"pipeline_parallel_size": 2, "distributed_executor_backend": "mp"},
        processes=2,
    ),
)
QUICK = ("batch-upstream", "batch", "preemption", "prefix-cache")


def by_name(names: list[str] | tuple[str, ...]) -> tuple[Scenario, ...]:
    """The named scenarios in their own order; raises `ValueError` naming an unknown one."""
    known = {scenario.name for scenario in SCENARIOS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown scenario {unknown[0]!r}: known are {', '.join(sorted(known))}")
    return tuple(scenario for scenario in SCENARIOS if scenario.name in names)
