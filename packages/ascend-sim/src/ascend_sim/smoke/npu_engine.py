"""One engine process of npu-smoke: units (scenarios, ``profile``) of one arm in one mode, a result file each.

``python -m ascend_sim.smoke.npu_engine JOB.json``. A unit that the engine refuses before it has run a request is
"refused", one that breaks later "failed"; both carry the reason. All requests are enqueued before the first step: the
engine core runs in this process (VLLM_ENABLE_V1_MULTIPROCESSING=0) and steps only after ``generate`` has added them.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ascend_sim.smoke import engine, npu_worker
from ascend_sim.smoke.npu_plan import DEVICES, PROFILE
from ascend_sim.smoke.results import write_json
from ascend_sim.smoke.scenarios import Scenario, by_name

# Steps of the profile's requests before the first recorded one and after the last.
SLACK_TOKENS = 12


class RefusedError(RuntimeError):
    """The engine does not do what the unit asks for; the message says why."""


def main(arguments: list[str]) -> int:
    """Run the job; exit status 0 also where units were refused or failed: their files say so."""
    job = json.loads(Path(arguments[0]).read_text())
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if job["device"] == "simulated":
        from ascend_sim.activation import activate

        activate("ascend")
    for unit in job["units"]:
        announce("start", unit)
        write_json(Path(job["folder"]) / f"{job['arm']}-{unit}.json", run_unit(unit, job))
        announce("done", unit)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the engine's threads need no orderly end here, and some versions hang in it


def announce(event: str, unit: str) -> None:
    """A line that the parent's progress bar reads."""
    sys.stdout.write(f"@smoke {event} {unit}\n")
    sys.stdout.flush()


def run_unit(unit: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run one unit; never raises."""
    found: dict[str, Any] = {"unit": unit, "arm": job["arm"], "mode": job["mode"], "device": DEVICES[job["device"]]}
    stages: dict[str, Any] = {}
    try:
        scenario = scenario_of(unit, job)
        arguments = {**job, "engine": engine_of(unit, job)}
        if job["mode"] == "graph":
            check_graph(engine.engine_arguments(scenario, "ascend", arguments))
        started = time.perf_counter()

        def on_ready(llm: Any) -> None:
            stages.update(read_stages(llm, time.perf_counter() - started))
            if job["mode"] == "graph" and not all(worker["graphs"] for worker in stages["workers"]):
                raise RefusedError("the engine started and captured no graph")

        if unit == PROFILE:
            found["profile"] = run_profile(scenario, arguments, on_ready)
        else:
            kind = "ascend" if job["device"] == "simulated" else "npu"
            found["result"] = asdict(replace(engine.run(scenario, kind, arguments, on_ready), engine=job["arm"]))
        found["status"] = "ran"
    except Exception as error:
        # Before any request ran the engine said no; after that it broke.
        refused = isinstance(error, RefusedError) or not stages
        sys.stderr.write(traceback.format_exc())
        found |= {"status": "refused" if refused else "failed", "reason": reason(error)}
    finally:
        gc.collect()
    return {**found, "stages": stages}


def reason(error: BaseException) -> str:
    """The error that started it, on one line."""
    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = cause
    text = " ".join(str(error).split())
    kind = "" if isinstance(error, RefusedError) else f"{type(error).__name__}: "
    return f"{kind}{text}"[:500] or type(error).__name__


def scenario_of(unit: str, job: dict[str, Any]) -> Scenario:
    """The scenario of a unit; the profile is eight requests that decode long enough."""
    scenario = by_name(["batch" if unit == PROFILE else unit])[0]
    if unit == PROFILE:
        return replace(scenario, new_tokens=job["profile_steps"] + SLACK_TOKENS)
    # Drafts come from a real draft model here, set in `engine_of`; the oracle is for tiny random models.
    return replace(scenario, speculative=0)


def engine_of(unit: str, job: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments over `BASE_ENGINE`: the device's, the mode's, the arm's plugins and the unit's draft."""
    arguments = {**job["engine"], "enforce_eager": job["mode"] == "eager"}
    if job["mode"] == "graph":
        arguments["compilation_config"] = {"cudagraph_mode": job["graph_mode"]}
    if job["plugins"]:
        arguments["additional_config"] = job["plugins"]
    speculative = by_name([unit])[0].speculative if unit != PROFILE else 0
    if speculative:
        arguments["speculative_config"] = {
            "method": "eagle",
            "model": job["models"]["draft"],
            "num_speculative_tokens": speculative,
        }
    return arguments


def check_graph(arguments: dict[str, Any]) -> None:
    """Ask the platform what becomes of the graph mode, before an engine is built; raises `RefusedError` for none."""
    from vllm import EngineArgs

    wanted = arguments["compilation_config"]["cudagraph_mode"]
    resolved = EngineArgs(**arguments).create_engine_config().compilation_config.cudagraph_mode
    if getattr(resolved, "name", str(resolved)) == "NONE":
        raise RefusedError(f"cudagraph_mode {wanted!r} was asked for and the platform made it NONE: no graph here")


def read_stages(llm: Any, seconds: float) -> dict[str, Any]:
    """What the start of the engine did: model, KV cache, graphs, and each worker's state."""
    config = llm.llm_engine.vllm_config
    cache, compilation = config.cache_config, config.compilation_config
    from vllm_pairs import installed_hooks

    workers = llm.collective_rpc(npu_worker.state)
    return {
        "start_s": round(seconds, 3),
        "dtype": str(config.model_config.dtype),
        "kv_blocks": cache.num_gpu_blocks,
        "block_size": cache.block_size,
        "graph_mode": getattr(compilation.cudagraph_mode, "name", str(compilation.cudagraph_mode)),
        "graphs": min(worker["graphs"] for worker in workers),
        "workers": workers,
        # A scheduler's hook is in the engine core, which is this process.
        "hooks": sorted({hook.name for hook in installed_hooks()}.union(*(worker["hooks"] for worker in workers))),
    }


def run_profile(scenario: Scenario, job: dict[str, Any], on_ready: Any) -> dict[str, Any]:
    """Record `profile_steps` decode steps of eight requests; returns their counts, or where the traces lie."""
    from vllm import LLM, SamplingParams

    kind = "ascend" if job["device"] == "simulated" else "npu"
    llm = LLM(**engine.engine_arguments(scenario, kind, job))
    try:
        on_ready(llm)
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in scenario.prompt_token_ids()]
        sampling = SamplingParams(max_tokens=scenario.new_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        # The first generation builds and compiles what no later step does.
        llm.generate(prompts, sampling, use_tqdm=False)
        folder = Path(job["traces"])
        recorder = Recorder(llm, scenario.prompts, job["profile_steps"], None if kind == "ascend" else folder)
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        found = recorder.result()
        return {**found, "tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    finally:
        engine._take_down(llm)


class Recorder:
    """Follows the engine's steps: once every request decodes, one step of warm-up, then `steps` recorded ones.

    `folder` takes the traces of torch_npu's profiler; None: the simulator's counters are read instead.
    """

    def __init__(self, llm: Any, requests: int, steps: int, folder: Path | None) -> None:
        self._llm, self._requests, self._steps, self._folder = llm, requests, steps, folder
        self._fewest = requests
        self._done = -1  # steps since the start; -1: not started
        self._result: dict[str, Any] | None = None
        self._step = llm.llm_engine.step
        llm.llm_engine.step = self._stepped

    def _stepped(self) -> Any:
        outputs = self._step()
        if self._result is not None:
            return outputs
        if self._done < 0:
            if self._in_decode() == self._requests:
                self._start()
                self._done = 0
            return outputs
        self._done += 1
        self._fewest = min(self._fewest, self._in_decode())
        if self._folder:
            self._llm.collective_rpc(npu_worker.step_profile)
        if self._done == self._steps + 1:
            self._stop()
        return outputs

    def _in_decode(self) -> int:
        """Requests that run and have an output token: `generate` hands tokens out at a request's end only."""
        running = self._llm.llm_engine.engine_core.engine_core.scheduler.running
        return sum(one.num_output_tokens > 0 for one in running)

    def _start(self) -> None:
        if self._folder:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._llm.collective_rpc(npu_worker.start_profile, args=(str(self._folder), self._steps))
        else:
            self._llm.collective_rpc(npu_worker.start_counting)

    def _stop(self) -> None:
        if self._folder:
            self._llm.collective_rpc(npu_worker.stop_profile)
            self._result = {"source": "torch_npu.profiler", "steps": self._steps}
        else:
            ranks = self._llm.collective_rpc(npu_worker.counted, args=(self._steps,))
            self._result = {
                "source": "ascend_sim.counters (simulated, no NPU)",
                "steps": self._steps,
                "ranks": ranks,
            }

    def result(self) -> dict[str, Any]:
        """What was recorded; raises RuntimeError where the requests ended too early."""
        self._llm.llm_engine.step = self._step
        if self._result is None:
            raise RuntimeError(f"only {max(self._done, 0)} of {self._steps + 1} decode steps came after the prefill")
        if self._fewest < self._requests:
            raise RuntimeError(f"only {self._fewest} of {self._requests} requests decoded in a recorded step")
        return self._result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
