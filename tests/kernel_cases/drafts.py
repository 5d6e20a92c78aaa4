"""Kernels that prepare the inputs of a draft model."""

import numpy as np

from kernel_cases.base import (
    MAX_LEN,
    MAX_REQS,
    STEPS,
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
    old = "sample_src_positions_ptr" not in parameters()
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
