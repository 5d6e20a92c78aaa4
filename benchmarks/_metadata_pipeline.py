"""Two pipeline stages with multi-token prediction, in real worker processes: the rank that owns no speculator.

``python _metadata_pipeline.py JOB.json``. The job: ``mode`` (plain or ascend), ``folder``, ``model`` and ``runs``, each
with a name, the hook's configuration (null: off), ``async`` and perhaps a fault for the first rank. The plain mode
leaves the reference. vLLM lets no model with such a draft into a pipeline that does not declare it; the tiny model
declares nothing, so that check is answered here. Drafts are an oracle's, right in 7 of 10 places.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from _metadata_engine import Lengths, drop, hook_stats, leave, prepare, try_unverified

REQUESTS, NEW_TOKENS = 8, 24
# Engines stay referenced after their end: the message contexts of a dropped one hang the next one's start when they
# are collected there.
ENGINES: list[Any] = []


def prompts() -> list[list[int]]:
    """The prompts of the smoke's batch scenario."""
    from ascend_sim.smoke.scenarios import by_name

    return by_name(["batch"])[0].prompt_token_ids()[:REQUESTS]


def watch(worker: Any, fault: str | None, rank: int) -> None:
    """In a worker: compare the lengths of every step, and plant the fault on one rank."""
    runner = worker.model_runner
    runner.watched = Lengths()
    runner.watched.watch(runner.model_state)
    if fault is not None and worker.rank == rank:
        from _metadata_faults import plant

        plant(fault)


def report(worker: Any) -> dict[str, Any]:
    """In a worker: what its lengths were and what the hook did."""
    runner, seen = worker.model_runner, worker.model_runner.watched
    return {
        "rank": worker.rank,
        "owns_speculator": runner.speculator is not None,
        "steps": seen.steps,
        "rows": seen.rows,
        "drift_rows": seen.drift_rows,
        "too_long_rows": seen.too_long_rows,
        "first_drift": seen.first,
        "hook": hook_stats(runner),
    }


def arguments(job: dict[str, Any], mode: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `vllm.LLM`."""
    from ascend_sim.smoke.scenarios import BASE_ENGINE

    found: dict[str, Any] = {**BASE_ENGINE, "model": job["model"]}
    if mode == "plain":
        return found
    return found | {
        "async_scheduling": spec["async"],
        "pipeline_parallel_size": 2,
        "distributed_executor_backend": "mp",
        "speculative_config": {"method": "mtp", "num_speculative_tokens": 1},
    }


def answer_the_check() -> None:
    """Let a model that does not declare pipeline support into a pipeline."""
    from vllm.config.model import ModelConfig

    verify = ModelConfig.verify_with_parallel_config

    def answered(self: Any, parallel_config: Any) -> None:
        try:
            verify(self, parallel_config)
        except NotImplementedError as refused:
            sys.stdout.write(f"answered: {str(refused)[:80]}\n")

    ModelConfig.verify_with_parallel_config = answered


def generate(llm: Any) -> list[list[int]]:
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts()], sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def run(spec: dict[str, Any], job: dict[str, Any], mode: str) -> dict[str, Any]:
    """One engine with two workers; raises what the engine raises."""
    from vllm import LLM

    os.environ.pop("VLLM_MRV2_METADATA", None)
    if spec.get("hook") is not None:
        os.environ["VLLM_MRV2_METADATA"] = json.dumps(spec["hook"])
    llm = LLM(**arguments(job, mode, spec))
    ENGINES.append(llm)
    try:
        llm.collective_rpc(watch, args=(spec.get("fault"), 0))
        tokens = generate(llm)
        return {"tokens": tokens, "ranks": llm.collective_rpc(report)}
    finally:
        drop(llm)


def reference(job: dict[str, Any]) -> None:
    """Tokens of the plain engine, one process and no drafts, and the oracle made of them."""
    from ascend_sim.models import oracle
    from vllm import LLM

    llm = LLM(**arguments(job, "plain", {}))
    tokens = generate(llm)
    folder = Path(job["folder"])
    (folder / "plain.json").write_text(json.dumps({"tokens": tokens}))
    oracle.write(folder / "oracle.json", prompts(), tokens, acceptance=0.7)


def main(paths: list[str]) -> None:
    job = json.loads(Path(paths[0]).read_text())
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    mode, fine = prepare(job["mode"]), True
    if mode == "plain":
        reference(job)
    else:
        os.environ["ASCEND_SIM_ORACLE"] = str(Path(job["folder"]) / "oracle.json")
        answer_the_check()
    for spec in job["runs"] if mode == "ascend" else ():
        try:
            result = run(spec, job, mode)
        except Exception as error:
            fine = False
            result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            sys.stderr.write(result["trace"])
        (Path(job["folder"]) / f"{spec['name']}.json").write_text(json.dumps(result))
    leave(fine)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":
    try_unverified()  # a worker imports this script before it starts
