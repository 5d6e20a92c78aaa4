"""AscendStoreConnector in guarded engines, for test_guard_connector.py: ``python guard_connector_run.py JOB.json``.

The job: `folder` and `runs`; a run names its pool (`memory`: the in-memory one of the layer-wise tests, `mooncake`: a
real master and store over TCP), engine arguments, the guard's action and a fault of the connector, planted in the
connector's own scheduler side. Two rounds of the same prompts: the first saves, the second loads.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import layerwise_engine

PROMPTS = layerwise_engine.PROMPTS
KEPT: list[Any] = []


def plant(fault: str, found: dict[str, Any]) -> None:
    """Change what the connector's scheduler side makes; `found` counts in how many steps."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.pool_scheduler import KVPoolScheduler

    build = KVPoolScheduler.build_connector_meta
    found["planted"] = 0

    def build_connector_meta(self: Any, scheduler_output: Any) -> Any:
        metadata = build(self, scheduler_output)
        if fault == "wrong table":
            for request in metadata.requests[-1:]:
                rows = [list(row) for row in request.block_ids_by_group]
                if len(rows[0]) >= 2 and not found["planted"]:
                    rows[0][0], rows[0][1] = rows[0][1], rows[0][0]
                    request.block_ids_by_group = rows
                    found["planted"] += 1
        elif fault == "no fence" and metadata.released_req_ids:
            metadata.released_req_ids = set()
            found["planted"] += 1
        return metadata

    KVPoolScheduler.build_connector_meta = build_connector_meta
    found["undo"] = lambda: setattr(KVPoolScheduler, "build_connector_meta", build)


def run(spec: dict[str, Any], folder: Path, model: str) -> dict[str, Any]:
    import layerwise_engine_pool  # its base class is vllm-ascend's: the simulator must be active by now
    from vllm import LLM, SamplingParams

    master = None
    if spec["pool"] == "mooncake":
        from layerwise_mooncake import Master, make_pool

        master = Master(folder)
        layerwise_engine_pool.POOL = make_pool(master)
    else:
        pool = layerwise_engine_pool.fresh()
        pool.layer_of = lambda key, offset: 0
    os.environ["VLLM_KV_PLAN_GUARD"] = json.dumps({"enabled": True, "action": spec.get("action", "log")})
    found: dict[str, Any] = {}
    if spec.get("fault"):
        plant(spec["fault"], found)
    llm, result = None, {"name": spec["name"]}
    arguments = layerwise_engine.arguments_of({"backend": "mooncake", **spec}, model)
    arguments["disable_log_stats"] = False
    try:
        with layerwise_engine.loads_first(True, lambda: None):
            llm = LLM(**arguments)
            runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
            guard = runner.__dict__["_kv_plan_guard"]
            sampling = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, detokenize=False)
            prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
            try:
                for number in (1, 2):
                    layerwise_engine.forget_misses(llm)
                    outputs = llm.generate(prompts, sampling, use_tqdm=False)
                    result[f"tokens_{number}"] = [list(output.outputs[0].token_ids) for output in outputs]
            except Exception as error:
                result["error"] = f"{type(error).__name__}: {error}"[:3000]
            metrics = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
            result["external_tokens"] = int(metrics.get("vllm:external_prefix_cache_hits", 0) or 0)
            if "error" not in result:
                guard.poll()
            result |= {
                "counts": guard.guard.stats.to_json(),
                "signatures": [[*key, number] for key, number in guard.guard.signatures().items()],
                "connector": guard.connector.counts,
                "checks": list(guard.layout.connector_checks),
                "coverage": [[line.code.value, line.active, line.ran] for line in guard.guard.coverage()],
                "planted": found.get("planted"),
            }
        return result
    finally:
        found.get("undo", lambda: None)()
        if master is not None:
            # The connector's look-up thread holds a ZeroMQ socket and never ends, and so would the end of its context.
            KEPT.append(llm)
            master.kill()
        elif llm is not None:
            llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()


def main(arguments: list[str]) -> None:
    job = json.loads(Path(arguments[0]).read_text())
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if any(spec["pool"] == "mooncake" for spec in job["runs"]):
        sys.path.insert(0, os.environ["KIT_MOONCAKE"])  # before the simulator puts a stand-in where none is installed
    import ascend_sim

    ascend_sim.activate()
    from kv_plan_guard.plugin import load
    from vllm.plugins import load_general_plugins

    load()
    if os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        from kv_plan_guard.adapters import install

        install._unverified = lambda pair: None
    load_general_plugins()
    layerwise_engine.use_pool()
    model = layerwise_engine.build_model()
    for spec in job["runs"]:
        try:
            result = run(spec, Path(job["folder"]), model)
        except BaseException as error:
            result = {"name": spec["name"], "failed": repr(error), "trace": traceback.format_exc()}
        (Path(job["folder"]) / f"{spec['name']}.json").write_text(json.dumps(result))
        print(spec["name"], result.get("failed", "done"), flush=True)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
