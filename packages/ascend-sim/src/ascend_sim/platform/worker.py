"""The worker: vLLM's CPU worker with vllm-ascend's own worker patches and its NPUModelRunner."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from ascend_sim import runtime
from ascend_sim.models import oracle
from ascend_sim.platform import repairs


class AscendSimWorker(CPUWorker):  # type: ignore[misc]
    """Does what vllm-ascend's NPUWorker does at the same points, as far as a CPU can (source:
    ``vllm_ascend/worker/worker.py``).
    """

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        repairs.before_worker()
        from vllm_ascend.ascend_config import init_ascend_config

        init_ascend_config(vllm_config)
        super().__init__(vllm_config, *args, **kwargs)

    def init_device(self) -> None:
        """Create the device and, in place of the CPU runner, the real NPUModelRunner."""
        import vllm.v1.worker.cpu.model_runner as cpu_runner

        # The CPU worker looks the class up in its module at this moment; there is no other seam.
        original, cpu_runner.CPUModelRunner = cpu_runner.CPUModelRunner, sim_runner_class()
        try:
            super().init_device()
        finally:
            cpu_runner.CPUModelRunner = original

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model, then replace the speculator's drafts where ``ASCEND_SIM_ORACLE`` names a reference."""
        super().load_model(*args, **kwargs)
        oracle.attach_from_environment(self.model_runner)


def sim_runner_class() -> type:
    """NPUModelRunner with the one method that only the CPU worker calls."""
    from vllm_ascend.worker.v2.model_runner import NPUModelRunner

    class NPUModelRunnerOnCPU(NPUModelRunner):  # type: ignore[misc]
        def warming_up_model(self) -> None:
            self.profile_run()

    runtime.prepare_runner_class(NPUModelRunnerOnCPU)
    return NPUModelRunnerOnCPU
