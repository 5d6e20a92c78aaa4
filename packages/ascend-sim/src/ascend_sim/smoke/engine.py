"""One engine process: runs scenarios in turn on a fresh engine each and leaves one result file per scenario.

``python -m ascend_sim.smoke.engine JOB.json``. The job names the mode (``plain`` or ``ascend``), the model
directories, the scenarios and the folder for results. A first engine in a process costs half a minute, further ones a
few seconds, hence one process for many.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascend_sim.smoke.results import Result
from ascend_sim.smoke.scenarios import BASE_ENGINE, NOT_OF_THE_REFERENCE, Scenario, by_name

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("ascend_sim.smoke")
# Counters that vLLM keeps, by the name of our field.
METRICS = {
    "preemptions": "vllm:num_preemptions",
    "prefix_hits": "vllm:prefix_cache_hits",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


def main(arguments: list[str]) -> int:
    """Run the job; exit status 1 when a scenario raised (its result file then holds the error)."""
    job = json.loads(Path(arguments[0]).read_text())
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ascend_sim.activation import activate

    mode = activate(job["mode"])
    folder, failed = Path(job["folder"]), False
    # Scenarios that differ only in what the reference never does ask the same of it: it answers once.
    answered: dict[str, Result] = {}
    for scenario in by_name(job["scenarios"]):
        _announce("start", scenario.name)
        try:
            question = scenario.reference_question() if mode == "plain" else scenario.name
            if question not in answered:
                answered[question] = run(scenario, mode, job)
            result = replace(answered[question], scenario=scenario.name)
        except Exception:
            failed = True
            error = traceback.format_exc()
            result = Result(scenario.name, mode, [], 0, 0, 0, 0.0, 0.0, error=error)
            sys.stderr.write(error)
        result.write(folder)
        _announce("done", scenario.name)
    # The engine's threads and process groups need no orderly end here, and some versions hang in it.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failed else 0)


def _announce(event: str, scenario: str) -> None:
    sys.stdout.write(f"@smoke {event} {scenario}\n")
    sys.stdout.flush()


def run(scenario: Scenario, mode: str, job: dict[str, Any], on_ready: Callable[[Any], None] | None = None) -> Result:
    """Build an engine for `scenario`, call `on_ready` with it, generate, read the counters, take the engine down."""
    from vllm import LLM, SamplingParams

    arguments = engine_arguments(scenario, mode, job)
    prompts: list[Any] = [{"prompt_token_ids": ids} for ids in scenario.prompt_token_ids()]
    sampling = SamplingParams(max_tokens=scenario.new_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
    llm = LLM(**arguments)
    try:
        if on_ready:
            on_ready(llm)
        if scenario.warm_first:
            llm.generate(prompts[:1], sampling, use_tqdm=False)
        else:
            # Lazily built state (masks, first kernels) belongs to no step of the scenario.
            llm.generate(
                [{"prompt_token_ids": [FILLER, FILLER]}], SamplingParams(max_tokens=2, temperature=0.0), use_tqdm=False
            )
        before, steps = _metrics(llm), _count_steps(llm)
        _reset_counters(mode)
        started = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds = time.perf_counter() - started
        counted = {name: after - before[name] for name, after in _metrics(llm).items()}
        averages = _averages(mode)
        decode_steps = int(averages.pop("decode_steps", 0))
        return Result(
            scenario=scenario.name,
            engine=mode,
            tokens=[list(output.outputs[0].token_ids) for output in outputs],
            steps=len(steps),
            seconds=seconds,
            ms_per_decode_step=_median(steps[len(steps) // 4 :]) * 1e3,
            decode_steps=decode_steps,
            per_decode_step=averages,
            **description(llm),  # type: ignore[arg-type]  # both by name: texts here, counts below
            **counted,  # type: ignore[arg-type]
        )
    finally:
        _take_down(llm)


FILLER = 7


def engine_arguments(scenario: Scenario, mode: str, job: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``vllm.LLM``. The reference never speculates and never runs in parallel: neither may change a
    token.
    """
    arguments = {**BASE_ENGINE, "model": job["models"]["target"], **job.get("engine", {}), **scenario.engine}
    if mode == "plain":
        for name in NOT_OF_THE_REFERENCE:
            arguments.pop(name, None)
        arguments["async_scheduling"] = False
    elif scenario.speculative:
        arguments["speculative_config"] = {
            "method": "eagle",
            "model": job["models"]["draft"],
            "num_speculative_tokens": scenario.speculative,
        }
        _arm_oracle(scenario, job)
    if mode == "ascend" and scenario.plugins and job.get("additional_config"):
        arguments["additional_config"] = job["additional_config"]
    return arguments


def _arm_oracle(scenario: Scenario, job: dict[str, Any]) -> None:
    """Let the drafts be right about as often as `scenario.acceptance` says; needs the reference's tokens, so waits for
    them.
    """
    reference = Path(job["folder"]) / f"plain-{scenario.name}.json"
    deadline = time.monotonic() + float(job.get("reference_timeout_s", 300))
    while not reference.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no reference tokens in {reference}: the plain engine has not run {scenario.name!r}")
        time.sleep(0.2)
    from ascend_sim.models import oracle

    path = Path(job["folder"]) / f"oracle-{scenario.name}.json"
    oracle.write(path, scenario.prompt_token_ids(), Result.read(reference).tokens, acceptance=scenario.acceptance)
    os.environ[oracle.ENVIRONMENT] = str(path)


def _count_steps(llm: Any) -> list[float]:
    """Seconds of each engine step from now on."""
    durations: list[float] = []
    step = llm.llm_engine.step

    def timed() -> Any:
        started = time.perf_counter()
        try:
            return step()
        finally:
            durations.append(time.perf_counter() - started)

    llm.llm_engine.step = timed
    return durations


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def _metrics(llm: Any) -> dict[str, int]:
    found = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    return {name: int(found.get(source, 0)) for name, source in METRICS.items()}


def description(llm: Any) -> dict[str, str]:
    """Which runner and attention backend were really in use; empty where the worker is another process."""
    try:
        executor = llm.llm_engine.engine_core.engine_core.model_executor
        runner = executor.driver_worker.worker.model_runner
    except AttributeError:
        return {}
    backends = sorted({group.backend.__name__ for groups in runner.attn_groups for group in groups})
    return {
        "runner": type(runner).__mro__[1].__name__ if "OnCPU" in type(runner).__name__ else type(runner).__name__,
        "attention": ",".join(backends),
    }


def _reset_counters(mode: str) -> None:
    if mode == "ascend":
        from ascend_sim import counters

        counters.reset()


def _averages(mode: str) -> dict[str, float]:
    if mode != "ascend":
        return {}
    from ascend_sim import counters

    return dict(counters.per_decode_step())


def _take_down(llm: Any) -> None:
    os.environ.pop("ASCEND_SIM_ORACLE", None)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
