"""Input preparation of the autoregressive draft model (EAGLE, MTP): ``spec_decode/autoregressive/speculator.py``.

draft input ids int32 and positions int64 [max_num_tokens], query_start_loc [max_num_reqs + 1] int32, seq_lens
[max_num_reqs] int32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_sim.kernels.arrays import (
    NotCovered,
    contiguous_query,
    first_column,
    matrix,
    ragged_arange,
    request_rows,
    vector,
)

Grid = tuple[int, ...]


def draft_prefill_inputs(
    grid: Grid,
    *,
    last_token_indices_ptr: Any,
    draft_current_step_ptr: Any,
    draft_input_ids_ptr: Any,
    draft_positions_ptr: Any,
    draft_query_start_loc_ptr: Any,
    draft_seq_lens_ptr: Any,
    target_input_ids_ptr: Any,
    target_positions_ptr: Any,
    idx_mapping_ptr: Any,
    last_sampled_ptr: Any,
    next_prefill_tokens_ptr: Any,
    num_sampled_ptr: Any,
    num_rejected_ptr: Any,
    query_start_loc_ptr: Any,
    seq_lens_ptr: Any,
    max_num_reqs: int,
    **_: Any,
) -> None:
    """The draft's first pass: the target's tokens shifted by one with the next token at the end, without the rejected
    ones.

    last_token_indices [max_num_reqs] int64; the next token is the sampled one, or the next prompt token of a chunked
    prefill. The grid is (num_reqs,).
    """
    count = grid[0]
    rows = request_rows(idx_mapping_ptr, count)
    offsets, lengths = contiguous_query(query_start_loc_ptr, count)
    lengths = lengths - vector(num_rejected_ptr)[:count]
    if count == 0 or lengths.min() < 1:
        raise NotCovered("a request without a token for the draft")
    input_ids, target_ids = vector(draft_input_ids_ptr), vector(target_input_ids_ptr)
    positions, target_positions = vector(draft_positions_ptr), vector(target_positions_ptr)
    starts = offsets[:-1]
    last = starts + lengths - 1
    shifted = ragged_arange(starts, lengths - 1)
    kept = ragged_arange(starts, lengths)
    sampled = vector(num_sampled_ptr)[:count] > 0
    input_ids[shifted] = target_ids[shifted + 1]
    input_ids[last] = np.where(sampled, vector(last_sampled_ptr)[rows], vector(next_prefill_tokens_ptr)[rows])
    positions[kept] = target_positions[kept]
    last_token_indices = vector(last_token_indices_ptr)
    last_token_indices[:count], last_token_indices[count:max_num_reqs] = last, 0
    query_start_loc, seq_lens = vector(draft_query_start_loc_ptr), vector(draft_seq_lens_ptr)
    query_start_loc[:count], query_start_loc[count : max_num_reqs + 1] = starts, offsets[count]
    seq_lens[:count], seq_lens[count:max_num_reqs] = vector(seq_lens_ptr)[:count], 0
    vector(draft_current_step_ptr)[0] = 0


def draft_decode_inputs(
    grid: Grid,
    *,
    draft_tokens_ptr: Any,
    draft_tokens_stride: int,
    target_seq_lens_ptr: Any,
    num_rejected_ptr: Any,
    input_ids_ptr: Any,
    positions_ptr: Any,
    query_start_loc_ptr: Any,
    seq_lens_ptr: Any,
    max_model_len: int,
    max_num_reqs: int,
    ADVANCE_DRAFT_POSITIONS: bool,  # noqa: N803 - the kernel's own name
    sample_src_positions_ptr: Any = None,
    **_: Any,
) -> None:
    """The draft's second pass: one token a request, positions and lengths advanced and clamped to the model's length.

    draft_tokens is [num_reqs] or [num_reqs, n] int64; of the latter the first column counts. The grid is (num_reqs +
    1,).
    """
    count = grid[0] - 1
    drafts = first_column(draft_tokens_ptr, draft_tokens_stride)
    query_start_loc, seq_lens = vector(query_start_loc_ptr), vector(seq_lens_ptr)
    positions, input_ids = vector(positions_ptr), vector(input_ids_ptr)
    lengths = vector(target_seq_lens_ptr)[:count] - vector(num_rejected_ptr)[:count]
    query_start_loc[: max_num_reqs + 1] = np.minimum(np.arange(max_num_reqs + 1), count)
    input_ids[:count] = drafts[:count]
    if sample_src_positions_ptr is not None:
        vector(sample_src_positions_ptr)[:count] += 1
    if ADVANCE_DRAFT_POSITIONS:
        positions[:count] = np.minimum(positions[:count] + 1, max_model_len - 1)
        lengths = np.minimum(lengths + 1, max_model_len)
    seq_lens[:count], seq_lens[count:max_num_reqs] = lengths, 0


def draft_decode_inputs_fixed_lens(grid: Grid, *, ADVANCE_DRAFT_POSITIONS: bool, **arguments: Any) -> None:  # noqa: N803
    """`draft_decode_inputs` of vLLM 0.26, which leaves the lengths alone where positions do not advance; that case is
    declined.
    """
    if not ADVANCE_DRAFT_POSITIONS:
        raise NotCovered("draft positions that do not advance")
    draft_decode_inputs(grid, ADVANCE_DRAFT_POSITIONS=True, **arguments)


def update_draft_inputs(
    grid: Grid,
    *,
    output_draft_tokens_ptr: Any,
    output_draft_tokens_stride: int,
    next_input_hidden_states_ptr: Any,
    input_ids_ptr: Any,
    positions_ptr: Any,
    seq_lens_ptr: Any,
    draft_tokens_ptr: Any,
    current_draft_step_ptr: Any,
    hidden_states_ptr: Any,
    hidden_size: int,
    max_model_len: int,
    num_speculative_steps: int,
    ADVANCE_DRAFT_POSITIONS: bool,  # noqa: N803 - the kernel's own name
    sample_src_positions_ptr: Any = None,
    **_: Any,
) -> None:
    """Keep the drafted token [num_reqs] of this step and, unless it was the last, make it and its hidden state the
    next input.

    output_draft_tokens [max_num_reqs, num_speculative_steps] int64, hidden states [num_tokens, hidden_size]. The grid
    is (num_reqs,).
    """
    count = grid[0]
    output = matrix(output_draft_tokens_ptr, output_draft_tokens_stride)
    tokens, step = vector(draft_tokens_ptr)[:count], int(vector(current_draft_step_ptr)[0])
    positions, seq_lens, input_ids = vector(positions_ptr), vector(seq_lens_ptr), vector(input_ids_ptr)
    output[:count, step] = tokens
    if step >= num_speculative_steps - 1:
        return
    if sample_src_positions_ptr is not None:
        vector(sample_src_positions_ptr)[:count] += 1
    input_ids[:count] = tokens
    next_input_hidden_states_ptr[:count, :hidden_size] = hidden_states_ptr[:count, :hidden_size]
    if ADVANCE_DRAFT_POSITIONS:
        positions[:count] = np.minimum(positions[:count] + 1, max_model_len - 1)
        seq_lens[:count] = np.minimum(seq_lens[:count] + 1, max_model_len)
