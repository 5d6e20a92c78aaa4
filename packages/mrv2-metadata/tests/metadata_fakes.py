"""A runner of numpy arrays: what the adapter's state reads of `NPUModelRunner`, without torch."""

from types import SimpleNamespace as Holder

import numpy as np
from mrv2_metadata.adapters.state import RunnerState
from mrv2_metadata.config import Config
from mrv2_metadata.stats import Stats

ROWS = 16


class Array:
    """Stands for a host tensor: `numpy()` shares its memory."""

    def __init__(self, values):
        self.values = values

    def numpy(self):
        return self.values


class Event:
    """An event that is done once `landed` says so; counts what was asked of it."""

    def __init__(self):
        self.waits = 0
        self.landed = False

    def synchronize(self):
        self.waits += 1
        self.landed = True

    def query(self):
        return self.landed


def vllm_config(**changes):
    config = Holder(
        speculative_config=None,
        scheduler_config=Holder(async_scheduling=True),
        model_config=Holder(runner_type="generate", is_diffusion=False),
        parallel_config=Holder(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_eplb=False
        ),
        kv_transfer_config=None,
        additional_config={},
    )
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def runner(shared=True, **changes):
    """`shared`: whether numpy view and host tensor of the counts are one memory, as from 0.28 on."""
    counts = np.zeros(ROWS, np.int32)
    made = Holder(
        vllm_config=vllm_config(),
        model_state=Holder(num_new_sampled_tokens_per_step=1),
        attn_groups=[],
        adaptive_verification=None,
        is_last_pp_rank=True,
        req_states=Holder(
            num_computed_tokens_np=counts,
            num_computed_tokens_cpu=Array(counts if shared else np.zeros(ROWS, np.int32)),
            req_id_to_index={},
            index_to_req_id={},
        ),
        num_computed_tokens_cpu=Array(np.zeros(ROWS, np.int32)),
        num_computed_tokens_event=Event(),
        input_buffers=Holder(seq_lens_np=np.zeros(ROWS, np.int32)),
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def admit(runner, name, row, computed):
    """A new request at `row`, `computed` tokens of it in the cache; what the scheduler's output says of it."""
    states = runner.req_states
    states.req_id_to_index[name], states.index_to_req_id[row] = row, name
    states.num_computed_tokens_np[row] = computed
    states.num_computed_tokens_cpu.values[row] = computed
    return Holder(req_id=name)


def output(scheduled, new=(), **changes):
    """A scheduler output: `scheduled` tokens by request; those not in `new` are cached ones."""
    fresh = {request.req_id for request in new}
    values = {
        "num_scheduled_tokens": scheduled,
        "scheduled_new_reqs": list(new),
        "scheduled_cached_reqs": Holder(req_ids=[name for name in scheduled if name not in fresh]),
        "scheduled_spec_decode_tokens": {},
        "has_structured_output_requests": False,
    }
    return Holder(**{**values, **changes})


class State(RunnerState):
    """The state with its one device copy replaced: `device` [ROWS] is what the device counts."""

    def __init__(self, runner, config=None):
        super().__init__(runner, config or Config(enabled=True), Stats())
        self.device_counts = np.zeros(ROWS, np.int32)

    def issue_copy(self, runner):
        runner.num_computed_tokens_cpu.values[:] = self.device_counts
        self.copied = True
        self.stats.counts["length_copies"] += 1

    def step_of(self, runner, scheduler_output):
        """One length update; the lengths of the batch afterwards, in batch order."""
        names = list(scheduler_output.num_scheduled_tokens)
        self.update_lengths(runner, scheduler_output, names)
        return runner.input_buffers.seq_lens_np[: len(names)].tolist()
