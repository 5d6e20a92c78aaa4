"""What the guard is told: `StepFacts` and `OutputFacts` feed the expectation, `PlanFacts` is the observation.

The two sides never share a source. The expectation comes from what the scheduler decided (SchedulerOutput, the
connector's metadata) and from what the sampler returned; the observation is the final attention metadata that the
kernels get. No field of one side may be filled from an object of the other, nor from a copy of it.

Sequences are taken as they are (lists, tuples or arrays; never changed, never copied before they are needed), so an
adapter hands over vLLM's own lists. Units: positions, lengths and counts are tokens; block ids are manager blocks
unless said otherwise. "Row" is a batch row, "column" a position in a block table row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = Sequence[int]
Ints: TypeAlias = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request the worker learns in this step, or learns anew (MRV2 sends a resumed request as a new one).

    block_ids
        Per KV cache group, in logical order from block 0, null blocks included.
    num_computed_tokens
        Before this step; prefix hits and loaded external tokens count.
    num_known_tokens
        Token ids the worker is given (`prefill_token_ids`, else the prompt's length); None switches the bound on the
        scheduled length (part of LEN) off for this request.
    num_encoder_tokens
        Tokens that the encoder produces for this request in all (cross attention groups); 0 without an encoder.
    """

    req_id: str
    block_ids: Sequence[Ids]
    num_computed_tokens: int
    num_known_tokens: int | None = None
    num_encoder_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CachedRequests:
    """Requests the worker knows already; the sequences run in parallel.

    new_block_ids
        Per request None (nothing new) or, per group, ids that are appended; for a request in `resumed` they replace
        its whole row. That list alone decides between the two.
    num_computed_tokens
        The scheduler's count before this step, drafts in flight counted as accepted.
    """

    req_ids: Sequence[str] = ()
    new_block_ids: Sequence[Sequence[Ids] | None] = ()
    num_computed_tokens: Sequence[int] = ()
    resumed: frozenset[str] | set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Transfer:
    """One load into, or store from, blocks of this rank, as the connector's own plan has it.

    job
        Name of the transfer, unique among the open ones; `ConnectorFacts.finished` names it when it is over.
    kind
        `load`: the blocks are written from outside; `store`: they are read.
    block_ids
        Manager blocks of `group` that the connector will touch, in its order.
    first_block
        Logical index (column) of `block_ids[0]` in the request's row; None where the connector does not say.
    first_token, num_tokens
        Positions moved; None where the connector does not say.
    source_blocks
        Logical block indices on the far side, one for each of `block_ids`; None where not known.
    computed_before
        Tokens of the request that were computed locally when it was admitted, as the scheduler told the connector; a
        load must not reach below. None where the connector does not say.
    slots
        Slots the connector addresses, one per token of [first_token, first_token + num_tokens); None without.
    logical_rows, local_rows
        For a plan by token rows of a sharded cache: indices over all ranks, and the rows of this rank's buffer that
        the plan copies for them. Both or neither.
    pool_rows
        Number of rows of this rank's buffer, with `local_rows`.
    """

    job: str
    req_id: str
    group: int
    kind: Literal["load", "store"]
    block_ids: Ids
    first_block: int | None = None
    first_token: int | None = None
    num_tokens: int | None = None
    source_blocks: Ids | None = None
    computed_before: int | None = None
    slots: Ids | None = None
    logical_rows: Ids | None = None
    local_rows: Ids | None = None
    pool_rows: int | None = None


@dataclass(frozen=True, slots=True)
class ConnectorFacts:
    """What the KV connector's metadata of one step says.

    started, finished
        Transfers that this step opens; jobs reported done since the step before.
    tables
        The connector's own block list per (request, group) where it keeps one, after this step.
    token_counts
        Tokens the connector believes its table covers, per (request, group).
    waiting
        Requests that wait for remote KV: their blocks per group. They have no scheduled tokens, yet own blocks.
    """

    name: str
    started: Sequence[Transfer] = ()
    finished: frozenset[str] | set[str] = frozenset()
    tables: Mapping[tuple[str, int], Ids] = field(default_factory=dict)
    token_counts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    waiting: Mapping[str, Sequence[Ids]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One scheduler decision (SchedulerOutput and connector metadata), before anything of it is built.

    step
        Grows by one or more from call to call; the adapter's own count, the same in the plans of this step.
    num_scheduled_tokens
        Request to tokens of this step, drafts included. Its order means nothing: it is not the batch's row order.
    spec_tokens
        Request to its scheduled draft token ids (-1: placeholder, filled by what the worker proposed a step before).
    encoder_tokens
        Request to the encoder tokens that *this* step encodes and writes to its cross attention blocks.
    num_common_prefix_blocks
        Per group, manager blocks; empty where cascade attention is not in use.
    block_replacements
        Request to whole new rows per group (`block_table_updates`); they replace, and the request's new ids are then
        not appended.
    settled
        Newest step whose sampled output the scheduler had taken into account; None: `step - 1 -
        Layout.steps_in_flight`.
    """

    step: int
    num_scheduled_tokens: Mapping[str, int]
    new: Sequence[NewRequest] = ()
    cached: CachedRequests = CachedRequests()  # frozen, and its sequences are empty
    finished: frozenset[str] | set[str] = frozenset()
    preempted: frozenset[str] | set[str] = frozenset()
    spec_tokens: Mapping[str, Ids] = field(default_factory=dict)
    encoder_tokens: Mapping[str, int] = field(default_factory=dict)
    num_common_prefix_blocks: Ids = ()
    block_replacements: Mapping[str, Sequence[Ids]] = field(default_factory=dict)
    connector: ConnectorFacts | None = None
    settled: int | None = None


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """What the sampler returned for one step: the truth about drafts, from the step's own output copy.

    num_sampled
        [num_reqs] int: tokens that really became part of each request (0 while its prompt is not finished, or where
        the step's result was thrown away after a failed load).
    num_rejected
        [num_reqs] int: scheduled drafts of this step that were not accepted; None means 0 each.
    """

    step: int
    req_ids: Sequence[str]
    num_sampled: Ids | Ints
    num_rejected: Ids | Ints | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PlanFacts:
    """The final attention metadata of one KV cache group in one step; None: this plan has no such part.

    step, group
        As in StepFacts; the index in Layout.groups.
    req_ids
        [num_reqs] in batch row order, after the worker updated its batch (`input_batch.req_ids`).
    query_start_loc
        [>= num_reqs + 1] int; real rows' running sum of tokens, then constant over the padded rows.
    block_table
        [num_reqs_padded, columns] int32, kernel blocks.
    slot_mapping
        [num_tokens_padded] int32 or int64; -1 for no slot.
    seq_lens
        [num_reqs_padded] int, the device's; encoder lengths in a cross group.
    seq_lens_host, host_exact
        [num_reqs_padded] the host's copy that operators get; `host_exact` says whether its builder promises equality,
        otherwise true <= host <= true + drafts in flight.
    positions
        [num_tokens_padded] int64, one dimension (not the three of M-RoPE).
    num_tokens, num_reqs
        Tokens and rows of the dispatched batch, padding included (the graph's size); None: nothing is padded.
    num_common_prefix_blocks
        Columns that a cascade kernel reads from row 0 for every request, in kernel blocks.
    local_seq_lens
        [num_reqs_padded] this shard's part of each length (DCP).
    state_columns, state_blocks
        [num_reqs] column of, and kernel block id of, each row's recurrent state that the step reads (mamba).
    num_accepted
        [num_reqs] tokens of the request's last step that a recurrent kernel keeps (1 + accepted drafts).
    slot_capacity
        Length of the buffer that `slot_mapping` (or `num_slots`) is copied to; None where unbounded.
    num_slots
        Planned slots where the array itself is not at hand (a warm-up, a plan that failed to copy).
    local
        Whether the rows are this rank's part of a prefill context parallel batch (Layout.pcp_size): a request may then
        come twice, or, on a rank without tokens, one row stands with 0 tokens and length 0.
    draft
        Whether this is the drafter's plan: its tokens are not in StepFacts; rows, pads, ranges and slot rules are
        checked against the positions the plan itself names, which must start at or behind the request's frontier.
    """

    step: int
    group: int
    req_ids: Sequence[str]
    query_start_loc: Ints | None = None
    block_table: Ints | None = None
    slot_mapping: Ints | None = None
    seq_lens: Ints | None = None
    seq_lens_host: Ints | None = None
    host_exact: bool = True
    positions: Ints | None = None
    num_tokens: int | None = None
    num_reqs: int | None = None
    num_common_prefix_blocks: int = 0
    local_seq_lens: Ints | None = None
    state_columns: Ints | None = None
    state_blocks: Ints | None = None
    num_accepted: Ints | None = None
    slot_capacity: int | None = None
    num_slots: int | None = None
    local: bool = False
    draft: bool = False


#: Parts of a plan that may be absent, by the name that the coverage table uses.
PARTS: tuple[str, ...] = (
    "query_start_loc",
    "block_table",
    "slot_mapping",
    "seq_lens",
    "seq_lens_host",
    "positions",
    "local_seq_lens",
    "state_columns",
    "state_blocks",
    "num_accepted",
)
