"""Engines whose connector claims a prompt's tokens, cannot load them, and says so: the plans of the steps behind that.

vLLM's own recovery (`kv_load_failure_policy="recompute"`): the scheduler takes the request's computed tokens back to
the last block that holds and lets the rest be computed. Nothing is ever loaded here, so every claimed token has to be
computed after all, and tokens must be those of an engine without a connector. ``python guard_rejected_load.py
JOB.json`` runs the job's specs one after the other: `load` ("sync": in the step that uses it, "async": before it, or
null for no connector), `async_scheduling`, `action` of the guard.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

BLOCK = 128
PROMPTS = [[(7 * row + 3 * column) % 90 + 5 for column in range(420 + row)] for row in range(4)]


def run(spec: dict[str, Any], model: str) -> dict[str, Any]:
    """Tokens, and what the guard counted and found."""
    from vllm import LLM, SamplingParams

    os.environ["VLLM_KV_PLAN_GUARD"] = json.dumps({"enabled": True, "action": spec.get("action", "log")})
    arguments: dict[str, Any] = {
        "model": model, "max_model_len": 1024, "dtype": "float32", "enforce_eager": True, "block_size": BLOCK,
        "max_num_seqs": 4, "seed": 0, "kv_cache_memory_bytes": 96 << 20, "enable_prefix_caching": False,
        "async_scheduling": bool(spec.get("async_scheduling")),
    }  # fmt: skip
    if spec.get("load"):
        arguments["kv_transfer_config"] = {
            "kv_connector": "RejectingConnector", "kv_connector_module_path": "guard_rejecting_connector",
            "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"load": spec["load"]},
        }  # fmt: skip
    llm = LLM(**arguments)
    core = llm.llm_engine.engine_core.engine_core
    guard = core.model_executor.driver_worker.worker.model_runner.__dict__["_kv_plan_guard"]
    sampling = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, detokenize=False)
    result: dict[str, Any] = {"name": spec["name"]}
    try:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in PROMPTS], sampling, use_tqdm=False)
        result["tokens"] = [list(output.outputs[0].token_ids) for output in outputs]
        guard.poll()
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"[:3000]
    result["signatures"] = [[*key, number] for key, number in guard.guard.signatures().items()]
    result["audits"] = guard.guard.stats.to_json()["counts"]["audits"]
    if spec.get("load"):
        from guard_rejecting_connector import COUNTS

        result |= COUNTS
        COUNTS.update(claimed=0, rejected=0)
    llm.llm_engine.engine_core.shutdown()
    return result


def main(arguments: list[str]) -> None:
    """Write one result a spec; the process ends with what it has."""
    job = json.loads(Path(arguments[0]).read_text())
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import ascend_sim

    ascend_sim.activate()
    from kv_plan_guard.plugin import load
    from vllm.plugins import load_general_plugins

    load()
    load_general_plugins()
    import layerwise_engine

    model = layerwise_engine.build_model()
    for spec in job["runs"]:
        try:
            result = run(spec, model)
        except BaseException as error:
            result = {"name": spec["name"], "failed": repr(error), "trace": traceback.format_exc()}
        (Path(job["folder"]) / f"{spec['name']}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
