"""vLLM's SchedulerOutput as the core's `StepFacts`: its lists as they are, nothing looked up in a runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kv_plan_guard.facts import CachedRequests, NewRequest, StepFacts

if TYPE_CHECKING:
    from kv_plan_guard.facts import ConnectorFacts

_NONE: frozenset[str] = frozenset()


def encoder_lengths(features: Any) -> list[int]:
    """Tokens that each multimodal input of a request gives the encoder."""
    return [int(feature.mm_position.get_num_embeds()) for feature in features or ()]


class SchedulerReader:
    """Reads one engine's decisions; remembers encoder lengths per live request, and only for encoder-decoder models."""

    def __init__(self, encoder_decoder: bool, cascade: bool = False) -> None:
        self.encoder_decoder = encoder_decoder
        self.cascade = cascade
        self._encoders: dict[str, list[int]] = {}

    def facts(self, step: int, output: Any, connector: ConnectorFacts | None) -> StepFacts:
        """The facts of one decision. `output` is a SchedulerOutput before the runner has seen it."""
        if self.encoder_decoder:  # first: an id may finish and begin anew in one step
            for req_id in output.finished_req_ids:
                self._encoders.pop(req_id, None)
        cached = output.scheduled_cached_reqs
        return StepFacts(
            step=step,
            num_scheduled_tokens=output.num_scheduled_tokens,
            new=[self._new(request) for request in output.scheduled_new_reqs],
            cached=CachedRequests(
                req_ids=cached.req_ids,
                new_block_ids=cached.new_block_ids,
                num_computed_tokens=cached.num_computed_tokens,
                resumed=cached.resumed_req_ids,
            ),
            finished=output.finished_req_ids,
            preempted=output.preempted_req_ids or _NONE,
            spec_tokens=output.scheduled_spec_decode_tokens,
            encoder_tokens=self._encoded(output) if self.encoder_decoder else {},
            num_common_prefix_blocks=output.num_common_prefix_blocks if self.cascade else (),
            block_replacements=getattr(output, "block_table_updates", None) or {},
            connector=connector,
        )

    def _new(self, request: Any) -> NewRequest:
        known = request.prefill_token_ids
        if known is None:
            known = request.prompt_token_ids
        encoder = 0
        if self.encoder_decoder:
            lengths = self._encoders[request.req_id] = encoder_lengths(request.mm_features)
            encoder = sum(lengths)
        return NewRequest(
            req_id=request.req_id,
            block_ids=request.block_ids,
            num_computed_tokens=request.num_computed_tokens,
            num_known_tokens=None if known is None else len(known),
            num_encoder_tokens=encoder,
        )

    def _encoded(self, output: Any) -> dict[str, int]:
        made = {}
        for req_id, indices in output.scheduled_encoder_inputs.items():
            lengths = self._encoders.get(req_id, [])
            made[req_id] = sum(lengths[index] for index in indices if index < len(lengths))
        return made
