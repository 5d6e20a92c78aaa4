"""How an engine's KV cache is laid out: one `GroupLayout` per KV cache group, declared by whoever builds the engine.

Most address faults are a right rule on the wrong group, so the rule hangs on the group. Units: a *manager block* is
what the scheduler hands out and names by id; a *kernel block* is what a block table row names. One manager block `id`
is `ratio` kernel blocks `id * ratio + j`. Tokens are counted per rank unless said otherwise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from kv_plan_guard.errors import LayoutError

Kind: TypeAlias = Literal["full", "mla", "sliding", "chunked_local", "mamba", "ring", "cross"]
KINDS: Final[tuple[Kind, ...]] = ("full", "mla", "sliding", "chunked_local", "mamba", "ring", "cross")
Slots: TypeAlias = Literal["used", "disabled", "unused"]
SLOTS: Final[tuple[Slots, ...]] = ("used", "disabled", "unused")
MambaMode: TypeAlias = Literal["none", "align", "all"]
MAMBA_MODES: Final[tuple[MambaMode, ...]] = ("none", "align", "all")


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """One KV cache group.

    kind
        `full`, `mla`: every position from 0 on is read. `sliding`: the last `window` positions. `chunked_local`: from
        the start of the current chunk of `window` positions. `mamba`: recurrent state, see `mamba_mode`. `ring`: one
        block per request, addressed by `position % block_size`. `cross`: keys of the encoder's tokens.
    block_size
        Tokens per manager block and rank.
    pool_blocks
        Number of manager blocks of this group, the null block included: ids are `0 .. pool_blocks - 1`.
    row_width
        Columns (kernel blocks) of one block table row; None where it is not known: ROW_OVERFLOW is then not judged.
    kernel_block_size
        Tokens per kernel block; None means `block_size`. Must divide it.
    kernel_pool_blocks
        Number of kernel blocks that really exist, where this group's buffer is smaller than
        `pool_blocks * ratio`; None means all of them.
    slot_dtype
        Type of the slot mapping on the device; a slot that does not fit is an error of its own (INT32).
    window
        Positions of the sliding window (the current one counted) or of one local chunk.
    null_block
        Id of the block nobody may write, usually 0; None where there is none.
    shards, shard_rank, interleave
        The group's KV is spread over `shards` ranks (DCP, or DCP times PCP), `interleave` tokens at a time in turn;
        this rank holds part `shard_rank`. `shards == 1` means replicated or not parallel: each rank holds all.
    slots
        `used`: the slot mapping says where this group writes. `disabled`: the runner fills it with -1. `unused`: the
        runner fills it by the common rule and no consumer of this group reads it (not judged).
    mamba_mode, state_blocks
        `none`: column 0 holds the state, followed by `state_blocks` speculative ones. `align`: the state before the
        step lies in column `(ncomp - 1) // block_size`, after it in `(ncomp + n - 1) // block_size`. `all`: one state
        per block.
    ephemeral
        Whether the scheduler replaces blocks that are no longer needed without telling the worker: window, chunk and
        state groups. Derived from the kind.
    """

    kind: Kind
    block_size: int
    pool_blocks: int
    row_width: int | None = None
    kernel_block_size: int | None = None
    kernel_pool_blocks: int | None = None
    slot_dtype: Literal["int32", "int64"] = "int64"
    window: int | None = None
    null_block: int | None = 0
    shards: int = 1
    shard_rank: int = 0
    interleave: int = 1
    slots: Slots = "used"
    mamba_mode: MambaMode = "none"
    state_blocks: int = 0

    def __post_init__(self) -> None:
        self._one_of("kind", KINDS)
        self._one_of("slots", SLOTS)
        self._one_of("mamba_mode", MAMBA_MODES)
        self._one_of("slot_dtype", ("int32", "int64"))
        for name in ("block_size", "pool_blocks", "shards", "interleave"):
            self._at_least(name, 1)
        for name in ("shard_rank", "state_blocks"):
            self._at_least(name, 0)
        for name in ("row_width", "kernel_block_size", "kernel_pool_blocks", "window"):
            if getattr(self, name) is not None:
                self._at_least(name, 1)
        if self.block_size % self.kernel_size:
            self._refuse("kernel_block_size", f"a divisor of block_size {self.block_size}")
        if (self.kind in ("sliding", "chunked_local")) != (self.window is not None):
            self._refuse("window", f"{'set' if self.window is None else 'None'} for kind {self.kind!r}")
        if self.shard_rank >= self.shards:
            self._refuse("shard_rank", f"below shards {self.shards}")
        if self.shards > 1 and self.kind in ("mamba", "ring", "cross"):
            self._refuse("shards", f"1 for kind {self.kind!r}: such a group is replicated on every rank")
        if self.shards > 1 and self.block_size % self.interleave:
            self._refuse("interleave", f"a divisor of block_size {self.block_size}")
        if self.null_block is not None and not 0 <= self.null_block < self.pool_blocks:
            self._refuse("null_block", f"a block id below pool_blocks {self.pool_blocks}, or None")

    def _refuse(self, name: str, wanted: str) -> None:
        raise LayoutError(f"GroupLayout.{name} must be {wanted}, got {getattr(self, name)!r}")

    def _one_of(self, name: str, known: tuple[str, ...]) -> None:
        if getattr(self, name) not in known:
            self._refuse(name, f"one of {', '.join(known)}")

    def _at_least(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            self._refuse(name, f"a whole number >= {low}")

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.block_size if self.kernel_block_size is None else self.kernel_block_size

    @property
    def ratio(self) -> int:
        """Kernel blocks per manager block."""
        return self.block_size // self.kernel_size

    @property
    def kernel_pool(self) -> int:
        """Number of kernel blocks that exist; block table entries must lie below."""
        return self.pool_blocks * self.ratio if self.kernel_pool_blocks is None else self.kernel_pool_blocks

    @property
    def span(self) -> int:
        """Tokens of the whole sequence that one manager block of one rank stands for: `block_size * shards`."""
        return self.block_size * self.shards

    @property
    def slots_fit_int32(self) -> bool:
        """Whether every slot of the whole pool fits int32, so that none can wrap."""
        return self.pool_blocks * self.block_size <= 1 << 31

    @property
    def ephemeral(self) -> bool:
        """Whether blocks leave a live request unannounced (see the class)."""
        return self.kind in ("sliding", "chunked_local", "mamba")


@dataclass(frozen=True, slots=True)
class Layout:
    """What an engine's worker declares once, at start.

    groups
        In the order of the engine's KV cache groups; a group's index is its number in every fact.
    max_model_len
        Tokens; None where not known. Draft positions at or beyond it must be -1 in the slot mapping.
    pcp_size, pcp_rank, pcp_decode
        Prefill context parallel: the *rows* of one step are split over ranks (the KV may be replicated). Decodes are
        `replicated` on every rank, or `sharded`, each on one rank; `any`: either is lawful.
    steps_in_flight
        Steps that may be dispatched and not settled when the scheduler makes another one: 0 under synchronous
        scheduling, 1 under asynchronous, pipeline stages - 1 (or more) with pipeline parallel. Used where a
        `StepFacts.settled` is None.
    num_speculative_tokens
        Drafts per request and step at most; 0 without speculation.
    tokens_per_write
        Decode iterations that one scheduled step of a request runs (a block may be written that far ahead): 1.
    connector, connector_checks
        Class name of the KV connector, None without one; and which of `LIFETIME` and `CONN` the adapter feeds for it.
        An adapter names the connectors it can read; for any other both are reported inactive.
    rank, pair
        Free text for reports ("tp0 pp0", "0.30.0").
    """

    groups: tuple[GroupLayout, ...]
    max_model_len: int | None = None
    pcp_size: int = 1
    pcp_rank: int = 0
    pcp_decode: Literal["any", "replicated", "sharded"] = "any"
    steps_in_flight: int = 0
    num_speculative_tokens: int = 0
    tokens_per_write: int = 1
    connector: str | None = None
    connector_checks: tuple[str, ...] = ()
    rank: str = ""
    pair: str = ""
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not self.groups or not all(isinstance(group, GroupLayout) for group in self.groups):
            raise LayoutError(f"Layout.groups must be at least one GroupLayout, got {self.groups!r}")
        if unknown := set(self.connector_checks) - {"LIFETIME", "CONN"}:
            raise LayoutError(f"Layout.connector_checks must be among LIFETIME and CONN, got {sorted(unknown)!r}")
        lows = {"pcp_size": 1, "pcp_rank": 0, "steps_in_flight": 0, "num_speculative_tokens": 0, "tokens_per_write": 1}
        for name, low in lows.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise LayoutError(f"Layout.{name} must be a whole number >= {low}, got {value!r}")
        if self.pcp_decode not in ("any", "replicated", "sharded"):
            raise LayoutError(f"Layout.pcp_decode must be any, replicated or sharded, got {self.pcp_decode!r}")
        if self.pcp_rank >= self.pcp_size:
            raise LayoutError(f"Layout.pcp_rank must be below pcp_size {self.pcp_size}, got {self.pcp_rank!r}")


def to_json(layout: Layout) -> dict[str, Any]:
    """The layout as plain data."""
    return asdict(layout)


def from_json(value: object) -> Layout:
    """Read what `to_json` wrote; LayoutError for anything else."""
    plain = _fields(value, Layout)
    groups = plain.pop("groups", None)
    if not isinstance(groups, list | tuple) or len(groups) > 1024:
        raise LayoutError(f"Layout.groups must be a list of at most 1024 groups, got {type(groups).__name__}")
    texts: dict[str, Any] = {name: _texts(name, plain.pop(name, ())) for name in ("notes", "connector_checks")}
    for name in ("rank", "pair"):
        if not isinstance(plain.get(name, ""), str):
            raise LayoutError(f"Layout.{name} must be a text, got {plain[name]!r}")
    return Layout(groups=tuple(GroupLayout(**_fields(group, GroupLayout)) for group in groups), **texts, **plain)


def _texts(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise LayoutError(f"Layout.{name} must be a list of texts, got {value!r}")
    return tuple(value)


def _fields(value: object, of: type[Layout] | type[GroupLayout]) -> dict[str, Any]:
    known = {f.name for f in fields(of)}
    if not isinstance(value, dict) or not set(value) <= known:
        raise LayoutError(f"{of.__name__} must be an object with fields among {', '.join(sorted(known))}")
    required = {"groups"} if of is Layout else {"kind", "block_size", "pool_blocks"}
    if missing := required - set(value):
        raise LayoutError(f"{of.__name__} lacks {', '.join(sorted(missing))}")
    return dict(value)
