"""Functions that run inside the engine's workers, sent there by ``LLM.collective_rpc``; the first argument is the
worker. They must stay module-level functions: a worker in another process finds them by name.
"""

from __future__ import annotations

import os
from typing import Any

_profiler: Any = None
_first_step = 0


def state(worker: Any) -> dict[str, Any]:
    """Hooks in place, graphs captured, device and torch_npu of this worker."""
    import torch
    from vllm_pairs import installed_hooks

    runner = getattr(worker, "model_runner", None)
    manager = getattr(runner, "cudagraph_manager", None)
    found: dict[str, Any] = {
        "rank": int(getattr(worker, "rank", 0)),
        "runner": type(runner).__name__,
        "hooks": sorted({hook.name for hook in installed_hooks()}),
        "graphs": len(getattr(manager, "graphs", None) or ()),
        "torch": torch.__version__,
    }
    if not os.environ.get("ASCEND_SIM"):
        import torch_npu

        found |= {"torch_npu": torch_npu.__version__, "chip": torch.npu.get_device_name()}
    return found


def start_profile(worker: Any, folder: str, steps: int) -> None:
    """Start torch_npu's profiler: one step of warm-up, then `steps` recorded ones, exported under `folder`."""
    global _profiler
    import torch_npu

    profiler = torch_npu.profiler
    options = profiler._ExperimentalConfig(
        export_type=profiler.ExportType.Text, profiler_level=profiler.ProfilerLevel.Level1
    )
    _profiler = profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        schedule=profiler.schedule(wait=0, warmup=1, active=steps, repeat=1),
        on_trace_ready=profiler.tensorboard_trace_handler(folder, worker_name=f"rank{getattr(worker, 'rank', 0)}"),
        experimental_config=options,
    )
    _profiler.start()


def step_profile(worker: Any) -> None:
    """An engine step ended. No synchronisation here: it would add a wait of our own to what is counted."""
    _profiler.step()


def stop_profile(worker: Any) -> None:
    """End the profiler."""
    global _profiler
    _profiler.stop()
    _profiler = None


def start_counting(worker: Any) -> None:
    """The simulator's part of `start_profile`: remember which step is next."""
    global _first_step
    from ascend_sim import counters

    known = counters.steps()
    _first_step = known[-1].index + 1 if known else 0


def counted(worker: Any, steps: int) -> dict[str, Any]:
    """The simulator's counts of `steps` steps after `start_counting` and one of warm-up."""
    from ascend_sim import counters

    chosen = [one for one in counters.steps() if one.index > _first_step][:steps]
    return {
        "rank": int(getattr(worker, "rank", 0)),
        "steps": len(chosen),
        "ordinary_decode": sum(one.ordinary_decode for one in chosen),
        "requests": sorted({one.num_reqs for one in chosen}),
        "d2h": sum(one.total(counters.D2H) for one in chosen),
        "stream_wait": sum(one.total(counters.STREAM_WAIT) for one in chosen),
        "event_wait": sum(one.total(counters.EVENT_WAIT) for one in chosen),
    }
