"""The process that plants faults: ``python -m kv_plan_guard.adapters.inject JOB.json``.

The job: ``engine`` (``sim``: the simulated Ascend runner, activated by the environment; ``core``: vLLM's own runner),
``models`` (architecture to checkpoint), ``folder``, ``cells`` and ``without`` (checks switched off, for mutation).
Cells that ask the same of an engine share one, emptied and guarded anew between them; each cell leaves one JSON file.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import sys
from pathlib import Path
from typing import Any, Final

from kv_plan_guard.adapters.faults import FAULTS
from kv_plan_guard.adapters.planting import Planter
from kv_plan_guard.adapters.state import ATTRIBUTE
from kv_plan_guard.errors import PlanError

ENGINE: Final[dict[str, Any]] = {
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "dtype": "float32",
    "enforce_eager": True,
    "block_size": 128,
    "kv_cache_memory_bytes": 32 << 20,
    "max_num_seqs": 8,
    "enable_prefix_caching": False,
    "seed": 0,
}
# lengths of the prompts, tokens to make (one number, or one a request), engine arguments.
WORKLOADS: Final[dict[str, tuple[list[int], list[int], dict[str, Any]]]] = {
    "mixed": ([30, 140, 200, 20], [10], {"max_num_batched_tokens": 96}),
    "long": ([300, 280], [8], {"max_num_batched_tokens": 160}),
    "early-end": ([20, 30, 40], [3, 14, 14], {}),
    "growing": ([120, 110], [26], {}),
    "reused-rows": ([20, 150, 25, 140, 28, 35, 160], [4, 7, 5, 9], {"max_num_seqs": 2}),
    # Of many lengths: freed blocks come back last in, first out, and a request that resumes must not get its old ones.
    "preemption": ([100, 90, 110, 70, 120, 60, 105, 80], [60, 42, 51, 66, 37], {"num_gpu_blocks_override": 9}),
    "drafts": ([30] * 4, [16], {}),
}
# How many blocks make the preemption workload preempt, where it is not the dense model's number.
BLOCKS: Final = {"sliding": 14}
DRAFTS: Final = 3


def group_of(runner: Any, wants: str) -> int | str:
    """The KV cache group of a fault, or why this engine has none."""
    layouts = runner.__dict__[ATTRIBUTE].layout.groups
    state = [gid for gid, group in enumerate(layouts) if group.kind == "mamba"]
    slotted = [gid for gid, group in enumerate(layouts) if group.slots == "used"]
    window = [gid for gid in slotted if layouts[gid].kind == "sliding"]
    if wants == "groups" and len(layouts) < 2:
        return "the model has one KV cache group"
    if wants == "state" and not state:
        return "the model has no recurrent state"
    if wants == "host" and not hasattr(runner.input_buffers, "seq_lens_np"):
        return "this runner hands no lengths over from the host"
    if wants in ("table", "state") and state:
        return state[0]
    return window[0] if window else slotted[0]


class Engine:
    """One engine for the cells that ask the same of it; after each it is emptied, and guarded anew."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM

        self.arguments = arguments
        self.llm = LLM(**arguments)
        self.core = self.llm.llm_engine.engine_core.engine_core
        self.runner = self.core.model_executor.driver_worker.worker.model_runner

    def generate(self, lengths: list[int], new_tokens: list[int]) -> None:
        """Ask for prompts of these lengths, and so many tokens each; raises what the engine raises."""
        from vllm import SamplingParams

        draw = random.Random(5)
        prompts: list[Any] = [
            {"prompt_token_ids": [draw.randrange(10, 500) for _ in range(length)]} for length in lengths
        ]
        sampling = [
            SamplingParams(
                max_tokens=new_tokens[i % len(new_tokens)], temperature=0.0, ignore_eos=True, detokenize=False
            )
            for i in range(len(prompts))
        ]
        self.llm.generate(prompts, sampling, use_tqdm=False)

    def empty(self) -> None:
        """Abort what is left, forget the step that failed, and let two tokens be made without a guard."""
        from kv_plan_guard.adapters import install

        hooks = install.installed()
        assert hooks is not None
        config = self.runner.__dict__[ATTRIBUTE].config
        hooks.detach(self.runner)
        engine = self.llm.llm_engine
        engine.abort_request(list(engine.output_processor.request_states), internal=True)
        if left := self.core.scheduler.get_num_unfinished_requests():
            raise RuntimeError(f"{left} requests could not be aborted")
        if getattr(self.core, "batch_queue", None) is not None:
            self.core.batch_queue.clear()
        self.runner.execute_model_state = None
        self.generate([3], [2])
        hooks.attach(self.runner, config)

    def end(self) -> None:
        """Take the engine down; the next one of this process starts in seconds."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm, self.core, self.runner
        gc.collect()


def arguments_of(cell: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """The engine that a cell needs."""
    fault = FAULTS.get(cell["kind"])
    _, _, more = WORKLOADS[fault.workload if fault else "mixed"]
    arguments = {**ENGINE, **more, "model": job["models"][cell["architecture"]]}
    arguments["async_scheduling"] = cell["schedule"] == "async"
    if "num_gpu_blocks_override" in more:
        arguments["num_gpu_blocks_override"] = BLOCKS.get(cell["architecture"], more["num_gpu_blocks_override"])
    if fault and fault.wants == "drafts":
        arguments["speculative_config"] = {
            "method": "eagle",
            "model": job["models"]["draft"],
            "num_speculative_tokens": DRAFTS,
        }
    return arguments


def run_cell(cell: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """One fault in an engine: what was planted and when, what was found, and which steps' tokens were released."""
    fault = FAULTS.get(cell["kind"])  # none: the control
    lengths, new_tokens, _ = WORKLOADS[fault.workload if fault else "mixed"]
    guard = engine.runner.__dict__[ATTRIBUTE]
    gid = group_of(engine.runner, fault.wants if fault else "slots")
    if isinstance(gid, str):
        return {"not_applicable": gid}
    planter = Planter(engine.runner, fault, gid)
    released = _watch_release(engine.core.scheduler, planter)
    error: BaseException | None = None
    try:
        engine.generate(lengths, new_tokens)
    except BaseException as raised:  # what kind it was is the result
        error = raised
    finally:
        planter.remove()
        engine.core.scheduler.__dict__.pop("update_from_output", None)
    found = _plan_error(error)
    return {
        "planted": planter.planted,
        "steps": planter.step,
        "group": guard.layout.groups[gid].kind,
        "error": None if error is None else f"{type(error).__name__}: {error}"[:2000],
        "caught": found is not None,
        "step": found.violations[0].step if found else None,
        "codes": sorted({violation.code.value for violation in found.violations}) if found else [],
        "released": sorted(released),
        "audits": guard.guard.stats.audits,
        "violations": dict(guard.guard.stats.violations),
    }


def _watch_release(scheduler: Any, planter: Planter) -> set[int]:
    """The steps whose output reached the scheduler, and so the user."""
    released: set[int] = set()
    update = scheduler.update_from_output

    def update_from_output(scheduler_output: Any, *args: Any, **named: Any) -> Any:
        known = planter.outputs.get(id(scheduler_output))
        if known is not None:  # else a step that was queued before this cell
            released.add(known[0])
        return update(scheduler_output, *args, **named)

    scheduler.update_from_output = update_from_output
    return released


def _plan_error(error: BaseException | None) -> PlanError | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, PlanError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def prepare(job: dict[str, Any]) -> None:
    """Set the guard up for this process: raising, with the checks of `without` taken out of it."""
    from kv_plan_guard.adapters import install, state
    from kv_plan_guard.plugin import load
    from kv_plan_guard.violation import Code

    os.environ["VLLM_KV_PLAN_GUARD"] = json.dumps({"enabled": True, "action": "raise"})
    load()
    if os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        install._unverified = lambda pair: None  # the run that earns a pair its row
    if job.get("without"):
        names, without = vars(state), frozenset(Code(code) for code in job["without"])
        whole = names["Guard"]
        names["Guard"] = lambda config, layout: whole(config, layout, without=without)


def _one(cell: dict[str, Any], job: dict[str, Any], engine: Engine | None) -> tuple[dict[str, Any], Engine | None]:
    """The result of a cell, and the engine for the next one: None where it did not survive."""
    try:
        arguments = arguments_of(cell, job)
        if engine is not None and engine.arguments != arguments:
            engine.end()
            engine = None
        engine = engine or Engine(arguments)
        result = run_cell(cell, engine)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:4000]}, None
    try:
        engine.empty()
    except Exception as error:
        result["not_emptied"] = f"{type(error).__name__}: {error}"[:1000]
        return result, None
    return result, engine


def main(arguments: list[str]) -> int:
    """Run the cells of the job that have no result yet."""
    job = json.loads(Path(arguments[0]).read_text())
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    logging.getLogger("kv_plan_guard").setLevel(logging.CRITICAL)  # each cell reports a violation: it is the result
    prepare(job)
    folder = Path(job["folder"])
    engine: Engine | None = None
    for cell in sorted(job["cells"], key=lambda cell: json.dumps(arguments_of(cell, job), sort_keys=True)):
        path = folder / f"{cell['name']}.json"
        if path.exists():
            continue
        sys.stdout.write(f"@begin {cell['name']}\n")
        sys.stdout.flush()
        result, engine = _one(cell, job, engine)
        scratch = path.with_suffix(".part")
        scratch.write_text(json.dumps({**cell, **result}))
        scratch.replace(path)
        sys.stdout.write(f"@cell {cell['name']}\n")
        sys.stdout.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # engines that a fault stopped do not end in order


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
