"""Verification of draft tokens: the greedy path of ``spec_decode/rejection_sampler_utils.py`` and the kernels around
it.

target_logits [num_logits, vocab_size], draft_sampled [num_logits] (the row after a logit holds the draft it verifies,
-1 where there is none), expanded_idx_mapping [num_logits], expanded_local_pos [num_logits] int32, sampled [num_reqs,
num_speculative_steps + 1] int64. Requests with a temperature are verified by the interpreter's kernels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_sim.kernels.arrays import Array, NotCovered, block_argmax, float_matrix, matrix, request_rows, vector

Grid = tuple[int, ...]


def local_logits_stats(
    grid: Grid,
    *,
    target_local_argmax_ptr: Any,
    target_local_argmax_stride: int,
    target_local_max_ptr: Any,
    target_local_max_stride: int,
    target_logits_ptr: Any,
    target_logits_stride: int,
    expanded_idx_mapping_ptr: Any,
    expanded_local_pos_ptr: Any,
    temp_ptr: Any,
    vocab_size: int,
    num_speculative_steps: int,
    BLOCK_SIZE: int,  # noqa: N803 - the kernel's own name
    **_: Any,
) -> None:
    """Greedy rows: index (int64) and value (float32) of the largest target logit of each vocabulary block,
    [num_logits, num_blocks].

    Rows of the bonus token (local position num_speculative_steps) stay as they are. The grid is (num_logits,
    num_blocks).
    """
    count, blocks = grid
    local = vector(expanded_local_pos_ptr)[:count]
    rows = request_rows(expanded_idx_mapping_ptr, count)
    verified = np.flatnonzero(local < num_speculative_steps)
    _greedy_only(vector(temp_ptr)[rows[verified]])
    logits = float_matrix(target_logits_ptr, target_logits_stride)[verified, :vocab_size]
    _no_nan(logits)
    argmax, maximum = (
        matrix(target_local_argmax_ptr, target_local_argmax_stride),
        matrix(target_local_max_ptr, target_local_max_stride),
    )
    block_argmax(logits, verified, argmax, maximum, blocks, BLOCK_SIZE)


def rejection(
    grid: Grid,
    *,
    sampled_ptr: Any,
    sampled_stride: int,
    rejected_steps_ptr: Any,
    target_rejected_logsumexp_ptr: Any,
    draft_rejected_logsumexp_ptr: Any,
    target_local_argmax_ptr: Any,
    target_local_argmax_stride: int,
    target_local_max_ptr: Any,
    target_local_max_stride: int,
    draft_sampled_ptr: Any,
    cu_num_logits_ptr: Any,
    idx_mapping_ptr: Any,
    temp_ptr: Any,
    vocab_num_blocks: int,
    SYNTHETIC_MODE: bool,  # noqa: N803 - the kernel's own name
    **_: Any,
) -> None:
    """Greedy requests: store the target's choice up to the first draft that differs, and how many drafts were accepted
    (int32).

    The grid is (num_reqs,).
    """
    if SYNTHETIC_MODE:
        raise NotCovered("synthetic acceptance rates")
    count = grid[0]
    rows = request_rows(idx_mapping_ptr, count)
    _greedy_only(vector(temp_ptr)[rows])
    cu_logits = vector(cu_num_logits_ptr)[: count + 1]
    drafts = vector(draft_sampled_ptr)
    sampled = matrix(sampled_ptr, sampled_stride)
    maxima = matrix(target_local_max_ptr, target_local_max_stride)[:, :vocab_num_blocks]
    choices = matrix(target_local_argmax_ptr, target_local_argmax_stride)
    verified = _without_bonus(cu_logits)
    _no_nan(maxima[verified])
    target = choices[np.arange(len(choices)), maxima.argmax(axis=1)] if len(choices) else choices.reshape(-1)
    accepted = np.zeros(count, np.int32)
    for i in range(count):
        start, number = int(cu_logits[i]), int(cu_logits[i + 1] - cu_logits[i]) - 1
        if number <= 0:
            continue
        same = target[start : start + number] == drafts[start + 1 : start + 1 + number]
        accepted[i] = number if same.all() else int(same.argmin())
        stored = min(int(accepted[i]) + 1, number)
        sampled[i, :stored] = target[start : start + stored]
    vector(rejected_steps_ptr)[:count] = accepted
    vector(target_rejected_logsumexp_ptr)[:count] = 0
    vector(draft_rejected_logsumexp_ptr)[:count] = 0


def resample(
    grid: Grid,
    *,
    resampled_local_argmax_ptr: Any,
    resampled_local_argmax_stride: int,
    resampled_local_max_ptr: Any,
    resampled_local_max_stride: int,
    target_logits_ptr: Any,
    target_logits_stride: int,
    rejected_step_ptr: Any,
    cu_num_logits_ptr: Any,
    expanded_idx_mapping_ptr: Any,
    temp_ptr: Any,
    vocab_size: int,
    BLOCK_SIZE: int,  # noqa: N803 - the kernel's own name
    **_: Any,
) -> None:
    """Greedy requests that accepted every draft: the bonus token's largest logit of each block, [num_reqs, num_blocks].

    A greedy request that rejected a draft has its token already; its rows stay. The grid is (num_reqs, num_blocks).
    """
    count, blocks = grid
    cu_logits = vector(cu_num_logits_ptr)[: count + 1]
    tokens = cu_logits[:-1] + vector(rejected_step_ptr)[:count]
    rows = vector(expanded_idx_mapping_ptr)[tokens]
    if rows.size and rows.min() < 0:
        raise NotCovered("the index mapping has a row without a request")
    _greedy_only(vector(temp_ptr)[rows])
    bonus = np.flatnonzero(tokens == cu_logits[1:] - 1)
    logits = float_matrix(target_logits_ptr, target_logits_stride)[tokens[bonus], :vocab_size]
    _no_nan(logits)
    argmax = matrix(resampled_local_argmax_ptr, resampled_local_argmax_stride)
    maximum = matrix(resampled_local_max_ptr, resampled_local_max_stride)
    block_argmax(logits, bonus, argmax, maximum, blocks, BLOCK_SIZE)


def insert_resampled(
    grid: Grid,
    *,
    sampled_ptr: Any,
    sampled_stride: int,
    num_sampled_ptr: Any,
    resampled_local_argmax_ptr: Any,
    resampled_local_argmax_stride: int,
    resampled_local_max_ptr: Any,
    resampled_local_max_stride: int,
    resample_num_blocks: int,
    cu_num_logits_ptr: Any,
    expanded_idx_mapping_ptr: Any,
    temp_ptr: Any,
    **_: Any,
) -> None:
    """Put the resampled (or bonus) token behind the accepted ones and count it: num_sampled [num_reqs] int32. The grid
    is (num_reqs,).
    """
    count = grid[0]
    cu_logits = vector(cu_num_logits_ptr)[: count + 1]
    num_sampled, sampled = vector(num_sampled_ptr), matrix(sampled_ptr, sampled_stride)
    accepted = num_sampled[:count].copy()
    tokens = cu_logits[:-1] + accepted
    rows = vector(expanded_idx_mapping_ptr)[tokens]
    if rows.size and rows.min() < 0:
        raise NotCovered("the index mapping has a row without a request")
    inserted = np.flatnonzero((vector(temp_ptr)[rows] != 0) | (tokens == cu_logits[1:] - 1))
    maxima = matrix(resampled_local_max_ptr, resampled_local_max_stride)[inserted, :resample_num_blocks]
    _no_nan(maxima)
    num_sampled[:count] = accepted + 1
    if inserted.size:
        choices = matrix(resampled_local_argmax_ptr, resampled_local_argmax_stride)
        sampled[inserted, accepted[inserted]] = choices[inserted, maxima.argmax(axis=1)]


def _greedy_only(temps: Array) -> None:
    if temps.any():
        raise NotCovered("verification of a request with a temperature")


def _no_nan(values: Array) -> None:
    # numpy's argmax returns a NaN's index, the interpreter's skips it.
    if np.isnan(values).any():
        raise NotCovered("NaN logits")


def _without_bonus(cu_logits: Array) -> Array:
    """Indices of all logits but each request's last."""
    every = np.ones(int(cu_logits[-1]), bool)
    every[cu_logits[1:][np.diff(cu_logits) > 0] - 1] = False
    return np.flatnonzero(every)
