"""What the worker declares once: vLLM's KV cache groups as the core's `Layout`.

Specs are told apart by the names of their classes along the inheritance, most special first: vllm-ascend derives its
own from vLLM's, and older releases lack some.
"""

from __future__ import annotations

from typing import Any

from kv_plan_guard.adapters.connectors import checks_of
from kv_plan_guard.errors import UnsupportedError
from kv_plan_guard.layout import GroupLayout, Kind, Layout

# Class name in the MRO -> kind; the first hit along the MRO counts.
_KINDS: dict[str, Kind] = {
    "SlidingWindowSpec": "sliding",
    "ChunkedLocalAttentionSpec": "chunked_local",
    "MambaSpec": "mamba",
    "CircularBufferSpec": "ring",
    "CrossAttentionSpec": "cross",
    "MLAAttentionSpec": "mla",
    "FullAttentionSpec": "full",
}


def spec_of(group: Any) -> Any:
    """The spec that all layers of a KV cache group share in what matters here."""
    spec = group.kv_cache_spec
    inner = getattr(spec, "kv_cache_specs", None)
    return next(iter(inner.values())) if inner else spec


def kind_of(spec: Any) -> Kind:
    """The kind of a spec; UnsupportedError names a class that is none of the known ones."""
    for base in type(spec).__mro__:
        if base.__name__ in _KINDS:
            return _KINDS[base.__name__]
    raise UnsupportedError(
        f"kv-plan-guard knows no address rule for the KV cache spec {type(spec).__module__}.{type(spec).__name__}; "
        "an enabled guard would check nothing there. Remove kv_guard_config, or report the model."
    )


def group_layout(runner: Any, gid: int) -> GroupLayout:
    """The layout of one KV cache group of a runner whose caches exist."""
    tables = runner.block_tables
    spec = spec_of(runner.kv_cache_config.kv_cache_groups[gid])
    kind = kind_of(spec)
    sharded = kind in ("full", "mla") and runner.dcp_size > 1
    more: dict[str, Any] = {}
    if kind == "sliding":
        more["window"] = int(spec.sliding_window)
    elif kind == "chunked_local":
        more["window"] = int(spec.attention_chunk_size)
    elif kind == "mamba":
        more["mamba_mode"] = getattr(runner.cache_config, "mamba_cache_mode", "none")
        more["state_blocks"] = int(getattr(spec, "num_speculative_blocks", 0))
    return GroupLayout(
        kind=kind,
        block_size=int(spec.block_size),
        pool_blocks=int(runner.kv_cache_config.num_blocks),
        row_width=int(tables.input_block_tables[gid].shape[1]),
        kernel_block_size=int(runner.kernel_block_sizes[gid]),
        slot_dtype="int32" if str(tables.slot_mappings.dtype) == "torch.int32" else "int64",
        shards=runner.dcp_size if sharded else 1,
        shard_rank=runner.dcp_rank if sharded else 0,
        interleave=int(runner.cp_interleave) if sharded else 1,
        slots=_slots(tables, gid, kind),
        **more,
    )


def _slots(tables: Any, gid: int, kind: Kind) -> Any:
    """Who uses a group's slot mapping. Recurrent state is addressed by the row itself, whatever the mapping holds."""
    enabled = getattr(tables, "_slot_mapping_enabled", None)
    if enabled is not None and not enabled[gid]:
        return "disabled"
    return "unused" if kind in ("mamba", "ring") else "used"


def layout_of(runner: Any, pair: str, rank: str) -> Layout:
    """The layout of a runner after `initialize_kv_cache`; raises UnsupportedError for a group without a rule."""
    config = runner.vllm_config
    if not runner.kv_cache_config.kv_cache_groups:
        raise UnsupportedError(
            "kv-plan-guard has nothing to guard: this model has no KV cache group; remove kv_guard_config"
        )
    transfer = getattr(config, "kv_transfer_config", None)
    pcp = int(getattr(runner.parallel_config, "prefill_context_parallel_size", 1))
    return Layout(
        groups=tuple(group_layout(runner, gid) for gid in range(len(runner.kv_cache_config.kv_cache_groups))),
        max_model_len=int(runner.max_model_len),
        pcp_size=pcp,
        pcp_rank=_pcp_rank() if pcp > 1 else 0,
        steps_in_flight=max(int(config.max_concurrent_batches) - 1, 0),
        num_speculative_tokens=int(runner.num_speculative_steps),
        connector=getattr(transfer, "kv_connector", None),
        connector_checks=checks_of(getattr(transfer, "kv_connector", None)),
        rank=rank,
        pair=pair,
    )


def _pcp_rank() -> int:
    from vllm.distributed.parallel_state import get_pcp_group

    return int(get_pcp_group().rank_in_group)
