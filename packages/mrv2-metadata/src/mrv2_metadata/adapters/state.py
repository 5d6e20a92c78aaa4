"""What the hook keeps for one runner, and what it does to that runner's lengths in a step.

The order of a step: `prepare_inputs` calls the length update, which fills upper bounds and leaves a correction
pending; `prepare_attn` launches block-table and slot work; only then, the last moment before the attention builders
read the lengths, is the correction's copy awaited and written back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from mrv2_metadata import seq_lens
from mrv2_metadata.adapters.facts import runner_facts, step_facts
from mrv2_metadata.adapters.order import after_main
from mrv2_metadata.authority import Action, Decision, Source, decide, decide_runner, explain

if TYPE_CHECKING:
    from mrv2_metadata.adapters.verify import Verifier
    from mrv2_metadata.config import Config
    from mrv2_metadata.stats import Stats

logger = logging.getLogger(__name__)
ATTRIBUTE = "_mrv2_metadata"
# Builders whose lengths were checked in the engine; a runner with any other is declined by name.
CHECKED_BUILDERS = frozenset({"vllm_ascend.attention.attention_v1.AscendAttentionMetadataBuilder"})


@dataclass(slots=True)
class Batch:
    """The batch being prepared: rows and scheduled tokens [num_reqs] in batch order, and how its lengths stand.

    One object a runner, filled again in each step: making one costs as much as the gather.
    """

    req_ids: list[str]
    index: Any
    scheduled: Any
    decision: Decision
    cached_rows: Any = None  # rows still to correct, read only where the lengths are not exact
    exact: bool = True


class RunnerState:
    """The hook's state of one runner; made before its first step, when the builders exist."""

    def __init__(self, runner: Any, config: Config, stats: Stats) -> None:
        self.config = config
        self.stats = stats
        self.facts = runner_facts(runner.vllm_config, config, runner)
        self.decision = decide_runner(self.facts)
        self.declined = _declined(runner, self.decision)
        self.owns_late_rank = _sees_deferred_rejections(self.facts)
        states = runner.req_states
        self.mirror = states.num_computed_tokens_cpu.numpy()
        self.shared = bool(np.shares_memory(self.mirror, states.num_computed_tokens_np))
        self.staged = runner.num_computed_tokens_cpu.numpy()
        # What each row's last step left behind; -1 where no step of this hook has seen the row.
        self.expected = np.full(len(self.mirror), -1, np.int32)
        # The count at each row's last step: with trusted speculation a rejection may rewind to just above it.
        self.floor = np.full(len(self.mirror), -1, np.int32)
        self.speculates = self.facts.speculative_method is not None
        self.copied = False
        self.batch_req_state: Any = None
        self.batch = Batch([], np.zeros(0, np.intp), np.zeros(0, np.int32), self.decision)
        self.by_device = self.decision.source is Source.DEVICE
        self.step = 0
        self.started_ns = 0
        self.open_build: tuple[int, int] | None = None  # addresses of host and device query_start_loc
        self.device: Any = None
        self.verifier: Verifier | None = None
        self._decisions: dict[tuple[bool | None, bool, bool, bool], Decision] = {}

    # -- decisions ----------------------------------------------------------------------------------------------------
    def decide_step(self, scheduler_output: Any, continuous: bool) -> Decision:
        """The decision for a step; remembered by what can differ between steps, since rules cost microseconds."""
        drafts = getattr(scheduler_output, "scheduled_spec_decode_tokens", None)
        structured = getattr(scheduler_output, "has_structured_output_requests", None)
        if continuous and drafts == {} and structured is False:
            return self.decision  # the step in which nothing special happens, decided once
        # Any number of drafts is one case; what is no dict and no flag is the case of its own that nothing is known of.
        key = (bool(drafts) if isinstance(drafts, dict) else None, structured is True, structured is False, continuous)
        found = self._decisions.get(key)
        if found is None:
            found = self._decisions[key] = decide(self.facts, step_facts(scheduler_output, continuous))
        return found

    # -- copies -------------------------------------------------------------------------------------------------------
    def after_postprocess(self, runner: Any) -> None:
        """Where upstream copies all device counts back: copy the live rows, or nothing where the host's are exact.

        A non-last pipeline rank applies rejections at the start of a later step, so its copy waits until then.
        """
        if self.by_device and not self.owns_late_rank:
            self.issue_copy(runner)

    def issue_copy(self, runner: Any) -> None:
        """Queue one D2H of the rows of every live request behind everything on the current stream."""
        import torch

        states = runner.req_states
        start, stop = seq_lens.live_span(states.index_to_req_id, len(self.mirror))
        stream = runner.num_computed_tokens_stream
        main = torch.npu.current_stream()
        with torch.npu.stream(stream):
            after_main(stream, main)
            runner.num_computed_tokens_cpu[start:stop].copy_(
                states.num_computed_tokens.gpu[start:stop], non_blocking=True
            )
            runner.num_computed_tokens_event.record()
        self.copied = True
        self.stats.counts["length_copies"] += 1
        self.stats.counts["length_copy_bytes"] += 4 * (stop - start)

    def await_copy(self, runner: Any) -> None:
        """The one wait of a corrected step."""
        runner.num_computed_tokens_event.synchronize()

    # -- a step -------------------------------------------------------------------------------------------------------
    def update_lengths(self, runner: Any, scheduler_output: Any, req_ids: list[str]) -> None:
        """Fill the host lengths of the batch [num_reqs], exact or as upper bounds with a correction pending."""
        started = perf_counter_ns()
        states = runner.req_states
        held = self.batch_req_state
        if held is not None:
            index, scheduled = held.idx_mapping_np, held.num_scheduled_tokens
        else:
            index = seq_lens.rows_of(req_ids, states.req_id_to_index, len(req_ids))
            scheduled = seq_lens.scheduled_of(req_ids, scheduler_output.num_scheduled_tokens, len(req_ids))
        computed = states.num_computed_tokens_np[index]
        continuous = self.by_device or self._continuous(scheduler_output, states, index, computed)
        decision = self.decide_step(scheduler_output, continuous)
        batch = self.batch
        batch.req_ids, batch.index, batch.scheduled = req_ids, index, scheduled
        batch.decision, batch.exact = decision, True
        lengths = seq_lens.update(computed, scheduled, runner.input_buffers.seq_lens_np)
        self.expected[index] = lengths
        if self.speculates:
            self.floor[index] = computed
        counts = self.stats.counts
        counts["steps"] += 1
        self.step += 1
        if decision.action is None:
            if not self.shared:
                self.mirror[index] = computed
            counts["scheduler_steps"] += 1
        else:
            counts["device_steps"] += 1
            self.stats.reasons.update(decision.reasons)
            self._begin_correction(runner, scheduler_output, batch)
        self.stats.update.add(perf_counter_ns() - started)

    def _continuous(self, scheduler_output: Any, states: Any, index: Any, computed: Any) -> bool:
        """Whether every running request stands where its last step left it.

        A new request, and one resumed after preemption, comes with its own count and has no past here.
        """
        for request in scheduler_output.scheduled_new_reqs:
            row = states.req_id_to_index[request.req_id]
            self.expected[row] = states.num_computed_tokens_np[row]
            self.floor[row] = -1
        if self.speculates:
            return seq_lens.advanced(computed, self.floor[index], self.expected[index])
        return seq_lens.continuous(computed, self.expected[index])

    def _begin_correction(self, runner: Any, scheduler_output: Any, batch: Batch) -> None:
        cached = scheduler_output.scheduled_cached_reqs.req_ids
        if not cached:
            return  # new requests alone: each brought its own count
        batch.cached_rows = seq_lens.rows_of(cached, runner.req_states.req_id_to_index, len(cached))
        batch.exact = False
        if not self.copied:
            self.issue_copy(runner)
        if not self.by_device:
            # Forced by this step alone: a rewound count may look like an untouched prompt to what reads it next.
            self.finish_correction(runner, None)

    def host_lengths(self, runner: Any) -> seq_lens.HostLengths:
        """The batch's host lengths as they stand, each with its promise."""
        batch = self.batch
        num_reqs = len(batch.index)
        exact = np.ones(num_reqs, np.bool_)
        if not batch.exact:
            exact[np.isin(batch.index, batch.cached_rows)] = False
        return seq_lens.HostLengths(runner.input_buffers.seq_lens_np[:num_reqs], exact)

    def finish_correction(self, runner: Any, input_batch: Any) -> None:
        """Await the copy and write the device's counts over the running requests' lengths; nothing where exact."""
        batch = self.batch
        if batch.exact:
            return
        self.await_copy(runner)
        self.copied = False
        counts = self.stats.counts
        counts["length_waits"] += 1
        counts["corrected_rows"] += seq_lens.correct(self.mirror, self.staged, batch.cached_rows)
        computed = self.mirror[batch.index]
        lengths = seq_lens.update(computed, batch.scheduled, runner.input_buffers.seq_lens_np)
        self.expected[batch.index] = lengths
        batch.exact = True
        if input_batch is not None and self.shared:
            # Upstream corrects before it gathers these two; with a late wait they were gathered as upper bounds.
            input_batch.num_computed_tokens_np[:] = computed
            input_batch.seq_lens_cpu_upper_bound.numpy()[: len(computed)] = lengths


def _declined(runner: Any, decision: Decision) -> str | None:
    """Why this runner is left to upstream's own path, or None."""
    if decision.action in (Action.DECLINE, Action.REFUSE):
        return explain(decision.reasons)
    for groups in runner.attn_groups:
        for group in groups:
            kind = type(group.get_metadata_builder(0))
            name = f"{kind.__module__}.{kind.__qualname__}"
            if name not in CHECKED_BUILDERS:
                return f"attention metadata builder {name} was not run with this hook"
    return None


def _sees_deferred_rejections(facts: Any) -> bool:
    return bool(facts.pp_size > 1 and facts.pp_rank < facts.pp_size - 1) if _ints(facts) else False


def _ints(facts: Any) -> bool:
    return isinstance(facts.pp_size, int) and isinstance(facts.pp_rank, int)
