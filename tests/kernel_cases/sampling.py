"""Kernels of sampling and of greedy rejection sampling."""

from typing import Any

import numpy as np

from kernel_cases.base import (
    MAX_REQS,
    STEPS,
    VOCAB,
    Case,
    case,
    cumulative,
    f32,
    i32,
    i64,
    index,
    logits_layout,
    some_rows,
    torch,
)


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
