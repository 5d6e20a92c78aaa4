"""Operators that write the paged KV cache."""

from __future__ import annotations

import torch

from ascend_sim.ops import operator, require


def _write(
    name: str,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Write token i to slot ``slots[i]``; a negative slot is padding and writes nothing, as on the device."""
    require(slots.dtype in (torch.int32, torch.int64), name, f"slot mapping is {slots.dtype}, expected int32 or int64")
    flat = slots.reshape(-1).long()
    require(flat.numel() <= key.shape[0], name, f"{flat.numel()} slots for {key.shape[0]} tokens")
    blocks, block_size = key_cache.shape[0], key_cache.shape[1]
    if flat.numel():
        highest = int(flat.max())
        require(
            highest < blocks * block_size, name, f"slot {highest} outside a cache of {blocks} blocks of {block_size}"
        )
    key, value = key[: flat.numel()], value[: flat.numel()]
    real = flat >= 0
    if not bool(real.all()):
        flat, key, value = flat[real], key[real], value[real]
    block, offset = flat // block_size, flat % block_size
    key_cache[block, offset] = key.to(key_cache.dtype)
    value_cache[block, offset] = value.to(value_cache.dtype)


@operator
def npu_scatter_pa_kv_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    cache_mode: str = "Norm",
) -> None:
    """`key`, `value` [tokens, Nkv, D] into caches [blocks, block_size, Nkv, D] at `slot_mapping` [tokens]."""
    require(cache_mode == "Norm", "npu_scatter_pa_kv_cache", f"cache_mode={cache_mode!r}: only 'Norm' has a reference")
    _write("npu_scatter_pa_kv_cache", key, value, key_cache, value_cache, slot_mapping)


@operator
def _npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    """Older spelling of `npu_scatter_pa_kv_cache`, same shapes."""
    _write("_npu_reshape_and_cache", key, value, key_cache, value_cache, slot_indices)
