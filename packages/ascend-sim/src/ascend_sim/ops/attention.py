"""Attention operators of ``torch_npu`` over the paged KV cache.

Shapes and meanings as vllm-ascend calls them (``vllm_ascend/attention/attention_v1.py``) and as the operator's public
documentation gives them. T is the number of query tokens of the batch, N query heads, Nkv KV heads, D the head size.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

from ascend_sim.ops import operator, require

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIA = "npu_fused_infer_attention_score"
# sparse_mode: 0 no mask of its own, 3 causal aligned to the last key, 4 band (sliding window) by pre_tokens and
# next_tokens.
_SPARSE_MODES = (0, 3, 4)
# Largest padded copy of a cache that decode gathers in one piece, in elements (256 MiB of float32).
_DECODE_ELEMENTS = 64 << 20


def _as_list(lengths: torch.Tensor | Sequence[int]) -> list[int]:
    # The real operator takes host integers; a device tensor here would be a hidden D2H copy, which the counters must
    # see.
    return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


@operator
def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    num_heads: int,
    scale: float,
    num_key_value_heads: int = 0,
    input_layout: str = "BSH",
    atten_mask: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    block_size: int = 0,
    actual_seq_lengths: torch.Tensor | Sequence[int] | None = None,
    actual_seq_lengths_kv: torch.Tensor | Sequence[int] | None = None,
    sparse_mode: int = 0,
    pre_tokens: int = 2147483647,
    next_tokens: int = 2147483647,
    **unsupported: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of a ragged batch, layout TND.

    `query` [T, N, D]; `actual_seq_lengths` are query ends (cumulative). With `block_table` [requests, columns], `key`
    and `value` are caches [blocks, block_size, Nkv*D] (or [.., Nkv, D]) and `actual_seq_lengths_kv` are lengths;
    without, they are [T, Nkv, D] and the KV lengths are cumulative. Returns ([T, N, D], empty softmax-lse). Raises
    `ContractError` where the real operator would refuse.
    """
    kv_heads = num_key_value_heads or num_heads
    require(input_layout == "TND", _FIA, f"input_layout={input_layout!r}: only 'TND' has a reference")
    require(sparse_mode in _SPARSE_MODES, _FIA, f"sparse_mode={sparse_mode!r}: only {_SPARSE_MODES} have a reference")
    given = {name: v for name, v in unsupported.items() if v is not None and v is not False and v != 0}
    require(not given, _FIA, f"arguments without a reference: {sorted(given)}")
    require(actual_seq_lengths is not None and actual_seq_lengths_kv is not None, _FIA, "TND needs both length lists")
    assert actual_seq_lengths is not None
    assert actual_seq_lengths_kv is not None
    query_ends, kv_lengths = _as_list(actual_seq_lengths), _as_list(actual_seq_lengths_kv)
    _check_lengths(query, query_ends, kv_lengths, num_heads, kv_heads, sparse_mode, atten_mask)
    if block_table is not None:
        _check_paging(key, block_table, block_size, kv_lengths)
        key_cache = key.view(key.shape[0], block_size, kv_heads, -1)
        value_cache = value.view(value.shape[0], block_size, kv_heads, -1)
        if len(query_ends) == query.shape[0] and query_ends == list(range(1, len(query_ends) + 1)):
            window = pre_tokens if sparse_mode == 4 else None
            decoded = _decode(query, key_cache, value_cache, block_table, kv_lengths, scale, window)
            if decoded is not None:
                return decoded, torch.empty(0)
    out = torch.zeros_like(query)
    query_start = kv_start = 0
    for row, query_end in enumerate(query_ends):
        if block_table is None:
            keys, values = key[kv_start : kv_lengths[row]], value[kv_start : kv_lengths[row]]
            kv_start = kv_lengths[row]
        else:
            keys, values = _gather(key_cache, value_cache, block_table[row], block_size, kv_lengths[row])
        if query_end > query_start and keys.shape[0]:
            out[query_start:query_end] = _attend(
                query[query_start:query_end], keys, values, scale, sparse_mode, pre_tokens, next_tokens
            )
        query_start = query_end
    return out, torch.empty(0)


def _check_lengths(
    query: torch.Tensor,
    query_ends: list[int],
    kv_lengths: list[int],
    heads: int,
    kv_heads: int,
    sparse_mode: int,
    mask: torch.Tensor | None,
) -> None:
    tokens = query.shape[0]
    require(query.dim() == 3 and query.shape[1] == heads, _FIA, f"query {tuple(query.shape)} is not [T, {heads}, D]")
    require(heads % kv_heads == 0, _FIA, f"num_heads={heads} is no multiple of num_key_value_heads={kv_heads}")
    require(bool(query_ends), _FIA, "actual_seq_lengths is empty")
    require(query_ends[-1] == tokens, _FIA, f"actual_seq_lengths[-1]={query_ends[-1]} differs from T={tokens}")
    require(all(a <= b for a, b in itertools.pairwise(query_ends)), _FIA, f"{query_ends} decreases")
    require(len(kv_lengths) == len(query_ends), _FIA, f"{len(kv_lengths)} KV lengths for {len(query_ends)} queries")
    require(sparse_mode == 0 or mask is not None, _FIA, f"sparse_mode={sparse_mode} needs atten_mask")


def _check_paging(key: torch.Tensor, table: torch.Tensor, block_size: int, kv_lengths: list[int]) -> None:
    require(table.dim() == 2 and table.dtype == torch.int32, _FIA, f"block_table is {table.dtype} {tuple(table.shape)}")
    require(block_size > 0 and block_size % 16 == 0, _FIA, f"block_size={block_size} is no positive multiple of 16")
    require(
        table.shape[0] >= len(kv_lengths), _FIA, f"block_table has {table.shape[0]} rows for {len(kv_lengths)} requests"
    )
    longest = max(kv_lengths)
    require(
        longest <= table.shape[1] * block_size, _FIA, f"KV length {longest} needs more than {table.shape[1]} columns"
    )


def _gather(
    key_cache: torch.Tensor, value_cache: torch.Tensor, row: torch.Tensor, block_size: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    blocks = row[: -(-length // block_size)].long()
    if length:
        low, high = int(blocks.min()), int(blocks.max())
        require(
            low >= 0 and high < key_cache.shape[0], _FIA, f"block ids {low}..{high} outside 0..{key_cache.shape[0] - 1}"
        )
    return key_cache[blocks].flatten(0, 1)[:length], value_cache[blocks].flatten(0, 1)[:length]


def _decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    table: torch.Tensor,
    kv_lengths: list[int],
    scale: float,
    window: int | None,
) -> torch.Tensor | None:
    """One query token a request, all requests at once; None where the padded copy of the cache would be too large."""
    rows, block_size, kv_heads = query.shape[0], key_cache.shape[1], key_cache.shape[2]
    longest = max(kv_lengths)
    columns = -(-longest // block_size)
    if not columns or rows * columns * block_size * key_cache[0, 0].numel() > _DECODE_ELEMENTS:
        return None
    lengths = torch.tensor(kv_lengths).view(rows, 1)
    # Columns behind a request's last block may hold anything; they are masked below and must only be readable.
    needed = torch.arange(columns) * block_size < lengths
    blocks = torch.where(needed, table[:rows, :columns], 0).long()
    low, high = int(blocks.min()), int(blocks.max())
    require(
        low >= 0 and high < key_cache.shape[0], _FIA, f"block ids {low}..{high} outside 0..{key_cache.shape[0] - 1}"
    )

    def by_head(cache: torch.Tensor) -> torch.Tensor:
        # [rows, kv_heads, longest, D] in one piece: a batched product copies anything else, number by number.
        paged = cache.index_select(0, blocks.flatten()).view(rows, columns * block_size, kv_heads, -1)
        return paged[:, :longest].transpose(1, 2).float().contiguous()

    keys, values = by_head(key_cache), by_head(value_cache)
    # Query heads that share a KV head are the rows of one matrix product.
    grouped = query.view(rows, kv_heads, -1, query.shape[2]).float()
    position = torch.arange(longest)
    hidden = position >= lengths
    if window is not None:
        hidden |= position < lengths - 1 - window
    scores = (
        torch.matmul(grouped, keys.transpose(2, 3)).mul_(scale).masked_fill_(hidden.view(rows, 1, 1, -1), float("-inf"))
    )
    weights = torch.nan_to_num(torch.softmax(scores, -1))
    # What lies behind a request's last token is no number of this request and must not reach it as 0 * NaN.
    values.masked_fill_(hidden.view(rows, 1, -1, 1), 0.0)
    return torch.matmul(weights, values).reshape(rows, query.shape[1], -1).to(query.dtype)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    sparse_mode: int,
    pre_tokens: int,
    next_tokens: int,
) -> torch.Tensor:
    """One request: query [n, N, D] against keys and values [length, Nkv, D], in float32."""
    n, length, groups = query.shape[0], keys.shape[0], query.shape[1] // keys.shape[1]
    q = query.transpose(0, 1).float()
    k = keys.transpose(0, 1).float().repeat_interleave(groups, 0)
    v = values.transpose(0, 1).float().repeat_interleave(groups, 0)
    scores = torch.matmul(q, k.transpose(1, 2)) * scale
    if sparse_mode:
        # Both masks are aligned to the last key: query i stands at position length - n + i.
        distance = torch.arange(length).view(1, length) - (torch.arange(n).view(n, 1) + (length - n))
        hidden = distance > 0 if sparse_mode == 3 else (distance > next_tokens) | (distance < -pre_tokens)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.nan_to_num(torch.softmax(scores, -1))
    return torch.matmul(weights, v).transpose(0, 1).to(query.dtype)


@operator
def _npu_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    workspace: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode attention, one query token a request: `query` [requests, N, D], caches [blocks, block_size, Nkv, D], into
    `out`.
    """
    requests, block_size = query.shape[0], key_cache.shape[1]
    result, _ = npu_fused_infer_attention_score(
        query,
        key_cache.flatten(2),
        value_cache.flatten(2),
        num_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        scale=scale_value,
        input_layout="TND",
        block_table=block_table,
        block_size=block_size,
        actual_seq_lengths=range(1, requests + 1),
        actual_seq_lengths_kv=_as_list(context_lens)[:requests],
        sparse_mode=0,
    )
    out[:requests] = result
    return out
