"""Each tiny model in the real engines: greedy tokens of the simulator equal the plain CPU engine's, or it is refused.

Run as a script it is the engine process: ``python test_architectures_engine.py MODE JOB.json``; one process for each
mode, because the first engine of a process costs half a minute and further ones a few seconds.
"""

import gc
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from ascend_sim import models
from ascend_sim.models import oracle
from ascend_sim.models.catalog import ARCHITECTURES

pytestmark = pytest.mark.engine

NEW_TOKENS = 24
COMPARED = [name for name, entry in ARCHITECTURES.items() if entry.runs("plain") and entry.runs("simulator")]
REFUSED = [name for name, entry in ARCHITECTURES.items() if "simulator" in dict(entry.refused)]
SEVERAL = 30
"""Distinct tokens that a comparison needs: a model that repeats two tokens would hide faults."""


def prompts() -> list[list[int]]:
    """Nine prompts; the longest pass the sliding window and a block of 128 tokens."""
    generator = random.Random(1)
    return [[generator.randrange(10, 500) for _ in range(length)] for length in (30,) * 6 + (200, 200, 150)]


def run_engine(spec: dict) -> dict:
    from vllm import LLM, SamplingParams

    llm = LLM(
        max_model_len=512, dtype="float32", enforce_eager=True, block_size=128, kv_cache_memory_bytes=64 << 20,
        max_num_seqs=16, enable_prefix_caching=False, disable_log_stats=False, seed=0, **spec["engine"],
    )  # fmt: skip
    try:
        requests = [{"prompt_token_ids": prompt} for prompt in prompts()]
        sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)
        outputs = llm.generate(requests, sampling, use_tqdm=False)
        messages = [{"role": "user", "content": "hi"}]
        chat = llm.chat(messages, SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
        tokenizer = llm.get_tokenizer()
        executor = llm.llm_engine.engine_core.engine_core.model_executor
        runner = executor.driver_worker.worker.model_runner
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "text": outputs[0].outputs[0].text,
            "chat_prompt": chat[0].prompt or tokenizer.decode(chat[0].prompt_token_ids),
            "round_trip": tokenizer.decode(tokenizer.encode("The quick wörld, step 7!", add_special_tokens=False)),
            "runner": [cls.__name__ for cls in type(runner).__mro__],
            "groups": len(runner.kv_cache_config.kv_cache_groups),
            "metrics": {m.name: getattr(m, "value", None) for m in llm.get_metrics() if "spec_decode_num" in m.name},
        }
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def main(mode: str, job: str) -> None:
    os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING", "OMP_NUM_THREADS": "1"})
    from ascend_sim.activation import activate

    activate(mode)
    path = Path(job)
    specs = json.loads(path.read_text())
    for spec in specs:
        os.environ.pop(oracle.ENVIRONMENT, None)
        os.environ.update(spec.get("environment", {}))
        spec["result"] = run_engine(spec)
        path.write_text(json.dumps(specs))
    # The engine's threads need no orderly end here, and some versions hang in it.
    sys.stdout.flush()
    os._exit(0)


def child(mode: str, specs: list[dict], folder: Path) -> dict[str, dict]:
    """Run `specs` in one engine process; return each result by the spec's key."""
    job = folder / f"{mode}-{specs[0]['key']}.json"
    job.write_text(json.dumps(specs))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ASCEND_SIM")}
    command = [sys.executable, __file__, mode, str(job)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return {spec["key"]: spec["result"] for spec in json.loads(job.read_text())}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("architectures")


@pytest.fixture(scope="module")
def built(folder):
    return {name: str(models.build(name, folder / "cache")) for name in ARCHITECTURES}


@pytest.fixture(scope="module")
def plain(built, folder):
    specs = [{"key": name, "engine": {"model": built[name]}} for name in COMPARED]
    for name in COMPARED:
        if ARCHITECTURES[name].plain_overrides:
            overrides = dict(ARCHITECTURES[name].plain_overrides)
            specs.append({"key": f"{name}+", "engine": {"model": built[name], "hf_overrides": overrides}})
    return child("plain", specs, folder)


@pytest.fixture(scope="module")
def simulated(built, plain, folder):
    specs = [{"key": name, "engine": {"model": built[name]}} for name in COMPARED]
    speculative = {"method": "eagle", "model": built["eagle"], "num_speculative_tokens": 3}
    for acceptance in (0.0, 0.7, 1.0):
        path = folder / f"oracle-{acceptance}.json"
        oracle.write(path, prompts(), plain["dense"]["tokens"], acceptance=acceptance)
        engine = {"model": built["dense"], "speculative_config": speculative, "async_scheduling": False}
        specs.append({"key": f"oracle {acceptance}", "engine": engine, "environment": {oracle.ENVIRONMENT: str(path)}})
    mtp = {"method": "mtp", "num_speculative_tokens": 1}
    engine = {"model": built["mimo"], "speculative_config": mtp, "async_scheduling": False}
    specs.append({"key": "mtp", "engine": engine})
    return child("ascend", specs, folder)


def equal(first: list[list[int]], second: list[list[int]]) -> str:
    """Return `n/N` tokens equal."""
    pairs = [(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)]
    return f"{sum(a == b for a, b in pairs)}/{len(pairs)}"


ALL = f"{len(prompts()) * NEW_TOKENS}/{len(prompts()) * NEW_TOKENS}"


@pytest.mark.parametrize("name", COMPARED)
def test_greedy_tokens_equal_the_plain_engine(name, plain, simulated):
    reference = plain[f"{name}+" if ARCHITECTURES[name].plain_overrides else name]
    assert "NPUModelRunner" in simulated[name]["runner"]
    assert "NPUModelRunner" not in reference["runner"]
    assert equal(simulated[name]["tokens"], reference["tokens"]) == ALL
    assert len({token for row in reference["tokens"] for token in row}) >= SEVERAL


@pytest.mark.parametrize("name", [name for name in COMPARED if ARCHITECTURES[name].plain_overrides])
def test_a_known_deviation_is_really_there(name, plain, simulated):
    """Fails once upstream changes its mind: then the overrides must go from the catalogue."""
    assert equal(simulated[name]["tokens"], plain[name]["tokens"]) != ALL


def test_models_are_different_models(plain):
    tokens = [json.dumps(plain[name]["tokens"]) for name in COMPARED if name != "mimo"]
    assert len(set(tokens)) == len(tokens)
    # MiMo without speculation is the dense model: its extra layer must not change a token.
    assert plain["mimo"]["tokens"] == plain["dense"]["tokens"]


def test_sliding_has_two_groups_of_kv_cache(simulated):
    assert simulated["sliding"]["groups"] == 2
    assert simulated["dense"]["groups"] == 1


def test_tokenizer_decodes_every_id_and_has_a_chat_template(simulated):
    result = simulated["dense"]
    assert result["text"]
    assert result["round_trip"] == "The quick wörld, step 7!"
    assert "user: hi\nassistant: " in result["chat_prompt"]


@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_oracle_drafts_are_accepted_at_their_rate_and_change_no_token(acceptance, plain, simulated):
    result = simulated[f"oracle {acceptance}"]
    drafted = result["metrics"]["vllm:spec_decode_num_draft_tokens"]
    accepted = result["metrics"]["vllm:spec_decode_num_accepted_tokens"]
    assert equal(result["tokens"], plain["dense"]["tokens"]) == ALL
    assert drafted > 0
    if acceptance == 0.0:
        # The chat prompt is not in the oracle's file: its few drafts are the random draft model's own.
        assert accepted <= 3
    elif acceptance == 1.0:
        # The draft past the end of the reference is the speculator's own.
        assert accepted >= 0.8 * drafted
    else:
        assert 0.2 * drafted < accepted < 0.8 * drafted


def test_the_layer_of_mimo_drafts_and_changes_no_token(plain, simulated):
    assert simulated["mtp"]["metrics"]["vllm:spec_decode_num_draft_tokens"] > 0
    assert equal(simulated["mtp"]["tokens"], plain["mimo"]["tokens"]) == ALL


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_run_is_refused_with_its_reason(name, folder):
    with pytest.raises(models.RefusedModelError) as refusal:
        models.resolve(name, "simulator", folder / "refused")
    assert dict(ARCHITECTURES[name].refused)["simulator"] in str(refusal.value)
    assert not (folder / "refused").exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
