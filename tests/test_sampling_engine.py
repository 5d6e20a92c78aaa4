"""Sampling beyond greedy: log-probabilities, temperature with a seed, penalties, as the plain engine has them."""

import json
import os
import subprocess
import sys

import pytest
from ascend_sim import models

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = """
import json, os, sys
import ascend_sim
mode = ascend_sim.activate(sys.argv[1])
from vllm import LLM, SamplingParams
llm = LLM(model=sys.argv[2], max_model_len=256, dtype="float32", enforce_eager=True, block_size=128, max_num_seqs=8,
          kv_cache_memory_bytes=32 << 20, seed=0)
prompts = ["a b c", "hello world", "x"]
common = {"max_tokens": 8, "ignore_eos": True}
cases = {
    "logprobs": SamplingParams(temperature=0.0, logprobs=3, **common),
    "prompt_logprobs": SamplingParams(temperature=0.0, prompt_logprobs=2, **common),
    "seeded": SamplingParams(temperature=0.8, seed=7, **common),
    "penalties": SamplingParams(temperature=0.0, presence_penalty=0.5, repetition_penalty=1.2, **common),
}
found = {}
for name, sampling in cases.items():
    try:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
        break
    found[name] = [
        {
            "tokens": list(output.outputs[0].token_ids),
            "logprobs": [{str(t): p.logprob for t, p in step.items()} for step in output.outputs[0].logprobs or []],
            "prompt": [{str(t): p.logprob for t, p in (step or {}).items()} for step in output.prompt_logprobs or []],
        }
        for output in outputs
    ]
print("@" + json.dumps(found), flush=True)
os._exit(0)
"""
# Not top-k and top-p: the plain engine's kernel for them does not run in the interpreter, so there is no control.
CASES = ("logprobs", "prompt_logprobs", "seeded", "penalties")


def run(mode: str) -> dict:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", SCRIPT, mode, str(models.build("dense"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("@")), "")
    assert line, done.stderr[-3000:]
    return json.loads(line[1:])


@pytest.fixture(scope="module")
def both():
    return run("plain"), run("ascend")


@pytest.mark.parametrize("case", CASES)
def test_sampling_equals_the_plain_engine(both, case):
    plain, simulated = both
    assert isinstance(simulated.get(case), list), simulated.get(case, "not reached")
    for want, have in zip(plain[case], simulated[case], strict=True):
        assert have["tokens"] == want["tokens"]
        for kind in ("logprobs", "prompt"):
            assert [step.keys() for step in have[kind]] == [step.keys() for step in want[kind]]
            for left, right in zip(have[kind], want[kind], strict=True):
                assert left == pytest.approx(right, abs=1e-4)


def test_the_cases_differ_from_each_other(both):
    plain, _ = both
    assert plain["logprobs"][0]["logprobs"]
    assert any(step for step in plain["prompt_logprobs"][0]["prompt"])
    assert len({json.dumps([one["tokens"] for one in plain[case]]) for case in CASES}) >= 3
