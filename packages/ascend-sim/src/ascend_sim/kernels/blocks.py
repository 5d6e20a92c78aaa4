"""Block tables: staged writes, the gather for a batch, and the slot mapping.

Block tables of several KV cache groups arrive as raw addresses [num_groups] uint64 and row strides [num_groups] int64,
in elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ascend_sim.kernels.arrays import NotCovered, block_table, contiguous_query, matrix, request_rows, vector

Grid = tuple[int, ...]


def apply_write(
    grid: Grid,
    *,
    output_ptr: Any,
    output_stride: Any,
    write_indices_ptr: Any,
    write_starts_ptr: Any,
    write_contents_ptr: Any,
    write_cu_lens_ptr: Any,
    write_group_ids_ptr: Any,
    MULTI_GROUP: bool,  # noqa: N803 - the kernel's own name
    **_: Any,
) -> None:
    """Write staged rows: write i puts contents [cu_lens[i-1], cu_lens[i]) at (indices[i], starts[i]).

    output is a tensor [rows] or [rows, columns]; with MULTI_GROUP it is the groups' addresses, and group_ids
    [num_writes] picks one. The writes run in order, as in the interpreter, so that of two to one place the later
    stands. The grid is (num_writes,).
    """
    count = grid[0]
    indices, starts = vector(write_indices_ptr)[:count], vector(write_starts_ptr)[:count]
    ends, contents = vector(write_cu_lens_ptr)[:count], vector(write_contents_ptr)
    if MULTI_GROUP:
        groups, addresses, strides = vector(write_group_ids_ptr)[:count], vector(output_ptr), vector(output_stride)
        flat = {
            int(g): block_table(int(addresses[g]), int(indices[groups == g].max()) + 1, int(strides[g])).reshape(-1)
            for g in np.unique(groups)
        }
        targets = [(flat[int(g)], int(strides[g])) for g in groups]
    else:
        targets = [(vector(output_ptr), int(output_stride))] * count
    begin = 0
    for i in range(count):
        target, stride = targets[i]
        at, end = int(indices[i]) * stride + int(starts[i]), int(ends[i])
        target[at : at + end - begin] = contents[begin:end]
        begin = end


def gather_block_tables(
    grid: Grid,
    *,
    batch_idx_to_req_idx: Any,
    src_block_table_ptrs: Any,
    dst_block_table_ptrs: Any,
    block_table_strides: Any,
    num_blocks_ptr: Any,
    num_blocks_stride: int,
    num_reqs: int,
    **_: Any,
) -> None:
    """Copy the used blocks of the batch's requests to the input block tables; padded rows become 0, the rest of a row
    stays.

    num_blocks [num_groups, max_num_reqs] int32. The grid is (num_groups, num_reqs_padded).
    """
    groups, padded = grid
    if num_reqs > padded:
        raise NotCovered("fewer programs than requests")
    rows = request_rows(batch_idx_to_req_idx, num_reqs)
    num_blocks = matrix(num_blocks_ptr, num_blocks_stride)
    sources, targets = vector(src_block_table_ptrs), vector(dst_block_table_ptrs)
    strides = vector(block_table_strides)
    source_rows = int(rows.max()) + 1 if rows.size else 0
    for group in range(groups):
        stride = int(strides[group])
        source = block_table(int(sources[group]), source_rows, stride)
        target = block_table(int(targets[group]), padded, stride)
        used = num_blocks[group, rows]
        width = int(used.max()) if used.size else 0
        copied = np.arange(width) < used[:, None]
        np.copyto(target[:num_reqs, :width], source[rows, :width], where=copied)
        target[num_reqs:] = 0


def compute_slot_mappings(
    grid: Grid,
    *,
    max_num_tokens: int,
    idx_mapping: Any,
    query_start_loc: Any,
    pos: Any,
    block_table_ptrs: Any,
    block_table_strides: Any,
    block_sizes: Any,
    slot_mappings_ptr: Any,
    slot_mappings_stride: int,
    CP_SIZE: int,  # noqa: N803 - the kernel's own names
    PAD_ID: int,  # noqa: N803
    kernel_block_sizes: Any = None,
    slot_mapping_enabled: Any = None,
    HAS_SLOT_MAPPING_ENABLED: bool = True,  # noqa: N803
    **_: Any,
) -> None:
    """slot = block_table[request, position // block_size] * block_size + position % block_size; unused slots become
    PAD_ID.

    pos [num_tokens] int64; slot_mappings [num_groups, max_num_tokens] int64, int32 in vllm-ascend. Versions without
    kernel_block_sizes use block_sizes. A group that is not enabled gets PAD_ID throughout. The grid is (num_groups,
    num_reqs + 1).
    """
    if CP_SIZE != 1:
        raise NotCovered(f"context parallelism (CP_SIZE={CP_SIZE})")
    groups, count = grid[0], grid[1] - 1
    offsets, lengths = contiguous_query(query_start_loc, count)
    if offsets[0] != 0:
        raise NotCovered("query_start_loc does not begin at 0")
    total = int(offsets[count])
    rows = np.repeat(vector(idx_mapping)[:count], lengths)  # an empty request may have index -1: it has no token
    if rows.size and rows.min() < 0:
        raise NotCovered("the index mapping has a row without a request")
    positions = vector(pos)[:total]
    slots = matrix(slot_mappings_ptr, slot_mappings_stride)
    strides, addresses = vector(block_table_strides), vector(block_table_ptrs)
    sizes = vector(block_sizes if kernel_block_sizes is None else kernel_block_sizes)
    gated = HAS_SLOT_MAPPING_ENABLED and slot_mapping_enabled is not None
    enabled = vector(slot_mapping_enabled) if gated else np.ones(groups, bool)
    if positions.size:
        last_blocks = positions.max() // sizes[:groups]
        if positions.min() < 0 or ((last_blocks >= strides[:groups]) & enabled[:groups]).any():
            raise NotCovered("a position outside the block table's row")
    table_rows = int(rows.max()) + 1 if rows.size else 0
    for group in range(groups):
        slots[group, total:max_num_tokens] = PAD_ID
        if not enabled[group]:
            slots[group, :total] = PAD_ID
            continue
        size = int(sizes[group])
        blocks, within = np.divmod(positions, size)
        table = block_table(int(addresses[group]), table_rows, int(strides[group]))
        slots[group, :total] = table[rows, blocks] * size + within


def compute_slot_mappings_in_float(
    grid: Grid, *, block_table_ptrs: Any, block_table_strides: Any, block_sizes: Any, idx_mapping: Any, **arguments: Any
) -> None:
    """`compute_slot_mappings` of vllm-ascend 0.26, which multiplies in float32; declines tables whose slots it would
    round.
    """
    rows = int(vector(idx_mapping)[: grid[1] - 1].max(initial=-1)) + 1
    addresses, strides, sizes = vector(block_table_ptrs), vector(block_table_strides), vector(block_sizes)
    for group in range(grid[0]):
        table = block_table(int(addresses[group]), rows, int(strides[group]))
        if (int(table.max(initial=0)) + 1) * int(sizes[group]) > 1 << 24:
            raise NotCovered("slots beyond what float32 holds exactly")
    compute_slot_mappings(
        grid,
        block_table_ptrs=block_table_ptrs,
        block_table_strides=block_table_strides,
        block_sizes=block_sizes,
        idx_mapping=idx_mapping,
        **arguments,
    )
