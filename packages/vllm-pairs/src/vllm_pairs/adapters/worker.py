"""The gate: one hook before a worker's device is set up, where the config exists and the model runner does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_pairs.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

# Fires in one process and in many. `init_worker` is too late in worker processes (plugins are loaded inside it), and
# an import hook on the runner's module would miss the second engine of a process.
GATE_TARGET = "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device"


def gate_hook(on_init_device: Callable[[Any], None], target: str = GATE_TARGET) -> Hook:
    """The hook that hands `vllm_config` over before `init_device` runs."""

    def gate(call: Callable[..., Any], wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        on_init_device(wrapper.vllm_config)
        return call(wrapper, *args, **kwargs)

    return Hook(name="vllm_pairs.gate", target=target, wrapper=gate, signature="(self)", order=-1000)
