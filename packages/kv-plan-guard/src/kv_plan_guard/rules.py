"""The address rules, as pure functions over arrays; every layout kind has its rule here and nowhere else.

Units: positions and lengths in tokens of the whole sequence; columns in manager blocks. All arithmetic is int64, so
that nothing wraps here which wraps in a device type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kv_plan_guard.layout import GroupLayout

I64: TypeAlias = NDArray[np.int64]


def first_needed_token(layout: GroupLayout, computed: I64) -> I64:
    """First position that queries from position `computed` on still read, per row; 0 where all are read."""
    if layout.kind == "sliding":
        assert layout.window is not None
        return np.maximum(computed - (layout.window - 1), 0)
    if layout.kind == "chunked_local":
        assert layout.window is not None
        return computed - computed % layout.window
    if layout.kind == "mamba" and layout.mamba_mode != "none":
        return np.maximum(computed - 1, 0)
    return np.zeros_like(computed)


def needed_columns(layout: GroupLayout, computed: I64, end: I64) -> tuple[I64 | None, I64]:
    """Columns [first, stop) that a step from `computed` to `end` reads or writes, per row; None means all from 0.

    A ring has its one block; a state group without blocks per position has its state and the speculative ones.
    """
    if layout.kind == "ring":
        return None, (end > 0).astype(np.int64)
    if layout.kind == "mamba" and layout.mamba_mode == "none":
        return None, (end > 0) * (1 + layout.state_blocks)
    span = layout.span
    stop = (end + (span - 1)) // span
    if not layout.ephemeral:
        return None, stop
    return first_needed_token(layout, computed) // span, stop


def owner_and_local(layout: GroupLayout, positions: I64) -> tuple[NDArray[np.bool_], I64]:
    """Which positions this rank stores, and where in its own sequence: tokens are dealt out `interleave` at a time."""
    turn = positions // layout.interleave
    local = turn // layout.shards * layout.interleave + positions % layout.interleave
    return turn % layout.shards == layout.shard_rank, local


def local_length(lengths: I64, shards: int, rank: int, interleave: int) -> I64:
    """How many of the first `lengths` positions the rank stores."""
    deal = shards * interleave
    return lengths // deal * interleave + np.clip(lengths % deal - rank * interleave, 0, interleave)


def kernel_column_and_offset(layout: GroupLayout, positions: I64) -> tuple[NDArray[np.bool_], I64, I64]:
    """Per position: whether this rank writes it, its column in kernel blocks, and its offset inside that block."""
    size = layout.kernel_size
    if layout.kind == "ring":
        wrapped = positions % layout.block_size
        return np.ones(len(positions), np.bool_), wrapped // size, wrapped % size
    if layout.shards == 1:
        return np.ones(len(positions), np.bool_), positions // size, positions % size
    mine, local = owner_and_local(layout, positions)
    return mine, local // size, local % size


def state_column(layout: GroupLayout, computed: I64) -> I64:
    """Column of the recurrent state that a step starting at `computed` reads (0 at the start of a sequence)."""
    if layout.mamba_mode == "none":
        return np.zeros_like(computed)
    return np.maximum(computed - 1, 0) // layout.block_size


def pcp_segments(num_tokens: int, size: int, rank: int, replicated: bool) -> list[tuple[int, int]]:
    """(offset, length) of the pieces of a request's tokens that one rank of a prefill context parallel group computes.

    The tokens are cut into `2 * size` equal pieces, and each rank takes one from the front and its mirror image from
    the back, so that causal work is even; what is not cut (decodes) is whole on every rank. Empty pieces are left out.
    """
    if replicated or size == 1:
        return [(0, num_tokens)] if num_tokens else []
    piece = -(-num_tokens // (2 * size))
    found = []
    for which in (rank, 2 * size - 1 - rank):
        length = min(piece, num_tokens - which * piece)
        if length > 0:
            found.append((which * piece, length))
    return found


def pcp_too_short(num_tokens: int, size: int) -> bool:
    """Whether a prompt's tokens leave one of the `2 * size` pieces empty."""
    return (2 * size - 1) * -(-num_tokens // (2 * size)) >= num_tokens
