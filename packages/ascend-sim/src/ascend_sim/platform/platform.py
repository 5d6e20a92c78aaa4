"""The platform that vLLM finds: a CPU whose attention backend is vllm-ascend's."""

from __future__ import annotations

from typing import Any

from vllm.platforms.cpu import CpuPlatform

from ascend_sim.activation import SimulatorError

ASCEND_BACKEND = "vllm_ascend.attention.attention_v1.AscendAttentionBackend"
SIM_WORKER = "ascend_sim.platform.worker.AscendSimWorker"
CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"


class AscendSimPlatform(CpuPlatform):  # type: ignore[misc]
    """Differs from vLLM's CPU platform in three points: attention backend, worker class, and asynchronous scheduling
    stays allowed.
    """

    @classmethod
    def get_attn_backend_cls(cls, selected_backend: Any, attn_selector_config: Any, *args: Any, **kwargs: Any) -> str:
        """Path of the Ascend attention backend; what has no reference operators is refused by name."""
        for feature in ("use_mla", "use_sparse"):
            if getattr(attn_selector_config, feature, False):
                raise SimulatorError(
                    f"attention with {feature}=True has no reference operators in ascend-sim: use a dense model"
                )
        return ASCEND_BACKEND

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """As on a CPU, but with the simulator's worker and with the asynchronous scheduling the user asked for.

        Graphs are refused, not dropped in silence: an ACL graph replays kernels that exist on an NPU only.
        """
        model = vllm_config.model_config
        if model is not None and not model.enforce_eager:
            mode = getattr(vllm_config.compilation_config.cudagraph_mode, "name", None)
            raise SimulatorError(
                f"enforce_eager={model.enforce_eager!r} (cudagraph_mode {mode}): ACL graphs are not simulated; "
                "run with enforce_eager=True (--enforce-eager)"
            )
        asynchronous = vllm_config.scheduler_config.async_scheduling
        super().check_and_update_config(vllm_config)
        vllm_config.scheduler_config.async_scheduling = asynchronous
        if vllm_config.parallel_config.worker_cls == CPU_WORKER:
            vllm_config.parallel_config.worker_cls = SIM_WORKER

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Host memory cannot be pinned without a device driver."""
        return False
