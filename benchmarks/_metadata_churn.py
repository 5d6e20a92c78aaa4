"""Churn in one real engine: Hypothesis draws admissions, aborts and steps; all lengths and tokens are checked.

``python _metadata_churn.py JOB.json``. The job: ``mode``, ``folder``, ``models``, ``engines`` and ``examples``; each
engine has a name, arguments, the hook's configuration and perhaps a number of EAGLE drafts. The plain mode writes the
reference tokens of every prompt in the pool, and an oracle that makes 7 of 10 drafts right; a churned request must
produce a prefix of its prompt's reference, and the whole of it unless it was aborted.
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

from _metadata_engine import METRICS, Lengths, done_before, drop, fresh_stats, hook_stats, leave, prepare, run_specs

POOL, LONGEST, NEW_TOKENS = 20, 280, 40
ENGINE: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "kv_cache_memory_bytes": 64 << 20,
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


SMALL = {"num_gpu_blocks_override": 7, "enable_prefix_caching": True}
EVERY = {"enabled": True, "verify": "every", "strict": True}
ENGINES: list[dict[str, Any]] = [
    {"name": "async-64", "engine": {"max_num_batched_tokens": 64, "async_scheduling": True, **SMALL}, "hook": EVERY},
    {"name": "sync-256", "engine": {"max_num_batched_tokens": 256, "async_scheduling": False, **SMALL}, "hook": EVERY},
    {"name": "spec-async-96", "engine": {"max_num_batched_tokens": 96, "async_scheduling": True, **SMALL},
     "hook": EVERY, "speculative": 3},
    {"name": "spec-trusted-96", "engine": {"max_num_batched_tokens": 96, "async_scheduling": False, **SMALL},
     "hook": {**EVERY, "speculative_sync": ["eagle"]}, "speculative": 3},
]  # fmt: skip


def churn(spec: dict[str, Any], job: dict[str, Any], references: list[list[int]]) -> dict[str, Any]:
    """One engine: as many plans as the job says; what the engine and the checks counted."""
    from hypothesis import HealthCheck, given, seed, settings
    from hypothesis import strategies as st
    from vllm import LLM

    number = st.integers(0, 10_000)
    actions = st.tuples(st.sampled_from(["admit", "admit", "step", "step", "abort"]), number, number)
    arguments = {**ENGINE, "model": job["models"]["target"], **spec["engine"]}
    os.environ["VLLM_MRV2_METADATA"] = json.dumps(spec["hook"])
    os.environ.pop("ASCEND_SIM_ORACLE", None)
    fresh_stats()
    if spec.get("speculative"):
        os.environ["ASCEND_SIM_ORACLE"] = str(Path(job["folder"]) / "oracle-churn.json")
        draft = {"method": "eagle", "model": job["models"]["draft"]}
        arguments["speculative_config"] = draft | {"num_speculative_tokens": spec["speculative"]}
    llm = LLM(**arguments)
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
    """Tokens of every prompt of the pool on the plain engine, and the oracle made of them."""
    from ascend_sim.models import oracle
    from vllm import LLM, SamplingParams

    llm = LLM(model=job["models"]["target"], **ENGINE, enable_prefix_caching=False)
    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling, use_tqdm=False)
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    oracle.write(Path(job["folder"]) / "oracle-churn.json", PROMPTS, tokens, acceptance=0.7)
    return tokens


def churn_all(job: dict[str, Any], mode: str) -> bool:
    """Every engine of the job, or in plain mode the reference; whether each gave a result."""
    folder, fine = Path(job["folder"]), True
    if mode == "plain":
        (folder / "plain-churn.json").write_text(json.dumps(reference(job)))
        return True
    references = json.loads((folder / "plain-churn.json").read_text())
    for spec in job["engines"]:
        path = folder / f"churn-{spec['name']}.json"
        if done_before(path):
            continue
        try:
            result = churn(spec, job, references)
        except Exception as error:
            fine = False
            result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            sys.stderr.write(result["trace"])
        path.write_text(json.dumps(result))
    return fine


def main(arguments: list[str]) -> None:
    job = json.loads(Path(arguments[0]).read_text())
    mode = prepare(job["mode"])
    fine = run_specs(job, mode) if "runs" in job else True
    leave(churn_all(job, mode) and fine)


if __name__ == "__main__":
    main(sys.argv[1:])
