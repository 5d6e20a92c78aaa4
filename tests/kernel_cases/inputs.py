"""Kernels that prepare a step's inputs and advance the requests after it."""

import numpy as np

from kernel_cases.base import (
    MAX_LEN,
    MAX_REQS,
    STEPS,
    VOCAB,
    Case,
    case,
    cumulative,
    i32,
    i64,
    index,
    logits_layout,
    parameters,
    some_rows,
    torch,
)


@case("prepare_prefill_inputs")
def prefill(rng: np.random.Generator) -> Case:
    rows, lookahead = some_rows(rng), int(rng.integers(1, 5))
    prompt = rng.integers(1, MAX_LEN, MAX_REQS)
    computed = np.minimum(rng.integers(0, MAX_LEN, MAX_REQS), prompt + rng.integers(0, 2, MAX_REQS))
    lengths = np.minimum(rng.integers(0, 12, len(rows)), MAX_LEN - computed[rows])
    old = "num_lookahead" not in parameters()
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
    by_cores = "num_rows" in parameters()
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
