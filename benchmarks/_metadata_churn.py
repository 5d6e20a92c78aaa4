"""Churn in one real engine: Hypothesis draws admissions, aborts and steps; all lengths and tokens are checked.

``python _metadata_churn.py JOB.json``. The job: ``mode``, ``folder``, ``model``, ``hook``, ``engines`` (a list of
engine arguments) and ``examples``. The plain mode writes the reference tokens of every prompt in the pool; a churned
request must produce a prefix of its prompt's reference, and the whole of it unless it was aborted.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _metadata_engine import METRICS, Lengths, drop, hook_stats, try_unverified

POOL, LONGEST, NEW_TOKENS = 20, 280, 40
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "max_num_seqs": 8,
    "disable_log_stats": False,
    "seed": 0,
}


def pool() -> list[list[int]]:
    """Prompts of 2 to 280 tokens; half of them share their first block, so that prefixes are found in the cache."""
    draw = random.Random(5)
    shared = [draw.randrange(10, 500) for _ in range(160)]
    prompts = []
    for number in range(POOL):
        own = [draw.randrange(10, 500) for _ in range(draw.randrange(2, LONGEST - 160))]
        prompts.append(shared + own if number % 2 else own)
    return prompts


@dataclass
class Churn:
    """One engine under churn, over many plans."""

    engine: Any
    references: list[list[int]]
    lengths: Lengths
    numbers: Any = field(default_factory=itertools.count)
    tokens_equal: int = 0
    tokens_total: int = 0
    finished: int = 0
    aborted: int = 0

    def play(self, plan: list[tuple[str, int, int]]) -> None:
        """Perform a plan, then step until the engine is empty."""
        live: dict[str, tuple[int, int, list[int]]] = {}
        for action, a, b in plan:
            if action == "admit":
                self._admit(live, a, b)
            elif action == "abort" and live:
                name = sorted(live)[a % len(live)]
                self.engine.abort_request([name])
                self._judge(live.pop(name), whole=False)
                self.aborted += 1
            else:
                for _ in range(b % 6 + 1):
                    self._step(live)
        while self.engine.has_unfinished_requests():
            self._step(live)
        assert not live, f"requests were never finished: {sorted(live)}"

    def _admit(self, live: dict[str, Any], prompt: int, new_tokens: int) -> None:
        from vllm import SamplingParams

        name, count = f"r{next(self.numbers)}", new_tokens % NEW_TOKENS + 1
        sampling = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True, detokenize=False)
        ids = PROMPTS[prompt % POOL]
        self.engine.add_request(name, {"prompt_token_ids": ids}, sampling)
        live[name] = (prompt % POOL, count, [])

    def _step(self, live: dict[str, Any]) -> None:
        before = self.lengths.drift_rows
        for output in self.engine.step():
            name = output.request_id.split("-")[0]
            if name not in live:
                continue
            live[name][2][:] = list(output.outputs[0].token_ids)
            if output.finished:
                self._judge(live.pop(name), whole=True)
                self.finished += 1
        assert self.lengths.drift_rows == before, self.lengths.first

    def _judge(self, request: tuple[int, int, list[int]], whole: bool) -> None:
        prompt, count, tokens = request
        expected = self.references[prompt][: count if whole else len(tokens)]
        self.tokens_total += len(expected)
        self.tokens_equal += sum(a == b for a, b in zip(tokens, expected, strict=False))
        assert tokens == expected, f"prompt {prompt}: expected {expected}, got {tokens}"


PROMPTS = pool()


def churn(arguments: dict[str, Any], job: dict[str, Any], references: list[list[int]]) -> dict[str, Any]:
    """One engine: as many plans as the job says; what the engine and the checks counted."""
    from hypothesis import HealthCheck, given, seed, settings
    from hypothesis import strategies as st
    from vllm import LLM

    number = st.integers(0, 10_000)
    actions = st.tuples(st.sampled_from(["admit", "admit", "step", "step", "abort"]), number, number)
    hook = job["hook"]
    if hook is not None:
        os.environ["VLLM_MRV2_METADATA"] = json.dumps(hook)
    llm = LLM(model=job["model"], **ENGINE, **arguments)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    state = Churn(llm.llm_engine, references, Lengths())
    state.lengths.watch(runner.model_state)

    @seed(job.get("seed", 0))
    @settings(
        max_examples=job["examples"], deadline=None, database=None, suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )  # fmt: skip
    @given(st.lists(actions, min_size=10, max_size=60))
    def play(plan: list[tuple[str, int, int]]) -> None:
        state.play(plan)

    try:
        play()
        metrics = {m.name: int(getattr(m, "value", 0) or 0) for m in llm.get_metrics() if m.name in METRICS}
        return {
            "steps": state.lengths.steps,
            "rows": state.lengths.rows,
            "drift_rows": state.lengths.drift_rows,
            "tokens_equal": state.tokens_equal,
            "tokens_total": state.tokens_total,
            "finished": state.finished,
            "aborted": state.aborted,
            "metrics": metrics,
            "hook": hook_stats(runner),
        }
    finally:
        drop(llm)


def reference(job: dict[str, Any]) -> list[list[int]]:
    """Tokens of every prompt of the pool on the plain engine."""
    from vllm import LLM, SamplingParams

    llm = LLM(model=job["model"], **ENGINE, kv_cache_memory_bytes=64 << 20, enable_prefix_caching=False)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def main(arguments: list[str]) -> int:
    job = json.loads(Path(arguments[0]).read_text())
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ascend_sim import activate

    folder, failed = Path(job["folder"]), False
    if activate(job["mode"]) == "plain":
        (folder / "plain-churn.json").write_text(json.dumps(reference(job)))
    else:
        from mrv2_metadata.plugin import load

        load()
        try_unverified()
        references = json.loads((folder / "plain-churn.json").read_text())
        for number, engine in enumerate(job["engines"]):
            try:
                result = churn(engine, job, references)
            except Exception as error:
                failed = True
                result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
                sys.stderr.write(result["trace"])
            (folder / f"churn-{number}.json").write_text(json.dumps({**result, "engine": engine}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failed else 0)  # the engine's threads hang in an orderly end on some versions


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
