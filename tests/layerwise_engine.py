"""The whole AscendStoreConnector, layer-wise, in the real engine: ``python layerwise_engine.py JOB.json``.

Under the simulator, with the in-memory pool in the place of the backends. One process runs several engines, each with
its own connector and package configuration, and writes one result file an engine.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LAYERS = 8
PROMPTS = [[(i * 7 + j * 3) % 500 + 5 for i in range(300)] for j in range(3)]
STORE = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"


def build_model() -> str:
    """The simulator's dense model with eight layers: enough for buffers to be shared."""
    from ascend_sim.models import qwen, store

    return str(store.write("dense-eight", qwen.dense(layers=LAYERS), store.default_cache(), 0))


def use_pool() -> None:
    """Put the in-memory pool in the backends' place; key formats and data planes stay upstream's."""
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.backend import backend_map

    for name in ("memcache", "mooncake", "yuanrong"):
        backend_map[name] = {**backend_map[name], "name": "EnginePool", "path": "layerwise_engine_pool"}
        if backend_map[name].get("layerwise_protocol") is True:  # 0.27.1: the protocol lies in the backend's module
            import importlib

            import layerwise_engine_pool

            module = importlib.import_module(f"{STORE}.backend.memcache_backend")
            for function in ("make_full_key", "make_partial_key", "make_hit_check_keys", "extract_layout_config"):
                setattr(layerwise_engine_pool, function, getattr(module, function))


@contextmanager
def loads_first(answer: bool, begins: Callable[[], object]) -> Iterator[None]:
    """`begins` is called as each step begins; with `answer`, loads are started in front of the forward.

    vLLM 0.29 calls `start_load_kv` behind the forward of a step that admits no synchronous load, and vllm-ascend
    0.29.0rc1 prepares its saves there. Until it does so at binding (0.30.0rc2), the scheduler's flag is the answer.
    """
    from vllm.v1.worker.gpu.kv_connector import ActiveKVConnector

    kept = ActiveKVConnector.pre_forward

    def always_first(connector: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> None:
        begins()
        if answer and hasattr(scheduler_output, "has_sync_kv_loads"):
            scheduler_output.has_sync_kv_loads = True
        kept(connector, scheduler_output, *args, **kwargs)

    ActiveKVConnector.pre_forward = always_first
    try:
        yield
    finally:
        ActiveKVConnector.pre_forward = kept


class Order:
    """When a worker's tasks are prepared and when the forward enters its first layer, step by step."""

    def __init__(self, worker: Any) -> None:
        self.events: list[str] = []
        # On the instance: a hook on the class holds its target against a contract.
        prepare, enter = worker.process_layer_data, worker.wait_for_layer_load

        def preparing(requests: Any) -> Any:
            self.events.append("prepared" if requests else "nothing to prepare")
            return prepare(requests)

        def entering() -> Any:
            if worker.current_layer == 0:
                self.events.append("forward")
            return enter()

        worker.process_layer_data, worker.wait_for_layer_load = preparing, entering

    def late_steps(self) -> int:
        """Steps whose tasks were prepared behind their forward."""
        late, ran = 0, False
        for event in self.events:
            late += event == "prepared" and ran
            ran = event == "forward" or (ran and event != "step")
        return late

    def began(self) -> None:
        """A step begins."""
        self.events.append("step")


def run(spec: dict[str, Any], folder: Path, model: str) -> dict[str, Any]:
    """One engine, two rounds of the same prompts: the first saves, the second loads."""
    import layerwise_engine_pool
    from vllm import LLM, SamplingParams

    pool = layerwise_engine_pool.fresh()
    late = {int(layer): seconds for layer, seconds in spec.get("late", {}).items()}
    pool.seconds = lambda direction, layer: late.get(layer, 0.0) if direction == 0 else spec.get("load", 0.001)

    def layer_of(key: str, offset: int) -> int:
        size = pool.objects[key][0].nbytes
        return offset * LAYERS // size if spec.get("backend") != "yuanrong" else -1

    pool.layer_of = layer_of
    ask_for(spec, folder)
    result: dict[str, Any] = {"name": spec["name"]}
    order: Order | None = None
    with loads_first(spec.get("answer", True), lambda: order and order.began()):
        llm = None
        try:
            llm = LLM(**arguments_of(spec, model))
            if spec.get("backend"):
                order = Order(connector_worker())
            prompts = [{"prompt_token_ids": ids} for ids in PROMPTS]
            sampling = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True, detokenize=False)
            for number in (1, 2):
                forget_misses(llm)
                began = time.perf_counter()
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
                result[f"seconds_{number}"] = time.perf_counter() - began
                latencies = [getattr(output.metrics, "first_token_latency", None) for output in outputs]
                result[f"first_token_s_{number}"] = [value for value in latencies if value]  # with log stats on only
                result[f"tokens_{number}"] = [list(output.outputs[0].token_ids) for output in outputs]
                result[f"transfers_{number}"] = dict(pool.count)
            result["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # of the process until here
            if order is not None:
                result |= look(order, pool)
            return result
        finally:
            if llm is not None:
                llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
            close_timelines()


def forget_misses(llm: Any) -> None:
    """The connector's scheduler side remembers for 30 s that a block was not there: as if that time had passed."""
    connector = getattr(llm.llm_engine.engine_core.engine_core.scheduler, "connector", None)
    getattr(getattr(connector, "connector_scheduler", None), "_lw_block_hit_cache", {}).clear()


def ask_for(spec: dict[str, Any], folder: Path) -> None:
    """The package's configuration of the next engine, by the environment: one process holds several."""
    os.environ.pop("VLLM_LAYERWISE_SCHED", None)
    if spec.get("hook") is not None:
        hook = {**spec["hook"], "strict": True}
        if hook.pop("record", False):
            hook["timeline"] = str(folder / f"{spec['name']}.timelines")
        os.environ["VLLM_LAYERWISE_SCHED"] = json.dumps(hook)


def arguments_of(spec: dict[str, Any], model: str) -> dict[str, Any]:
    """Arguments of ``vllm.LLM``; with a backend, those of the connector too."""
    arguments: dict[str, Any] = {
        "model": model, "max_model_len": 512, "dtype": "float32", "enforce_eager": True, "block_size": 128,
        "max_num_seqs": 4, "seed": 0, "kv_cache_memory_bytes": 96 << 20, "enable_prefix_caching": False,
        "disable_log_stats": True, **spec.get("engine", {}),
    }  # fmt: skip
    if spec.get("backend"):
        from vllm.config import KVTransferConfig

        arguments["kv_transfer_config"] = KVTransferConfig(
            kv_connector="AscendStoreConnector", kv_role="kv_both",
            kv_connector_extra_config={"backend": spec["backend"], "use_layerwise": True, **spec.get("extra", {})},
        )  # fmt: skip
    return arguments


def connector_worker() -> Any:
    """The connector's worker side, of this process's engine."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group().connector_worker


def look(order: Order, pool: Any) -> dict[str, Any]:
    """The worker's threads and leases behind the last step."""
    worker = connector_worker()
    receiver = worker.kv_recv_thread
    loads = worker.__dict__.get("_layerwise_sched")
    found = {
        "late_steps": order.late_steps(),
        "events": order.events[:12],
        "open_leases": len(pool.open_leases()),
        "pool_errors": pool.errors[:3],
        "unfinished": receiver.request_queue.unfinished_tasks,
        "alive": receiver.is_alive(),
        "sources": {str(layer): source for layer, source in worker.prefetch_layer_map.items()},
        "prefetch": worker.num_prefetch_layers,
        "queue": type(receiver.request_queue).__name__,
        "handler": type(receiver.__dict__.get("_handle_request")).__name__,
        "objects": len(pool.finished),
    }
    if loads is not None:
        counts = loads.queue.dispatcher.counts
        found["counts"] = {name: getattr(counts, name) for name in type(counts).__slots__}
        found["policy"] = loads.queue.dispatcher.policy.name
    return found


def close_timelines() -> None:
    """Write what the recorders hold; the next engine has a folder of its own."""
    process = sys.modules.get("layerwise_sched.adapters.process")
    for numbers in list(getattr(process, "_by_folder", {}).values()):
        if numbers.spool is not None:
            numbers.spool.close()


def try_unverified() -> None:
    """With KIT_TRY_UNVERIFIED=1 the hooks go in on a pair without a row: the run that earns the row."""
    if os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        from layerwise_sched.adapters import install

        install._unverified = lambda pair: None


def main(arguments: list[str]) -> int:
    """Run a job; 1 where an engine raised."""
    job = json.loads(Path(arguments[0]).read_text())
    folder = Path(job["folder"])
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import ascend_sim

    ascend_sim.activate()
    from layerwise_sched.plugin import load

    load()  # as the entry point does; a second call changes nothing
    model = build_model()
    failed = False
    pool_in = False
    for spec in job["runs"]:
        try:
            if spec.get("backend") and not pool_in:
                from vllm.plugins import load_general_plugins

                load_general_plugins()
                use_pool()
                try_unverified()
                pool_in = True
            result = run(spec, folder, model)
        except BaseException as error:
            failed = True
            result = {"name": spec["name"], "error": repr(error), "trace": traceback.format_exc()}
        path = folder / f"{spec['name']}.json"
        path.write_text(json.dumps(result, indent=1))
        print(spec["name"], {k: v for k, v in result.items() if k not in ("trace", "events")}, flush=True)
    return int(failed)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)
