"""One process with one or more real engines and the guard on or off, for the benchmarks and tests of kv-plan-guard.

``python _guard_engine.py JOB.json``. The job: ``mode`` (plain or ascend), ``folder``, ``models`` (name to path) and
``runs``. A run names a model, engine arguments, a workload and the guard's configuration (null: off); it leaves one
result file as it ends. Workloads are drawn from a seed alone, so that two processes ask the same.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

# A sibling of this script may have the name of a library: look here last.
HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [*(folder for folder in sys.path if folder != HERE), HERE]

FIRST_TOKEN, LAST_TOKEN = 10, 500
BASE: dict[str, Any] = {
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
METRICS = {
    "preemptions": "vllm:num_preemptions",
    "prefix_hits": "vllm:prefix_cache_hits",
    "external_hits": "vllm:external_prefix_cache_hits",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


def prompts(workload: dict[str, Any]) -> list[list[int]]:
    """The prompts of a workload: lengths in turn from `lengths`, the first `shared` tokens common to all."""
    draw = random.Random(workload["seed"])
    shared = [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(workload.get("shared", 0))]
    lengths = workload["lengths"]
    return [
        shared + [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(lengths[i % len(lengths)] - len(shared))]
        for i in range(workload["requests"])
    ]


UNVERIFIED: Any = None


def admit_unverified() -> None:
    """Let the guard start on a pair without a row in the pair table: how the run is made that earns the row.

    Only with KIT_TRY_UNVERIFIED=1 in the environment; the hashes of what the hooks rely on are checked as ever.
    """
    global UNVERIFIED
    from kv_plan_guard.adapters import install

    UNVERIFIED = install._unverified
    if os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        install._unverified = lambda pair: None


@contextlib.contextmanager
def other_pair(status: str | None) -> Any:
    """While an engine starts, let the installed pair be one that nobody verified."""
    from kv_plan_guard.adapters import install
    from vllm_pairs import Pair

    kept = install.current_pair, install._unverified
    if status is not None:
        install.current_pair = lambda: Pair(id="none", status=status, vllm=None)
        install._unverified = UNVERIFIED
    try:
        yield
    finally:
        install.current_pair, install._unverified = kept


def runner_of(llm: Any) -> Any:
    """The model runner of an engine in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def guard_of(runner: Any) -> Any:
    """The guard of a runner, or None."""
    return runner.__dict__.get("_kv_plan_guard")


def guard_result(runner: Any) -> dict[str, Any] | None:
    """What the guard of a runner counted, after settling what has landed."""
    guard = guard_of(runner)
    if guard is None:
        return None
    with contextlib.suppress(Exception):  # a stopped engine raises what it stopped with
        guard.poll()
    return {
        **guard.guard.stats.to_json(),
        "figures": guard.figures(),
        "signatures": [[*key, number] for key, number in guard.guard.signatures().items()],
        "coverage": [[line.code.value, line.active, line.ran, line.why] for line in guard.guard.coverage()],
        "notes": list(guard.plans.notes),
        "layout": [
            {
                "kind": group.kind,
                "block_size": group.block_size,
                "kernel": group.kernel_size,
                "pool": group.pool_blocks,
                "slots": group.slots,
                "slot_dtype": group.slot_dtype,
            }
            for group in guard.layout.groups
        ],
        "step": guard.step,
    }


def make_engine(spec: dict[str, Any], job: dict[str, Any], mode: str) -> Any:
    """The engine of a run; the guard's configuration goes by the environment, since one process holds several."""
    from vllm import LLM

    arguments = {**BASE, "model": job["models"][spec["model"]], **spec.get("engine", {})}
    os.environ.pop("VLLM_KV_PLAN_GUARD", None)
    if spec.get("guard") is not None:
        os.environ["VLLM_KV_PLAN_GUARD"] = json.dumps(spec["guard"])
    if spec.get("speculative"):
        arguments["speculative_config"] = {
            "method": "eagle",
            "model": job["models"]["draft"],
            "num_speculative_tokens": spec["speculative"],
        }
    if spec.get("oracle"):
        _arm_oracle(spec, job)
    return LLM(**arguments)


def _arm_oracle(spec: dict[str, Any], job: dict[str, Any]) -> None:
    """Let the drafts be right at times: the reference's tokens come from an earlier run of this folder."""
    from ascend_sim.models import oracle

    reference = json.loads((Path(job["folder"]) / f"{spec['oracle']}.json").read_text())["tokens"]
    path = Path(job["folder"]) / f"oracle-{spec['name']}.json"
    oracle.write(path, prompts(spec["workload"]), reference, acceptance=0.6)
    os.environ[oracle.ENVIRONMENT] = str(path)


def run(spec: dict[str, Any], job: dict[str, Any], mode: str) -> dict[str, Any]:
    """One engine, one workload; raises what the engine raises."""
    from vllm import SamplingParams

    kept = {name: os.environ.get(name) for name in spec.get("environment", {})}
    os.environ.update(spec.get("environment", {}))
    try:
        with other_pair(spec.get("as_pair")):
            llm = make_engine(spec, job, mode)
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    workload = spec["workload"]
    asked: list[Any] = [{"prompt_token_ids": ids} for ids in prompts(workload)]
    sampling = SamplingParams(max_tokens=workload["new_tokens"], temperature=0.0, ignore_eos=True, detokenize=False)
    result: dict[str, Any] = {"found": {}}
    if spec.get("mutation"):
        from _guard_mutations import MUTATIONS

        MUTATIONS[spec["mutation"]](llm, result["found"])
    try:
        if workload.get("warm_first"):
            llm.generate(asked[:1], sampling, use_tqdm=False)
        if mode == "ascend":
            from ascend_sim import counters

            counters.reset()
        started = time.perf_counter()
        try:
            outputs = llm.generate(asked, sampling, use_tqdm=False)
        except Exception as error:
            if not spec.get("mutation"):
                raise
            from _guard_mutations import steps_after

            return {
                **result,
                "error": f"{type(error).__name__}: {error}",
                "trace": traceback.format_exc(),
                "after": steps_after(llm),
                "guard": guard_result(runner_of(llm)) if guard_of(runner_of(llm)) else None,
            }
        result["seconds"] = time.perf_counter() - started
        result["tokens"] = [list(output.outputs[0].token_ids) for output in outputs]
        if mode == "ascend":
            result["per_decode_step"] = dict(counters.per_decode_step())
            result["totals"] = counters.totals()
        try:
            runner = runner_of(llm)
        except AttributeError:  # worker processes
            runner = None
        if runner is not None:
            result["guard"] = guard_result(runner)
            result["hooks"] = hooks()
            result["runner"] = [cls.__name__ for cls in type(runner).__mro__][:3]
        found = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
        result["metrics"] = {name: int(found.get(source, 0) or 0) for name, source in METRICS.items()}
    finally:
        take_down(llm)
        del llm
        gc.collect()
    return result


def hooks() -> list[str]:
    """The hooks that are in, the kit's own bootstrap left out."""
    from vllm_pairs import installed_hooks

    return sorted(hook.name for hook in installed_hooks() if not hook.name.startswith("vllm_pairs."))


def take_down(llm: Any) -> None:
    """End an engine; further ones of this process start in seconds."""
    os.environ.pop("ASCEND_SIM_ORACLE", None)
    llm.llm_engine.engine_core.shutdown()


def start(job: dict[str, Any]) -> str:
    """Environment and activation of this process; the mode that is active."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ascend_sim import activate

    mode = activate(job["mode"])
    from kv_plan_guard.plugin import load

    load()  # as the entry point does; a second call changes nothing
    admit_unverified()
    return mode


def main(arguments: list[str]) -> int:
    job = json.loads(Path(arguments[0]).read_text())
    mode = start(job)
    failed = False
    for spec in job["runs"]:
        try:
            result = run(spec, job, mode)
        except Exception as error:
            failed = True
            result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            sys.stderr.write(result["trace"])
        (Path(job["folder"]) / f"{spec['name']}.json").write_text(json.dumps({"name": spec["name"], **result}))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if failed else 0)  # the engine's threads hang in an orderly end on some versions


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
