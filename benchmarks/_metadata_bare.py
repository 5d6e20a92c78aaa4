"""A runner without an engine: the real `NPUModelRunner` methods of the length update on real request state.

For the host benchmark, and for what no engine here can run (diffusion-style generation). Import it only in a process
in which the simulator is active.
"""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

ROWS = 512


class Namespace(SimpleNamespace):
    """A SimpleNamespace that a weak reference can be made to, as to vLLM's configuration."""


class Event:
    """Stands for the length copy's event and counts the waits for it."""

    def __init__(self) -> None:
        self.waits = 0

    def synchronize(self) -> None:
        """Count; the copies of a bare runner land at once."""
        self.waits += 1

    def record(self, stream: Any = None) -> None:
        """Nothing to mark."""


def ordinary_config(**changes: Any) -> Namespace:
    """The parts of a vLLM configuration that the facts are read from, for a dense model without any feature."""
    config = Namespace(
        speculative_config=None,
        scheduler_config=SimpleNamespace(async_scheduling=True),
        model_config=SimpleNamespace(runner_type="generate", is_diffusion=False, hf_config=None),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_eplb=False
        ),
        kv_transfer_config=None,
        additional_config={},
    )
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def bare_runner(num_reqs: int, config: Namespace, tokens_per_step: int = 1) -> tuple[Any, Any, list[str], Any]:
    """A runner that holds what the update reads, a scheduler output of one decode step, its ids, and its index.

    The index (`batch_req_state`) is None on pairs whose `prepare_inputs` is not given one.
    """
    import numpy as np
    import torch
    from vllm_ascend.worker.v2.input_batch import AscendInputBuffers
    from vllm_ascend.worker.v2.model_runner import NPUModelRunner
    from vllm_ascend.worker.v2.states import AscendRequestState

    device = torch.device("cpu")
    runner = object.__new__(NPUModelRunner)
    runner.req_states = AscendRequestState(ROWS, 64, 512, 0, 512, device)
    runner.input_buffers = AscendInputBuffers(ROWS, 512, device)
    runner.num_computed_tokens_cpu = torch.zeros(ROWS, dtype=torch.int32)
    runner.num_computed_tokens_event = Event()
    runner.speculator = None
    runner.sync_spec_pp_cpu_counts = False
    runner.is_last_pp_rank = True
    runner.adaptive_verification = None
    runner.attn_groups = []
    runner.model_config = config.model_config
    runner.model_state = SimpleNamespace(num_new_sampled_tokens_per_step=tokens_per_step)
    runner.vllm_config = config
    req_ids = [f"cmpl-{i:032x}-0" for i in range(num_reqs)]
    for req_id in req_ids:
        runner.req_states.add_request(req_id, 20, list(range(20)), 20, max_tokens=8)
    scheduler_output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(req_ids, 1),
        scheduled_cached_reqs=SimpleNamespace(req_ids=req_ids),
        scheduled_new_reqs=[],
        scheduled_spec_decode_tokens={},
        has_structured_output_requests=False,
    )
    index = np.array([runner.req_states.req_id_to_index[req_id] for req_id in req_ids], np.intp)
    given = "batch_req_state" in inspect.signature(inspect.unwrap(NPUModelRunner.prepare_inputs)).parameters
    held = SimpleNamespace(idx_mapping_np=index, num_scheduled_tokens=np.ones(num_reqs, np.int32))
    return runner, scheduler_output, req_ids, held if given else None


def upstream(method: str) -> Any:
    """Upstream's own function, below whatever stands in its place."""
    from vllm_ascend.worker.v2.model_runner import NPUModelRunner

    return inspect.unwrap(vars(NPUModelRunner)[method])


def leave_to_upstream(feature: str) -> dict[str, Any]:
    """A step's copy and length update through the hooked methods of a runner that the hook declines, and upstream's.

    `feature`: "diffusion" or "tokens_per_step". The device has rejected tokens that the host still counts, so that a
    correction in one of the two and not in the other shows in the lengths.
    """
    import torch
    from ascend_sim import counters
    from mrv2_metadata.adapters import install
    from mrv2_metadata.config import Config
    from mrv2_metadata.stats import Stats

    asked = Config(enabled=True)
    if not install.enable(asked, ordinary := ordinary_config()):  # an ordinary engine of this process has the hooks
        raise RuntimeError("the hooks did not go in")
    changes: dict[str, Any] = {}
    if feature == "diffusion":
        changes["model_config"] = SimpleNamespace(runner_type="generate", is_diffusion=True, hf_config=None)
    config = ordinary_config(**changes)
    found: dict[str, Any] = {"enabled": install.enable(asked, config) if feature == "diffusion" else None}
    shared = install.metadata()
    assert shared is not None
    shared.admit(config, asked)
    shared.stats = Stats()  # of these calls alone
    for side in ("upstream", "hooked"):
        runner, scheduler_output, req_ids, held = bare_runner(6, config, 4 if feature == "tokens_per_step" else 1)
        runner.num_computed_tokens_stream = torch.npu.Stream()
        runner.num_computed_tokens_event = torch.npu.Event()
        runner.req_states.num_computed_tokens.gpu[runner.req_states.req_id_to_index[req_ids[2]]] = 17
        if side == "hooked":
            shared.state_of(runner).batch_req_state = held
        copy = upstream("_copy_num_computed_tokens_to_cpu") if side == "upstream" else None
        update = upstream("_update_seq_lens_cpu") if side == "upstream" else None
        counters.reset()
        (copy or type(runner)._copy_num_computed_tokens_to_cpu)(runner)
        (update or type(runner)._update_seq_lens_cpu)(runner, scheduler_output, req_ids)
        found[side] = {"lengths": runner.input_buffers.seq_lens_np[:6].tolist(), **counters.totals()}
    found["declined"] = shared.state_of(runner).declined
    found["counts"] = dict(shared.stats.counts)
    del ordinary
    install.disable()
    return found
