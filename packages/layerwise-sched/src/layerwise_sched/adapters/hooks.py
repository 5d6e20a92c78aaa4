"""The wrappers on vllm-ascend's classes. A worker that nobody asked for passes through untouched."""

from __future__ import annotations

import importlib
import logging
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from layerwise_sched.adapters.contracts import STORE
from layerwise_sched.adapters.loads import Loads
from layerwise_sched.adapters.process import numbers_for
from layerwise_sched.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.config import Config

Call: TypeAlias = "Callable[..., Any]"
logger = logging.getLogger(__name__)
ATTRIBUTE = "_layerwise_sched"
_starting = threading.local()


class Hooks:
    """config_of: the package's configuration in the engine of a vLLM config, or None. facts: written to the file."""

    def __init__(self, config_of: Callable[[Any], Config | None], facts: dict[str, Any]) -> None:
        self._config_of = config_of
        self._facts = facts
        self._fence = importlib.import_module(f"{STORE}.attention_fence")

    def adopt(self, worker: Any, config: Config) -> Loads:
        """Let this worker's receive thread be attached when it is made."""
        loads = Loads(config, numbers_for(config, self._facts), worker)
        setattr(worker, ATTRIBUTE, loads)
        return loads

    # -- worker -----------------------------------------------------------------------------------------------------
    def worker_init(self, call: Call, worker: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        """For `KVPoolWorker.__init__`."""
        call(worker, vllm_config, *args, **kwargs)
        config = self._config_of(vllm_config)
        if config is not None and config.active and worker.use_layerwise:
            self.adopt(worker, config)

    def start_threads(self, call: Call, worker: Any) -> None:
        """For `_start_kv_transfer_threads`: the receive thread made inside belongs to this worker."""
        _starting.loads = worker.__dict__.get(ATTRIBUTE)
        try:
            call(worker)
        finally:
            _starting.loads = None

    def prepare(self, call: Call, worker: Any, requests: Any) -> Any:
        """For `process_layer_data`: how many requests the step has, and leases taken for it."""
        result = call(worker, requests)
        loads: Loads | None = worker.__dict__.get(ATTRIBUTE)
        if loads is not None:
            loads.requests = len(requests)
            taken = {key for request in requests for key in (getattr(request, "load_keys", None) or ())}
            if taken and loads.plan is not None and loads.plan.path == "gva":
                loads.leases(len(taken))
        return result

    def wait_for_layer_load(self, call: Call, worker: Any) -> Any:
        """For `wait_for_layer_load`: the compute thread's own stall, and where a step begins."""
        loads: Loads | None = worker.__dict__.get(ATTRIBUTE)
        if loads is None:
            return call(worker)
        layer = worker.current_layer
        if layer == 0:
            loads.begin_step()
        begin = clock()
        try:
            return call(worker)
        finally:
            loads.stalled(layer, begin)
            loads.name_gate(self._fence.get_attention_compute_start_gate())
            # A role that only loads advances here, and not in `save_kv_layer`.
            if worker.current_layer != layer and worker.current_layer >= worker.num_layers:
                loads.end_step()

    def save_kv_layer(self, call: Call, worker: Any, *args: Any, **kwargs: Any) -> Any:
        """For `save_kv_layer`: when the save's NPU event was recorded, and where a step ends."""
        loads: Loads | None = worker.__dict__.get(ATTRIBUTE)
        if loads is None:
            return call(worker, *args, **kwargs)
        layer = worker.current_layer
        begin = clock()
        result = call(worker, *args, **kwargs)
        if worker.current_layer != layer:
            loads.save_recorded(layer, begin)
            if worker.current_layer >= worker.num_layers:
                loads.end_step()
        return result

    def set_slot_waiter(self, call: Call, worker: Any, waiter: Any) -> Any:
        """For `set_external_slot_release_waiter`, which may come after the threads have started."""
        result = call(worker, waiter)
        loads: Loads | None = worker.__dict__.get(ATTRIBUTE)
        if loads is not None and loads.receiver is not None:
            loads.slot_waiter_changed()
        return result

    # -- receive threads ----------------------------------------------------------------------------------------------
    def receiver_init(self, call: Call, receiver: Any, *args: Any, **kwargs: Any) -> None:
        """For the `__init__` of the two layer-wise receive threads."""
        call(receiver, *args, **kwargs)
        loads: Loads | None = getattr(_starting, "loads", None)
        if loads is None:
            return
        kept = dict(receiver.__dict__)
        try:
            loads.attach(receiver)
        except Exception:
            receiver.__dict__.clear()
            receiver.__dict__.update(kept)
            loads.give_up()
            if loads.config.strict:
                raise
            logger.exception("layerwise-sched is not on %s: upstream's own queue is", receiver.name)
