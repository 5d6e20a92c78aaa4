"""Each fast kernel leaves exactly the memory that Triton's interpreter leaves, over random inputs, on the pair of this
environment.
"""

import importlib
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ascend_sim
import numpy as np
import pytest
from ascend_sim import kernels
from ascend_sim.kernels import registry
from ascend_sim.kernels.arrays import NotCovered
from ascend_sim.kernels.swap import FastKernel

torch = pytest.importorskip("torch", reason="needs a pair's environment")

# Importing vLLM and running its kernels in the interpreter warns about things that are not ours.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::RuntimeWarning"),
]
MAX_REQS, MAX_LEN, VOCAB, STEPS = 8, 64, 48, 3
SEEDS = range(12)


@dataclass
class Case:
    """One launch: the arguments by name (of every version), and the tensors whose memory counts afterwards."""

    grid: tuple[int, ...]
    named: dict[str, Any]
    memory: list[torch.Tensor] = field(default_factory=list)

    def tensors(self) -> list[torch.Tensor]:
        return [value for value in self.named.values() if isinstance(value, torch.Tensor)] + self.memory


Build = Callable[[np.random.Generator], Case]
CASES: dict[str, list[Build]] = {}


def case(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES.setdefault(name, []).append(build)
        return build

    return register


def i32(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int32))


def i64(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def f32(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))


def cumulative(lengths: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def some_rows(rng: np.random.Generator, low: int = 1) -> np.ndarray:
    return rng.permutation(MAX_REQS)[: rng.integers(low, MAX_REQS + 1)]


def index(rng: np.random.Generator, rows: np.ndarray) -> torch.Tensor:
    return i64(rows) if rng.integers(2) else i32(rows)


@case("prepare_prefill_inputs")
def prefill(rng: np.random.Generator) -> Case:
    rows, lookahead = some_rows(rng), int(rng.integers(1, 5))
    prompt = rng.integers(1, MAX_LEN, MAX_REQS)
    computed = np.minimum(rng.integers(0, MAX_LEN, MAX_REQS), prompt + rng.integers(0, 2, MAX_REQS))
    lengths = np.minimum(rng.integers(0, 12, len(rows)), MAX_LEN - computed[rows])
    old = "num_lookahead" not in parameters("prepare_prefill_inputs")
    following = i32(rng.integers(0, 9, MAX_REQS if old else (lookahead, MAX_REQS)))
    ids = i32(rng.integers(0, 99, (MAX_REQS, MAX_LEN)))
    named = {
        "input_ids_ptr": i32(rng.integers(0, 99, 128)), "next_prefill_tokens_ptr": following,
        "next_prefill_tokens_stride": following.stride(0), "num_lookahead": lookahead, "idx_mapping_ptr": index(rng,
        rows),
        "query_start_loc_ptr": i32(cumulative(lengths)), "all_token_ids_ptr": ids,
        "all_token_ids_stride": ids.stride(0),
        "prefill_lens_ptr": i32(prompt), "num_computed_tokens_ptr": i32(computed), "BLOCK_SIZE": 8,
        "LOOKAHEAD_BLOCK": 1 << (lookahead - 1).bit_length(),
    }  # fmt: skip
    return Case((len(rows),), named)


@case("prepare_pos_seq_lens")
def positions(rng: np.random.Generator) -> Case:
    rows = some_rows(rng, low=0)
    named = {
        "pos_ptr": i64(rng.integers(0, 99, 128)), "seq_lens_ptr": i32(rng.integers(0, 99, MAX_REQS)),
        "idx_mapping_ptr": index(rng, rows), "query_start_loc_ptr": i32(cumulative(rng.integers(0, 14, len(rows)))),
        "num_computed_tokens_ptr": i32(rng.integers(0, 99, MAX_REQS)), "max_num_reqs": MAX_REQS, "BLOCK_SIZE": 8,
    }  # fmt: skip
    return Case((len(rows) + 1,), named)


def logits_layout(rng: np.random.Generator, count: int, new_tokens: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(logits, query lengths) of each request: between one and 1 + STEPS logits, at the end of the query."""
    num_logits = rng.integers(0, STEPS + 1, count) + new_tokens
    return num_logits, num_logits + rng.integers(0, 3, count)


@case("combine_sampled_and_draft_tokens")
def combine(rng: np.random.Generator) -> Case:
    rows, new_tokens = some_rows(rng), int(rng.integers(0, 2))
    num_logits, lengths = logits_layout(rng, len(rows), new_tokens)
    last = i64(rng.integers(0, 99, (MAX_REQS, 1) if rng.integers(2) else MAX_REQS))
    drafts = i64(rng.integers(-1, 99, (MAX_REQS, STEPS)))
    named = {
        "input_ids_ptr": i32(rng.integers(0, 99, 128)), "idx_mapping_ptr": index(rng, rows),
        "last_sampled_tokens_ptr": last,
        "query_start_loc_ptr": i32(cumulative(lengths)), "seq_lens_ptr": i32(rng.integers(1, 12, len(rows))),
        "prefill_len_ptr": i32(rng.integers(1, 12, MAX_REQS)), "draft_tokens_ptr": drafts,
        "draft_tokens_stride": drafts.stride(0), "cu_num_logits_ptr": i32(cumulative(num_logits)),
        "logits_indices_ptr": i64(np.zeros(num_logits.sum())), "BLOCK_SIZE": 4, "NUM_NEW_SAMPLED_TOKENS": new_tokens,
    }  # fmt: skip
    return Case((len(rows),), named)


@case("num_sampled_and_rejected")
def rejected(rng: np.random.Generator) -> Case:
    rows = some_rows(rng)
    num_logits, _ = logits_layout(rng, len(rows))
    named = {
        "num_sampled_ptr": i32(rng.integers(0, num_logits + 1)), "num_rejected_ptr": i32(rng.integers(0, 9, len(rows))),
        "seq_lens_ptr": i32(rng.integers(1, 12, len(rows))), "cu_num_logits_ptr": i32(cumulative(num_logits)),
        "idx_mapping_ptr": index(rng, rows), "prefill_len_ptr": i32(rng.integers(1, 12, MAX_REQS)),
    }  # fmt: skip
    return Case((len(rows),), named)


@case("post_update")
def after_step(rng: np.random.Generator) -> Case:
    rows = some_rows(rng)
    num_logits, lengths = logits_layout(rng, len(rows))
    num_sampled = rng.integers(0, num_logits + 1)
    by_cores = "num_rows" in parameters("post_update")
    if not by_cores:
        rows = np.where(rng.random(len(rows)) < 0.2, -1, rows)
    counts, ids = i32(rng.integers(0, 9, (MAX_REQS, VOCAB))), i32(rng.integers(0, 9, (MAX_REQS, MAX_LEN)))
    sampled = i64(rng.integers(0, VOCAB, (len(rows), STEPS + 1)))
    with_counts = by_cores or rng.integers(2)
    named = {
        "idx_mapping_ptr": index(rng, rows), "idx_mapping_stride": 1, "num_rows": len(rows),
        "num_computed_tokens_ptr": i32(rng.integers(0, 9, MAX_REQS)),
        "last_sampled_tokens_ptr": i64(rng.integers(0, 9, (MAX_REQS, 1))),
        "output_bin_counts_ptr": counts if with_counts else None,
        "output_bin_counts_stride": VOCAB if with_counts else 0,
        "sampled_tokens_ptr": sampled, "sampled_tokens_stride": sampled.stride(0), "num_sampled_ptr": i32(num_sampled),
        "num_rejected_ptr": i32(num_logits - num_sampled),
        "query_start_loc_ptr": i32(cumulative(lengths)) if by_cores or rng.integers(3) else None,
        "all_token_ids_ptr": ids, "all_token_ids_stride": ids.stride(0), "total_len_ptr": i32(rng.integers(0,
        MAX_LEN - 5, MAX_REQS)),
    }  # fmt: skip
    return Case((min(len(rows), 3) if by_cores else len(rows),), named)


@case("post_update_num_computed_tokens")
def advance(rng: np.random.Generator) -> Case:
    rows = some_rows(rng)
    named = {
        "idx_mapping_ptr": index(rng, rows), "num_computed_tokens_ptr": i32(rng.integers(0, 9, MAX_REQS)),
        "query_start_loc_ptr": i32(cumulative(rng.integers(0, 9, len(rows)))),
    }  # fmt: skip
    return Case((len(rows),), named)


@case("expand_idx_mapping")
def expand(rng: np.random.Generator) -> Case:
    rows = some_rows(rng)
    num_logits = rng.integers(0, STEPS + 2, len(rows))
    mapping = index(rng, np.where(rng.random(len(rows)) < 0.2, -1, rows))
    named = {
        "idx_mapping_ptr": mapping, "expanded_idx_mapping_ptr": torch.zeros(int(num_logits.sum()), dtype=mapping.dtype),
        "expanded_local_pos_ptr": i32(np.zeros(num_logits.sum())), "cu_num_logits_ptr": i32(cumulative(num_logits)),
        "BLOCK_SIZE": 4,
    }  # fmt: skip
    return Case((len(rows),), named)


def pointers(tables: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([table.data_ptr() for table in tables], dtype=torch.uint64)


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


def logits_of(rng: np.random.Generator, count: int) -> torch.Tensor:
    """Logits with ties and a few -inf, in rows that are longer than the vocabulary."""
    values = np.round(rng.normal(size=(count, VOCAB + 5)) * 4) / 4
    return f32(np.where(rng.random(values.shape) < 0.1, -np.inf, values))


@case("temperature")
def divide(rng: np.random.Generator) -> Case:
    count = int(rng.integers(1, 9))
    logits = f32(rng.normal(size=(count, VOCAB + 5)))
    named = {
        "logits_ptr": logits, "logits_stride": logits.stride(0), "expanded_idx_mapping_ptr": index(rng,
        rng.integers(0, MAX_REQS, count)),
        "temperature_ptr": f32(rng.choice([0, 1, 0.3, 0.7, 1.9], MAX_REQS)), "vocab_size": VOCAB, "BLOCK_SIZE": 64,
    }  # fmt: skip
    return Case((count, 1), named)


def draw(rng: np.random.Generator, greedy: bool, cache: bool) -> Case:
    count, blocks = int(rng.integers(1, 9)), 3
    logits = logits_of(rng, count)
    if rng.integers(2) and not cache:
        logits = logits.to(torch.bfloat16)
    rows = rng.permutation(MAX_REQS)[:count]
    argmax, maximum = i64(np.zeros((count, blocks))), f32(np.zeros((count, blocks)))
    cached = f32(np.zeros((MAX_REQS, STEPS, VOCAB)))
    per_token = bool(rng.integers(2))
    column = i64(rng.integers(0, STEPS, count)) if per_token else i64(rng.integers(0, STEPS))
    named = {
        "local_argmax_ptr": argmax, "local_argmax_stride": blocks, "local_max_ptr": maximum, "local_max_stride": blocks,
        "logits_cache_ptr": cached if cache else None, "logits_cache_stride_0": cached.stride(0) if cache else 0,
        "logits_cache_stride_1": cached.stride(1) if cache else 0,
        "logits_cache_stride": cached.stride(0) if cache else 0,
        "logits_cache_col_ptr": column if cache else None, "processed_logits_ptr": None, "processed_logits_stride": 0,
        "processed_logits_col_ptr": None, "logits_ptr": logits, "logits_stride": logits.stride(0),
        "expanded_idx_mapping_ptr": index(rng, np.where(rng.random(count) < 0.2, -1, rows)),
        "seeds_ptr": i64(rng.integers(-(2**62), 2**62, MAX_REQS)), "pos_ptr": i64(rng.integers(0, 2**20, count)),
        "temp_ptr": f32(np.zeros(MAX_REQS) if greedy else rng.choice([0, 0.5, 1, 1.4], MAX_REQS)),
        "vocab_size": VOCAB, "BLOCK_SIZE": 16,
        "IS_DRAFTING": bool(rng.integers(2)), "APPLY_TEMPERATURE": bool(rng.integers(2)), "USE_FP64": False,
        "PER_TOKEN_COL": per_token and cache,
    }  # fmt: skip
    return Case((count, blocks), named)


@case("gumbel_sample")
def draw_greedy(rng: np.random.Generator) -> Case:
    return draw(rng, greedy=True, cache=False)


@case("gumbel_sample")
def draw_noised(rng: np.random.Generator) -> Case:
    return draw(rng, greedy=False, cache=False)


def verification(rng: np.random.Generator) -> tuple[dict[str, Any], np.ndarray]:
    """Arguments that the kernels of greedy rejection sampling share, and the logits of each request."""
    rows = some_rows(rng)
    num_logits, _ = logits_layout(rng, len(rows))
    total, blocks = int(num_logits.sum()), 3
    logits, argmax = logits_of(rng, total), rng.integers(0, 4, (total, blocks))
    drafts = f32(np.zeros((MAX_REQS, STEPS, VOCAB)))
    few = i64(rng.integers(-1, 4, total + 1)[:total])
    table = f32(np.zeros((total, blocks)))
    named = {
        "target_local_argmax_ptr": i64(argmax), "target_local_max_ptr": f32(rng.integers(0, 3, (total, blocks))),
        "target_local_sumexp_ptr": table, "draft_local_max_ptr": table.clone(), "draft_local_sumexp_ptr": table.clone(),
        "target_logits_ptr": logits, "target_logits_stride": logits.stride(0), "draft_logits_ptr": drafts,
        "draft_logits_stride_0": drafts.stride(0), "draft_logits_stride_1": drafts.stride(1), "draft_sampled_ptr": few,
        "idx_mapping_ptr": index(rng, rows), "expanded_idx_mapping_ptr": index(rng, np.repeat(rows, num_logits)),
        "expanded_local_pos_ptr": i32(np.concatenate([np.arange(n) for n in num_logits])),
        "cu_num_logits_ptr": i32(cumulative(num_logits)),
        "temp_ptr": f32(np.zeros(MAX_REQS)), "seed_ptr": i64(rng.integers(0, 99, MAX_REQS)),
        "pos_ptr": i64(rng.integers(0, 99, total)),
        "vocab_size": VOCAB, "num_speculative_steps": STEPS, "BLOCK_SIZE": 16, "vocab_num_blocks": blocks,
        "PADDED_VOCAB_NUM_BLOCKS": 4,
        "HAS_DRAFT_LOGITS": bool(rng.integers(2)), "SYNTHETIC_MODE": False, "USE_BLOCK_VERIFICATION": False,
        "USE_FP64": False,
        "synthetic_conditional_rates_ptr": None, "cumulative_log_p_ptr": None, "local_residual_mass_ptr": None,
        "local_residual_mass_stride": 0, "contexts_ptr": None, "contexts_stride": 0, "watermarking_ptr": None,
        "watermark_key_0": 0,
        "watermark_key_1": 0, "CONTEXT_WIDTH": 1, "WATERMARK": False, "PADDED_RESAMPLE_NUM_BLOCKS": 4,
        "resample_num_blocks": blocks,
    }  # fmt: skip
    for name in (
        "target_local_argmax",
        "target_local_max",
        "target_local_sumexp",
        "draft_local_max",
        "draft_local_sumexp",
    ):
        named[f"{name}_stride"] = blocks
    count = len(rows)
    accepted = rng.integers(0, num_logits)
    named |= {
        "sampled_ptr": i64(np.full((count, STEPS + 1), 55)), "sampled_stride": STEPS + 1,
        "rejected_steps_ptr": i32(np.full(count, 55)),
        "target_rejected_logsumexp_ptr": f32(np.full(count, 5)), "draft_rejected_logsumexp_ptr": f32(np.full(count, 5)),
        "rejected_step_ptr": i32(accepted), "num_sampled_ptr": i32(accepted),
        "resampled_local_argmax_ptr": i64(rng.integers(0, VOCAB, (count, blocks))),
        "resampled_local_argmax_stride": blocks,
        "resampled_local_max_ptr": f32(rng.integers(0, 3, (count, blocks))), "resampled_local_max_stride": blocks,
    }  # fmt: skip
    return named, num_logits


@case("local_logits_stats")
def stats(rng: np.random.Generator) -> Case:
    named, num_logits = verification(rng)
    return Case((int(num_logits.sum()), 3), named)


@case("rejection")
def verify(rng: np.random.Generator) -> Case:
    named, num_logits = verification(rng)
    return Case((len(num_logits),), named)


@case("resample")
def bonus(rng: np.random.Generator) -> Case:
    named, num_logits = verification(rng)
    return Case((len(num_logits), 3), named)


@case("insert_resampled")
def insert(rng: np.random.Generator) -> Case:
    named, num_logits = verification(rng)
    named["temp_ptr"] = f32(rng.choice([0, 0.7], MAX_REQS))
    return Case((len(num_logits),), named)


@case("draft_prefill_inputs")
def draft_first(rng: np.random.Generator) -> Case:
    rows = some_rows(rng)
    num_logits, lengths = logits_layout(rng, len(rows))
    named = {
        "last_token_indices_ptr": i64(np.full(MAX_REQS, 7)), "draft_current_step_ptr": i64(2),
        "draft_input_ids_ptr": i32(np.zeros(128)),
        "draft_positions_ptr": i64(np.zeros(128)), "draft_query_start_loc_ptr": i32(np.zeros(MAX_REQS + 1)),
        "draft_seq_lens_ptr": i32(np.full(MAX_REQS, 7)), "target_input_ids_ptr": i32(rng.integers(0, 99, 128)),
        "target_positions_ptr": i64(rng.integers(0, 99, 128)), "idx_mapping_ptr": index(rng, rows),
        "last_sampled_ptr": i64(rng.integers(0, 99, (MAX_REQS, 1))), "next_prefill_tokens_ptr": i32(rng.integers(0,
        99, MAX_REQS)),
        "num_sampled_ptr": i32(rng.integers(0, 2, len(rows))), "num_rejected_ptr": i32(rng.integers(0, num_logits)),
        "query_start_loc_ptr": i32(cumulative(lengths)), "seq_lens_ptr": i32(rng.integers(1, 99, len(rows))),
        "max_num_reqs": MAX_REQS, "BLOCK_SIZE": 4,
    }  # fmt: skip
    return Case((len(rows),), named)


@case("draft_decode_inputs")
def draft_second(rng: np.random.Generator) -> Case:
    count = int(rng.integers(1, MAX_REQS + 1))
    drafts = i64(rng.integers(0, 99, (count, STEPS)))
    if rng.integers(2):
        drafts = drafts[:, 0]
    old = "sample_src_positions_ptr" not in parameters("draft_decode_inputs")
    named = {
        "draft_tokens_ptr": drafts, "draft_tokens_stride": drafts.stride(0),
        "target_seq_lens_ptr": i32(rng.integers(9, MAX_LEN + 1, count)),
        "num_rejected_ptr": i32(rng.integers(0, STEPS, count)), "input_ids_ptr": i32(np.zeros(32)),
        "positions_ptr": i64(rng.integers(0, MAX_LEN, 32)), "sample_src_positions_ptr": i64(rng.integers(0, 9,
        MAX_REQS)),
        "query_start_loc_ptr": i32(np.zeros(MAX_REQS + 1)), "seq_lens_ptr": i32(np.full(MAX_REQS, 7)),
        "max_model_len": MAX_LEN,
        "max_num_reqs": MAX_REQS, "BLOCK_SIZE": 4, "ADVANCE_DRAFT_POSITIONS": bool(old or rng.integers(2)),
    }  # fmt: skip
    return Case((count + 1,), named)


@case("update_draft_inputs")
def draft_next(rng: np.random.Generator) -> Case:
    count, hidden_size = int(rng.integers(1, MAX_REQS + 1)), 20
    output, hidden = (
        i64(np.full((MAX_REQS, STEPS), 7)),
        torch.from_numpy(rng.random((count, hidden_size))).to(torch.bfloat16),
    )
    following = torch.zeros(MAX_REQS, hidden_size, dtype=torch.bfloat16)
    named = {
        "output_draft_tokens_ptr": output, "output_draft_tokens_stride": output.stride(0),
        "next_input_hidden_states_ptr": following,
        "next_input_hidden_states_stride": following.stride(0), "input_ids_ptr": i32(np.zeros(32)),
        "positions_ptr": i64(rng.integers(MAX_LEN - 3, MAX_LEN, 32)), "sample_src_positions_ptr": i64(rng.integers(0,
        9, MAX_REQS)),
        "seq_lens_ptr": i32(rng.integers(MAX_LEN - 3, MAX_LEN + 1, MAX_REQS)), "draft_tokens_ptr": i64(rng.integers(0,
        99, count)),
        "current_draft_step_ptr": i64(rng.integers(0, STEPS)), "hidden_states_ptr": hidden,
        "hidden_states_stride": hidden.stride(0),
        "hidden_size": hidden_size, "max_model_len": MAX_LEN, "num_speculative_steps": STEPS, "BLOCK_SIZE": 8,
        "ADVANCE_DRAFT_POSITIONS": bool(rng.integers(2)),
    }  # fmt: skip
    return Case((count,), named)


# The kernel under test is looked up by its builders through this: a version may have fewer parameters.
_current: list[FastKernel] = []


def parameters(_name: str) -> tuple[str, ...]:
    return _current[-1].parameters


@pytest.fixture(scope="module", autouse=True)
def fast_kernels() -> Iterator[None]:
    """The simulator active, all fast kernels in place, and the interpreter's log1p answered exactly."""
    ascend_sim.activate()
    importlib.import_module("vllm.config")  # as an engine does it: vLLM first
    importlib.import_module("vllm_ascend.ops")  # before the runner's modules: the two import each other
    import triton.language as tl
    import vllm.v1.worker.gpu.sample.gumbel as gumbel
    from triton.runtime.interpreter import TensorHandle

    def log1p(x: Any) -> Any:
        return tl.core.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    saved, gumbel.tldevice = gumbel.tldevice, types.SimpleNamespace(log1p=log1p)
    kernels.install("fast")
    yield
    kernels.remove()
    gumbel.tldevice = saved


def installed(name: str) -> list[FastKernel]:
    found = [fast for fast in registry._installed.values() if fast.name == name]
    assert found, f"no fast kernel {name} on this pair: {[s for s in kernels.status() if s.name == name]}"
    return found


def launch(kernel: Any, names: tuple[str, ...], made: Case) -> None:
    kernel[made.grid](**{name: made.named[name] for name in names})


def differences(fast: FastKernel, build: Build, seed: int, function: Callable[..., None] | None = None) -> list[str]:
    """Names (or numbers) of the tensors that differ after the interpreter's run and the fast one."""
    _current.append(fast)
    reference, made = build(np.random.default_rng(seed)), build(np.random.default_rng(seed))
    launch(fast.original, fast.parameters, reference)
    if function is None:
        launch(fast, fast.parameters, made)
    else:
        function(made.grid, **{name: made.named[name] for name in fast.parameters})
    names = [name for name, value in made.named.items() if isinstance(value, torch.Tensor)]
    names += [f"memory {i}" for i in range(len(made.memory))]
    pairs = zip(names, reference.tensors(), made.tensors(), strict=True)
    return [name for name, left, right in pairs if not same_bits(left, right)]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the last bit, NaN included; raw addresses (uint64) belong to their own case and are not compared."""
    if left.dtype == torch.uint64:
        return True
    if left.numel() == 0:
        return bool(left.shape == right.shape)
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return torch.equal(*bits)


@pytest.mark.parametrize(("name", "build"), [(name, build) for name, builds in CASES.items() for build in builds])
def test_fast_kernel_equals_the_interpreter(name: str, build: Build) -> None:
    for fast in installed(name):
        fast.declined.clear()
        for seed in SEEDS:
            assert differences(fast, build, seed) == [], f"{fast!r}, seed {seed}"
        assert fast.declined == {}, "the cases are meant to be covered"


@pytest.mark.parametrize("name", kernels.NAMES)
def test_planted_fault_is_seen(name: str) -> None:
    """A fast kernel whose first written number is off by one differs from the interpreter."""
    fast, build = installed(name)[0], CASES[name][0]

    def faulty(grid: tuple[int, ...], **named: Any) -> None:
        tensors = [value for value in named.values() if isinstance(value, torch.Tensor)]
        before = [tensor.clone() for tensor in tensors]
        fast.function(grid, **named)
        for tensor, old in zip(tensors, before, strict=True):
            if tensor.numel() and not torch.equal(tensor, old):
                changed = (tensor != old).reshape(-1).nonzero()[0]
                tensor.view(-1)[changed] += 1
                return

    def faulty_memory(grid: tuple[int, ...], **named: Any) -> None:
        """This kernel writes through raw addresses only: the mapping is read in reverse."""
        mapping = named.pop("batch_idx_to_req_idx")
        fast.function(grid, batch_idx_to_req_idx=mapping.flip(0).contiguous(), **named)

    fault = faulty_memory if name == "gather_block_tables" else faulty
    assert any(differences(fast, build, seed, fault) for seed in SEEDS)


def test_every_kernel_of_this_pair_is_fast() -> None:
    left = [entry for entry in kernels.status() if not entry.fast and not entry.reason.startswith("no such")]
    assert [entry for entry in left if "not a Triton kernel" not in entry.reason] == []
    assert {entry.name for entry in kernels.status() if entry.fast} == set(kernels.NAMES)


def check_declined(fast: FastKernel, build: Build, reason: str, **changes: Any) -> None:
    """The fast kernel declines, says why, and the interpreter's result stands."""

    def changed(rng: np.random.Generator) -> Case:
        made = build(rng)
        made.named |= {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in changes.items()
        }
        return made

    fast.declined.clear()
    assert differences(fast, changed, 1) == []
    assert [key for key in fast.declined if reason in key], fast.declined


def test_context_parallelism_is_the_interpreters() -> None:
    for fast in installed("slot_mapping"):
        check_declined(fast, slots, "context parallelism", CP_SIZE=2)


def test_requests_with_a_temperature_are_verified_by_the_interpreter() -> None:
    for name, build in (("local_logits_stats", stats), ("rejection", verify), ("resample", bonus)):
        check_declined(installed(name)[0], build, "temperature", temp_ptr=f32(np.full(MAX_REQS, 0.8)))


def test_nan_logits_are_the_interpreters() -> None:
    def build(rng: np.random.Generator) -> Case:
        made = draw(rng, greedy=True, cache=False)
        made.named["logits_ptr"][0, 0] = float("nan")
        return made

    check_declined(installed("gumbel_sample")[0], build, "NaN")


def test_logits_cache_holds_the_logits_before_temperature() -> None:
    """Triton's interpreter cannot run this store (its mask has a type it refuses), so the definition stands in for
    it.
    """
    fast = installed("gumbel_sample")[0]
    if "processed_logits_ptr" in fast.parameters:
        made = draw(np.random.default_rng(1), greedy=True, cache=False)
        made.named["processed_logits_ptr"] = f32(np.zeros((MAX_REQS, STEPS, VOCAB)))
        with pytest.raises(NotCovered, match="cache of processed logits"):
            fast.function(made.grid, **{name: made.named[name] for name in fast.parameters})
        return
    for seed in SEEDS:
        made = draw(np.random.default_rng(seed), greedy=seed % 2 == 0, cache=True)
        launch(fast, fast.parameters, made)
        expected = torch.zeros(MAX_REQS, STEPS, VOCAB)
        column = made.named["logits_cache_col_ptr"].expand(made.grid[0])
        for token, row in enumerate(made.named["expanded_idx_mapping_ptr"]):
            if row >= 0:
                expected[row, column[token]] = made.named["logits_ptr"][token, :VOCAB]
        assert torch.equal(made.named["logits_cache_ptr"], expected)


def test_one_kernel_can_be_left_to_the_interpreter() -> None:
    import vllm.v1.worker.gpu.block_table as block_table

    original = installed("gather_block_tables")[0].original
    try:
        kernels.install("gather_block_tables=interpreter")
        assert block_table._gather_block_tables_kernel is original
        assert {entry.name for entry in kernels.status() if entry.fast} == set(kernels.NAMES) - {"gather_block_tables"}
        kernels.install("interpreter,slot_mapping=fast")
        assert {entry.name for entry in kernels.status() if entry.fast} == {"slot_mapping"}
    finally:
        kernels.install("fast")


def test_imported_copies_are_replaced_and_put_back() -> None:
    import vllm.v1.worker.gpu.block_table as home
    import vllm.v1.worker.gpu.input_batch as other

    original = installed("gather_block_tables")[0].original
    kernels.remove()
    try:
        other.copy_of_kernel = home._gather_block_tables_kernel
        kernels.install("fast")
        assert isinstance(other.copy_of_kernel, FastKernel)
        assert other.copy_of_kernel is home._gather_block_tables_kernel
        kernels.remove()
        assert other.copy_of_kernel is original
        assert home._gather_block_tables_kernel is original
    finally:
        del other.copy_of_kernel
        kernels.install("fast")


def test_a_kernel_with_another_body_stays_in_the_interpreter() -> None:
    """Same parameter names, another body: the contract is the source, not the signature."""
    import vllm.v1.worker.gpu.input_batch as home
    from triton.runtime.interpreter import InterpretedFunction

    def _post_update_num_computed_tokens_kernel(idx_mapping_ptr, num_computed_tokens_ptr, query_start_loc_ptr):  # type: ignore[no-untyped-def]
        pass

    kernels.remove()
    original = home._post_update_num_computed_tokens_kernel
    planted = InterpretedFunction(_post_update_num_computed_tokens_kernel)
    try:
        home._post_update_num_computed_tokens_kernel = planted
        kernels.install("fast")
        entry = next(s for s in kernels.status() if s.name == "post_update_num_computed_tokens")
        assert home._post_update_num_computed_tokens_kernel is planted
        assert not entry.fast
        assert "is not one the fast kernel was tested against" in entry.reason
    finally:
        home._post_update_num_computed_tokens_kernel = original
        kernels.install("fast")


def test_install_twice_is_once() -> None:
    import vllm.v1.worker.gpu.input_batch as home

    kernels.install("fast")
    assert not isinstance(home._post_update_kernel.original, FastKernel)
