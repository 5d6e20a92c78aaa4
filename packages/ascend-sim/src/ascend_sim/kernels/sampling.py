"""Sampling: temperature and the Gumbel-max draw, with Triton's Philox generator bit for bit.

logits [num_tokens, vocab_size] float32 (any floating type for the draw), expanded_idx_mapping [num_tokens] (row of the
request state, negative for padding), temperature [max_num_reqs] float32, seeds [max_num_reqs] int64, pos [num_tokens]
int64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_sim.kernels.arrays import Array, NotCovered, block_argmax, float_matrix, matrix, request_rows, vector

Grid = tuple[int, ...]
# Philox4x32-10 (Salmon et al., 2011): multipliers and key increments.
_ROUND_A, _ROUND_B = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_A, _KEY_B = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_UNIFORM_SCALE = np.float32(4.6566127342e-10)  # 2**-31 rounded so that the largest draw stays below 1
_DRAFT_SALT = 1 << 30  # keeps a draft's noise apart from the target's


def philox(seed: Array, offset: Array) -> Array:
    """First output word (uint32) of Philox4x32-10 with key `seed` (uint64) and counter `offset` (int64), broadcast
    together.
    """
    seed, offset = np.broadcast_arrays(seed.astype(np.uint64), offset.astype(np.int64).view(np.uint64))
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key_0, key_1 = (seed & low).astype(np.uint32), (seed >> shift).astype(np.uint32)
    c0, c1 = (offset & low).astype(np.uint32), (offset >> shift).astype(np.uint32)
    c2, c3 = np.zeros_like(c0), np.zeros_like(c0)
    for _ in range(10):
        product_a, product_b = c0.astype(np.uint64) * _ROUND_A, c2.astype(np.uint64) * _ROUND_B
        c0 = (product_b >> shift).astype(np.uint32) ^ c1 ^ key_0
        c2 = (product_a >> shift).astype(np.uint32) ^ c3 ^ key_1
        c1, c3 = (product_b & low).astype(np.uint32), (product_a & low).astype(np.uint32)
        key_0, key_1 = key_0 + _KEY_A, key_1 + _KEY_B
    return c0


def uniform(seed: Array, offset: Array) -> Array:
    """float32 draws from (0, 1): Triton's ``tl.rand`` with zero lifted to the smallest step."""
    word = philox(seed, offset).view(np.int32)
    magnitude = np.where(word < 0, ~word, word)
    return np.maximum(magnitude.astype(np.float32) * _UNIFORM_SCALE, _UNIFORM_SCALE)


def gumbel_noise(seeds: Array, positions: Array, keys: Array) -> Array:
    """float32 Gumbel noise [rows, keys]: one stream a row, placed by (seed, position); the same key draws the same
    noise.
    """
    # A seed is an int64 whose bits are the key; a row's noise is keyed by one draw from its stream.
    row_seeds = philox(seeds.astype(np.int64).view(np.uint64), positions)
    draws = uniform(row_seeds[:, None].astype(np.uint64), keys[None, :])
    with np.errstate(divide="ignore"):
        noise: Array = -np.log(-np.log1p(-draws))
    return noise


def temperature(
    grid: Grid,
    *,
    logits_ptr: Any,
    logits_stride: int,
    expanded_idx_mapping_ptr: Any,
    temperature_ptr: Any,
    vocab_size: int,
    **_: Any,
) -> None:
    """Divide the logits of each row by its temperature, in place; 0 (greedy) and 1 leave a row alone."""
    count = grid[0]
    rows = request_rows(expanded_idx_mapping_ptr, count)
    logits = matrix(logits_ptr, logits_stride)
    if logits.dtype != np.float32:
        raise NotCovered(f"logits of type {logits.dtype}")
    values = vector(temperature_ptr)[rows].astype(np.float32, copy=False)
    for i in np.flatnonzero((values != 0) & (values != 1)):
        logits[i, :vocab_size] /= values[i]


def gumbel_sample(
    grid: Grid,
    *,
    local_argmax_ptr: Any,
    local_argmax_stride: int,
    local_max_ptr: Any,
    local_max_stride: int,
    logits_ptr: Any,
    logits_stride: int,
    expanded_idx_mapping_ptr: Any,
    seeds_ptr: Any,
    pos_ptr: Any,
    temp_ptr: Any,
    vocab_size: int,
    BLOCK_SIZE: int,  # noqa: N803 - the kernel's own names
    APPLY_TEMPERATURE: bool,  # noqa: N803
    USE_FP64: bool,  # noqa: N803
    PER_TOKEN_COL: bool,  # noqa: N803
    IS_DRAFTING: bool = False,  # noqa: N803
    logits_cache_ptr: Any = None,
    logits_cache_stride_0: int = 0,
    logits_cache_stride_1: int | None = None,
    logits_cache_col_ptr: Any = None,
    logits_cache_stride: int = 0,
    **_: Any,
) -> None:
    """Per vocabulary block the index (int64) and value of the largest logit, with Gumbel noise where the temperature
    is not 0.

    local_argmax and local_max are [num_tokens, num_blocks]; ties go to the lower index. With a logits cache
    [max_num_reqs, columns, vocab_size] float32 the logits before temperature are stored for the rejection sampler. The
    grid is (num_tokens, num_blocks).
    """
    count, blocks = grid
    logits = float_matrix(logits_ptr, logits_stride)[:count, :vocab_size]
    rows = vector(expanded_idx_mapping_ptr)[:count]
    valid = rows >= 0
    temps = np.where(valid, vector(temp_ptr)[np.where(valid, rows, 0)], 0).astype(np.float32)
    noised = np.flatnonzero(temps)
    if noised.size and USE_FP64:
        raise NotCovered("float64 Gumbel noise")
    if np.isnan(logits).any():
        raise NotCovered("NaN logits")
    local_argmax, local_max = matrix(local_argmax_ptr, local_argmax_stride), matrix(local_max_ptr, local_max_stride)
    if logits_cache_ptr is not None:
        stride_1 = vocab_size if logits_cache_stride_1 is None else logits_cache_stride_1
        strides = (logits_cache_stride_0 or logits_cache_stride, stride_1)
        _store_logits(logits_cache_ptr, strides, logits_cache_col_ptr, PER_TOKEN_COL, rows, logits)
    if noised.size:
        logits = _with_noise(
            logits, rows, temps, noised, vector(seeds_ptr), vector(pos_ptr), APPLY_TEMPERATURE, IS_DRAFTING
        )
    block_argmax(logits, np.arange(count), local_argmax, local_max, blocks, BLOCK_SIZE)


def gumbel_sample_processed(
    grid: Grid,
    *,
    processed_logits_ptr: Any,
    processed_logits_stride: int,
    processed_logits_col_ptr: Any,
    **arguments: Any,
) -> None:
    """`gumbel_sample` of vLLM 0.26 and 0.27, whose cache holds the logits after temperature; declines a cache, takes
    the rest.
    """
    if processed_logits_ptr is not None:
        raise NotCovered("a cache of processed logits")
    gumbel_sample(grid, **arguments)


def _with_noise(
    logits: Array,
    rows: Array,
    temps: Array,
    noised: Array,
    seeds: Array,
    positions: Array,
    apply_temperature: bool,
    drafting: bool,
) -> Array:
    """A copy of the logits with temperature (if asked) and noise applied to the rows `noised`."""
    logits = logits.copy()
    chosen = logits[noised]
    if apply_temperature:
        chosen /= temps[noised][:, None]
    places = positions[noised].astype(np.int64) + (_DRAFT_SALT if drafting else 0)
    chosen += gumbel_noise(seeds[rows[noised]], places, np.arange(logits.shape[1], dtype=np.int64))
    logits[noised] = chosen
    return logits


def _store_logits(
    cache_tensor: Any, strides: tuple[int, int], column_tensor: Any, per_token: bool, rows: Array, logits: Array
) -> None:
    """Store the rows that belong to a request at their column (one for all, or one a token) of the cache."""
    if str(cache_tensor.dtype) != "torch.float32":
        raise NotCovered(f"a logits cache of type {cache_tensor.dtype}")
    cache: Array = cache_tensor.numpy()
    expected = (strides[0] * 4, strides[1] * 4, 4)
    if cache.ndim != 3 or any(
        n > 1 and have != want for n, have, want in zip(cache.shape, cache.strides, expected, strict=True)
    ):
        raise NotCovered("a logits cache with other strides than passed")
    columns = np.broadcast_to(vector(column_tensor)[: len(rows) if per_token else 1], len(rows))
    kept = np.flatnonzero(rows >= 0)
    cache[rows[kept], columns[kept], : logits.shape[1]] = logits[kept]
