"""Input preparation: prompt tokens, positions, lengths, sampled and draft tokens, and the state after a step.

Every function stands for one kernel of ``vllm/v1/worker/gpu/input_batch.py`` and takes that kernel's arguments by
name. Common shapes: idx_mapping [num_reqs] int32 or int64 (row of the request state), query_start_loc [num_reqs + 1]
int32, cu_num_logits [num_reqs + 1] int32, request state [max_num_reqs] int32, all_token_ids [max_num_reqs,
max_model_len] int32. The grid is (num_reqs,) unless said.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_sim.kernels.arrays import NotCovered, contiguous_query, matrix, ragged_arange, request_rows, vector

Grid = tuple[int, ...]


def prepare_prefill_inputs(
    grid: Grid,
    *,
    input_ids_ptr: Any,
    next_prefill_tokens_ptr: Any,
    idx_mapping_ptr: Any,
    query_start_loc_ptr: Any,
    all_token_ids_ptr: Any,
    all_token_ids_stride: int,
    prefill_lens_ptr: Any,
    num_computed_tokens_ptr: Any,
    next_prefill_tokens_stride: int = 0,
    num_lookahead: int | None = None,
    **_: Any,
) -> None:
    """Copy the scheduled prompt tokens of prefilling requests to input_ids [num_tokens] int32, and remember the ones
    after them.

    next_prefill_tokens is [num_lookahead, max_num_reqs] int32, or [max_num_reqs] in vLLM 0.26 (`num_lookahead` is not
    an argument there), which leaves it alone at the end of the prompt where later versions store 0.
    """
    count = grid[0]
    rows = request_rows(idx_mapping_ptr, count)
    offsets, lengths = contiguous_query(query_start_loc_ptr, count)
    computed, prefill = vector(num_computed_tokens_ptr)[rows], vector(prefill_lens_ptr)[rows]
    token_ids = matrix(all_token_ids_ptr, all_token_ids_stride)
    input_ids = vector(input_ids_ptr)
    if num_lookahead is None:
        following = vector(next_prefill_tokens_ptr)[None]
    else:
        following = matrix(next_prefill_tokens_ptr, next_prefill_tokens_stride)[:num_lookahead]
    for i in np.flatnonzero(computed < prefill):
        row, start, end = rows[i], computed[i], computed[i] + lengths[i]
        input_ids[offsets[i] : offsets[i + 1]] = token_ids[row, start:end]
        known = min(max(int(prefill[i] - end), 0), len(following))
        following[:known, row] = token_ids[row, end : end + known]
        if num_lookahead is not None:
            following[known:, row] = 0


def prepare_pos_seq_lens(
    grid: Grid,
    *,
    pos_ptr: Any,
    seq_lens_ptr: Any,
    idx_mapping_ptr: Any,
    query_start_loc_ptr: Any,
    num_computed_tokens_ptr: Any,
    max_num_reqs: int,
    **_: Any,
) -> None:
    """Positions [num_tokens] int64 and lengths [max_num_reqs] int32 from the computed tokens; unused lengths become 0.

    The grid is (num_reqs + 1,).
    """
    count = grid[0] - 1
    rows = request_rows(idx_mapping_ptr, count)
    offsets, lengths = contiguous_query(query_start_loc_ptr, count)
    positions, seq_lens = vector(pos_ptr), vector(seq_lens_ptr)
    computed = vector(num_computed_tokens_ptr)[rows]
    seq_lens[:count] = computed + lengths
    seq_lens[count:max_num_reqs] = 0
    if count:
        positions[offsets[0] : offsets[count]] = ragged_arange(computed, lengths)


def combine_sampled_and_draft_tokens(
    grid: Grid,
    *,
    input_ids_ptr: Any,
    idx_mapping_ptr: Any,
    last_sampled_tokens_ptr: Any,
    query_start_loc_ptr: Any,
    seq_lens_ptr: Any,
    prefill_len_ptr: Any,
    draft_tokens_ptr: Any,
    draft_tokens_stride: int,
    cu_num_logits_ptr: Any,
    logits_indices_ptr: Any,
    BLOCK_SIZE: int,  # noqa: N803 - the kernel's own name
    NUM_NEW_SAMPLED_TOKENS: int = 1,  # noqa: N803
    **_: Any,
) -> None:
    """Logit positions [num_logits] int64, and the last sampled and the draft tokens written into input_ids
    [num_tokens] int32.

    last_sampled_tokens is [max_num_reqs] or [max_num_reqs, 1] int64, draft_tokens [max_num_reqs,
    num_speculative_steps] int64.
    """
    count = grid[0]
    rows = request_rows(idx_mapping_ptr, count)
    cu_logits, num_logits = contiguous_query(cu_num_logits_ptr, count)
    if num_logits.size and num_logits.max() > BLOCK_SIZE:
        raise NotCovered("more logits for a request than the kernel's block")
    ends = vector(query_start_loc_ptr)[1 : count + 1]
    starts = ends - num_logits
    seq_lens, prefill = vector(seq_lens_ptr)[:count], vector(prefill_len_ptr)[rows]
    input_ids, logits_indices = vector(input_ids_ptr), vector(logits_indices_ptr)
    last_sampled, drafts = vector(last_sampled_tokens_ptr), matrix(draft_tokens_ptr, draft_tokens_stride)
    generating = seq_lens > prefill
    drafting = np.flatnonzero(generating & (num_logits > NUM_NEW_SAMPLED_TOKENS))

    if count:
        logits_indices[cu_logits[0] : cu_logits[count]] = ragged_arange(starts, num_logits)
    if NUM_NEW_SAMPLED_TOKENS > 0:
        # Prompt-tail slots stay: the first logit may still lie inside the prompt.
        writes = generating & (seq_lens - num_logits >= prefill)
        input_ids[starts[writes]] = last_sampled[rows[writes]]
    for i in drafting:
        num_drafts = num_logits[i] - NUM_NEW_SAMPLED_TOKENS
        input_ids[ends[i] - num_drafts : ends[i]] = drafts[rows[i], :num_drafts]


def num_sampled_and_rejected(
    grid: Grid,
    *,
    num_sampled_ptr: Any,
    num_rejected_ptr: Any,
    seq_lens_ptr: Any,
    cu_num_logits_ptr: Any,
    idx_mapping_ptr: Any,
    prefill_len_ptr: Any,
    **_: Any,
) -> None:
    """num_sampled [num_reqs] int32 set to 0 for chunked prefills, and num_rejected [num_reqs] int32 = logits less
    sampled.
    """
    count = grid[0]
    rows = request_rows(idx_mapping_ptr, count)
    num_logits = np.diff(vector(cu_num_logits_ptr)[: count + 1])
    num_sampled, num_rejected = vector(num_sampled_ptr)[:count], vector(num_rejected_ptr)
    chunked = vector(seq_lens_ptr)[:count] < vector(prefill_len_ptr)[rows]
    num_sampled[chunked] = 0
    num_rejected[:count] = np.where(chunked, 0, num_logits - num_sampled)


def post_update(
    grid: Grid,
    *,
    idx_mapping_ptr: Any,
    num_computed_tokens_ptr: Any,
    last_sampled_tokens_ptr: Any,
    output_bin_counts_ptr: Any,
    output_bin_counts_stride: int,
    sampled_tokens_ptr: Any,
    sampled_tokens_stride: int,
    num_sampled_ptr: Any,
    num_rejected_ptr: Any,
    query_start_loc_ptr: Any,
    all_token_ids_ptr: Any,
    all_token_ids_stride: int,
    total_len_ptr: Any,
    **_: Any,
) -> None:
    """Append the sampled tokens to the request state and advance num_computed_tokens; rows with a negative index are
    skipped.

    sampled_tokens [num_reqs, num_speculative_steps + 1] int64; output_bin_counts [max_num_reqs, vocab_size] int32 or
    None; query_start_loc may be None (then only the rejected tokens are taken back).
    """
    count = grid[0]
    kept = np.flatnonzero(vector(idx_mapping_ptr)[:count] >= 0)
    rows = vector(idx_mapping_ptr)[kept]
    if rows.size > 1 and np.bincount(rows).max() > 1:
        raise NotCovered("one request twice in a batch")
    sampled = matrix(sampled_tokens_ptr, sampled_tokens_stride)[kept]
    num_sampled, total_len = vector(num_sampled_ptr)[kept], vector(total_len_ptr)
    token_ids, last_sampled = matrix(all_token_ids_ptr, all_token_ids_stride), vector(last_sampled_tokens_ptr)
    counts = None if output_bin_counts_ptr is None else matrix(output_bin_counts_ptr, output_bin_counts_stride)
    computed = vector(num_computed_tokens_ptr)
    rejected = vector(num_rejected_ptr)[kept]
    lengths = 0 if query_start_loc_ptr is None else np.diff(vector(query_start_loc_ptr)[: count + 1])[kept]

    some = num_sampled > 0
    new, new_rows, number = sampled[some], rows[some], num_sampled[some]
    if new_rows.size:
        old_len = total_len[new_rows]
        tokens = new[np.arange(new.shape[1]) < number[:, None]]
        token_rows = np.repeat(new_rows, number)
        token_ids[token_rows, ragged_arange(old_len, number)] = tokens
        last_sampled[new_rows] = new[np.arange(len(new)), number - 1]
        total_len[new_rows] = old_len + number
        if counts is not None:
            np.add.at(counts, (token_rows, tokens), 1)
    computed[rows] += (lengths - rejected).astype(computed.dtype, copy=False)


def post_update_by_cores(grid: Grid, *, num_rows: int, idx_mapping_ptr: Any, **arguments: Any) -> None:
    """`post_update` as vllm-ascend 0.26 launches it: a grid of cores, the number of requests as an argument, no row
    skipped.
    """
    request_rows(idx_mapping_ptr, num_rows)
    post_update((num_rows,), idx_mapping_ptr=idx_mapping_ptr, **arguments)


def post_update_num_computed_tokens(
    grid: Grid, *, idx_mapping_ptr: Any, num_computed_tokens_ptr: Any, query_start_loc_ptr: Any, **_: Any
) -> None:
    """num_computed_tokens [max_num_reqs] int32 advanced by the query lengths."""
    count = grid[0]
    rows = request_rows(idx_mapping_ptr, count)
    if rows.size > 1 and np.bincount(rows).max() > 1:
        raise NotCovered("one request twice in a batch")
    vector(num_computed_tokens_ptr)[rows] += np.diff(vector(query_start_loc_ptr)[: count + 1])


def expand_idx_mapping(
    grid: Grid,
    *,
    idx_mapping_ptr: Any,
    expanded_idx_mapping_ptr: Any,
    expanded_local_pos_ptr: Any,
    cu_num_logits_ptr: Any,
    BLOCK_SIZE: int,  # noqa: N803
    **_: Any,
) -> None:
    """One entry a logit: the request's row (the mapping's type) and the logit's place in the request (int32), both
    [num_logits].
    """
    count = grid[0]
    rows = vector(idx_mapping_ptr)[:count]
    cu_logits, num_logits = contiguous_query(cu_num_logits_ptr, count)
    if num_logits.size and num_logits.max() > BLOCK_SIZE:
        raise NotCovered("more logits for a request than the kernel's block")
    expanded, local = vector(expanded_idx_mapping_ptr), vector(expanded_local_pos_ptr)
    if count:
        span = slice(int(cu_logits[0]), int(cu_logits[count]))
        expanded[span] = np.repeat(rows, num_logits)
        local[span] = ragged_arange(np.zeros_like(num_logits), num_logits)
