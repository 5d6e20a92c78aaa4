"""Kernels of the block tables: staged writes, gather, slot mapping."""

from typing import Any

import numpy as np

from kernel_cases.base import MAX_REQS, Case, case, cumulative, f32, i32, i64, index, pointers, some_rows, torch


def tables_of(rng: np.random.Generator, groups: int, high: int = 99) -> list[torch.Tensor]:
    """One block table [MAX_REQS + 1, 4 .. 12] a group; the last row stands for the memory behind the table."""
    return [i32(rng.integers(0, high, (MAX_REQS + 1, int(rng.integers(4, 13))))) for _ in range(groups)]


def writes(rng: np.random.Generator, columns: int) -> tuple[dict[str, Any], int]:
    count = int(rng.integers(1, 9))
    lengths = rng.integers(0, columns + 1, count)
    named = {
        "write_indices_ptr": i32(rng.integers(0, MAX_REQS, count)), "write_starts_ptr": i32(rng.integers(0,
        columns - lengths + 1)),
        "write_contents_ptr": i32(rng.integers(0, 99, max(int(lengths.sum()), 1))),
        "write_cu_lens_ptr": i32(np.cumsum(lengths)), "BLOCK_SIZE": 4,
    }  # fmt: skip
    return named, count


@case("apply_write")
def write_one(rng: np.random.Generator) -> Case:
    columns = int(rng.integers(1, 9))
    named, count = writes(rng, columns)
    target = i32(rng.integers(0, 99, (MAX_REQS, columns)))
    return Case(
        (count,),
        named | {"output_ptr": target, "output_stride": columns, "write_group_ids_ptr": None, "MULTI_GROUP": False},
    )


@case("apply_write")
def write_floats(rng: np.random.Generator) -> Case:
    named, count = writes(rng, 1)
    named["write_contents_ptr"] = named["write_contents_ptr"].to(torch.float32) / 7
    target = f32(rng.random(MAX_REQS))
    return Case(
        (count,), named | {"output_ptr": target, "output_stride": 1, "write_group_ids_ptr": None, "MULTI_GROUP": False}
    )


@case("apply_write")
def write_groups(rng: np.random.Generator) -> Case:
    tables = tables_of(rng, 3)
    named, count = writes(rng, 4)
    named |= {
        "output_ptr": pointers(tables), "output_stride": i64([table.stride(0) for table in tables]),
        "write_group_ids_ptr": i32(rng.integers(0, 3, count)), "MULTI_GROUP": True,
    }  # fmt: skip
    return Case((count,), named, tables)


@case("gather_block_tables")
def gather(rng: np.random.Generator) -> Case:
    groups, rows = int(rng.integers(1, 4)), some_rows(rng, low=0)
    source = tables_of(rng, groups)
    target = [torch.full_like(table, 77) for table in source]
    num_blocks = i32(rng.integers(0, 5, (groups, MAX_REQS)))
    named = {
        "batch_idx_to_req_idx": index(rng, rows), "src_block_table_ptrs": pointers(source),
        "dst_block_table_ptrs": pointers(target),
        "block_table_strides": i64([table.stride(0) for table in source]), "num_blocks_ptr": num_blocks,
        "num_blocks_stride": num_blocks.stride(0), "num_reqs": len(rows), "BLOCK_SIZE": 4,
    }  # fmt: skip
    return Case((groups, int(rng.integers(max(len(rows), 1), MAX_REQS + 1))), named, target)


@case("slot_mapping")
def slots(rng: np.random.Generator, context_parallel: int = 1) -> Case:
    groups, rows = int(rng.integers(1, 4)), some_rows(rng)
    lengths = rng.integers(0, 9, len(rows))
    rows = np.where(lengths == 0, -1, rows)
    tables, sizes = tables_of(rng, groups), rng.choice([4, 8, 16], groups)
    limit = min(table.shape[1] * size for table, size in zip(tables, sizes, strict=True))
    pos = [int(rng.integers(0, max(limit - n, 1))) + np.arange(n) for n in lengths]
    dtype = torch.int64 if rng.integers(2) else torch.int32
    out = torch.full((groups, 96), 5, dtype=dtype)
    named = {
        "max_num_tokens": 96, "idx_mapping": index(rng, rows), "query_start_loc": i32(cumulative(lengths)),
        "pos": i64(np.concatenate([*pos, np.zeros(3)])), "block_table_ptrs": pointers(tables),
        "block_table_strides": i64([table.stride(0) for table in tables]), "block_sizes": i32(sizes),
        "kernel_block_sizes": i32(sizes),
        "slot_mapping_enabled": torch.from_numpy(rng.random(groups) < 0.8), "slot_mappings_ptr": out,
        "slot_mappings_stride": out.stride(0), "cp_rank": 0, "CP_SIZE": context_parallel, "CP_INTERLEAVE": 1,
        "PAD_ID": -1,
        "TRITON_BLOCK_SIZE": 8, "BLOCK_TABLE_WINDOW_SIZE": 16, "TOTAL_BLOCK_SIZE": 16, "HAS_SLOT_MAPPING_ENABLED": True,
    }  # fmt: skip
    return Case((groups, len(rows) + 1), named, tables)
