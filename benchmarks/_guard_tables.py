"""What the scheduler part of guard_clean builds of a segment: vLLM's configuration, scheduler and block tables.

Nothing here knows the guard, but for the facts of a plan that its audit is given, and the faults planted in them.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

BLOCK = 16
LONGEST = 400


def engine_config(segment: dict[str, Any]) -> Any:
    """A VllmConfig of the tiny model, sized for a small, crowded pool."""
    from ascend_sim import models
    from vllm.engine.arg_utils import EngineArgs

    more: dict[str, Any] = {}
    if segment.get("loads"):
        more["kv_transfer_config"] = {
            "kv_connector": "RandomConnector",
            "kv_connector_module_path": "_guard_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"inside": bool(segment.get("inside"))},
        }
    if segment.get("drafts"):
        draft = str(models.build("eagle"))
        more["speculative_config"] = {"method": "eagle", "model": draft, "num_speculative_tokens": segment["drafts"]}
    config = EngineArgs(
        model=str(models.build("dense")),
        skip_tokenizer_init=True,
        max_model_len=LONGEST,
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK,
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=segment.get("seats", 4),
        max_num_batched_tokens=96,
        enable_prefix_caching=True,
        async_scheduling=bool(segment.get("async")),
        **more,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = segment["pool"]
    # The platform may have turned it off; the scheduler asks its config how many steps are in flight, and without that
    # it gives blocks of an aborted request to a load while a step still writes them (which LIFETIME reports).
    config.scheduler_config.async_scheduling = bool(segment.get("async"))
    assert config.max_concurrent_batches == 1 + bool(segment.get("async"))
    return config


def kv_cache_config(segment: dict[str, Any]) -> Any:
    """The KV cache groups of a segment."""
    import torch
    from vllm.v1 import kv_cache_interface as kv

    shape = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
    made = {
        "full": lambda: kv.FullAttentionSpec(**shape),
        "sliding": lambda: kv.SlidingWindowSpec(**shape, sliding_window=40),
        "chunked_local": lambda: kv.ChunkedLocalAttentionSpec(**shape, attention_chunk_size=48),
        "mamba": lambda: kv.MambaSpec(
            block_size=BLOCK, shapes=((64,),), dtypes=(torch.float32,), mamba_cache_mode="align"
        ),
    }
    groups = [kv.KVCacheGroupSpec([f"layer{at}"], made[kind]()) for at, kind in enumerate(segment["groups"])]
    return kv.KVCacheConfig(num_blocks=segment["pool"], kv_cache_tensors=[], kv_cache_groups=groups)


def make_scheduler(config: Any, caches: Any, asynchronous: bool) -> Any:
    """The release's own scheduler."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.structured_output import StructuredOutputManager

    arguments = {
        "vllm_config": config,
        "kv_cache_config": caches,
        "log_stats": False,
        "structured_output_manager": StructuredOutputManager(config),
        "block_size": BLOCK,
        "hash_block_size": BLOCK,
    }
    kind = AsyncScheduler if asynchronous else Scheduler
    known = inspect.signature(Scheduler.__init__).parameters
    return kind(**{name: value for name, value in arguments.items() if name in known})


class Tables:
    """What a runner does between a decision and its attention metadata, with the release's own block tables."""

    def __init__(self, segment: dict[str, Any], caches: Any, draw: random.Random) -> None:
        import torch
        from vllm.v1.worker.gpu.block_table import BlockTables

        kind = BlockTables
        if segment.get("tables") == "ascend":
            from vllm_ascend.worker.v2.block_table import AscendBlockTables

            kind = AscendBlockTables
        groups = len(caches.kv_cache_groups)
        self.rows = segment.get("seats", 4) + 8
        # Else the runner's count is its own; `stale` plants the fault that it is not taken back.
        self.follows = bool(segment.get("inside")) and not segment.get("stale")
        arguments: dict[str, Any] = {
            "block_sizes": [BLOCK] * groups,
            "max_num_reqs": self.rows,
            "max_num_batched_tokens": 256,
            "max_num_blocks_per_group": [LONGEST // BLOCK + 2] * groups,
            "max_model_len": LONGEST,
            "device": torch.device("cpu"),
            "kernel_block_sizes": [BLOCK] * groups,
        }
        known = inspect.signature(kind.__init__).parameters
        self.tables = kind(**{name: value for name, value in arguments.items() if name in known})
        self.draw = draw
        self.index: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.free = list(range(self.rows))
        self.torch = torch

    def remove(self, name: str) -> None:
        at = self.index.pop(name, None)
        if at is not None:
            self.free.append(at)

    def follow(self, output: Any) -> None:
        """Requests and blocks of one decision, in the runner's own order of doing it."""
        for name in {*output.finished_req_ids, *(output.preempted_req_ids or ())}:
            self.remove(name)
        for request in output.scheduled_new_reqs:
            self.remove(request.req_id)
            at = self.index[request.req_id] = self.free.pop(self.draw.randrange(len(self.free)))
            self.computed[request.req_id] = request.num_computed_tokens
            self.tables.append_block_ids(at, request.block_ids, overwrite=True)
        cached = output.scheduled_cached_reqs
        updates = getattr(output, "block_table_updates", None) or {}
        for name, rows in updates.items():
            if name in self.index:
                self.tables.append_block_ids(self.index[name], rows, overwrite=True)
        if self.follows:
            # Behind a load that failed in its step the scheduler takes the request back, and a right runner follows.
            for name, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
                self.computed[name] = min(self.computed[name], computed)
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None and name not in updates:
                self.tables.append_block_ids(self.index[name], blocks, overwrite=False)
        self.tables.apply_staged_writes()

    def plans(self, step: int, output: Any) -> list[Any]:
        """The plan of each group, in a random row order, sometimes padded."""
        import numpy as np
        from kv_plan_guard import PlanFacts

        torch, draw = self.torch, self.draw
        names = list(output.num_scheduled_tokens)
        draw.shuffle(names)
        counts = [output.num_scheduled_tokens[name] for name in names]
        start = np.array([self.computed[name] for name in names], np.int64)
        size, total = len(names), sum(counts)
        pad_rows, pad_tokens = (draw.randrange(3), draw.randrange(8)) if draw.random() < 0.3 else (0, 0)
        offsets = np.full(size + pad_rows + 1, total, np.int32)
        offsets[: size + 1] = [0, *np.cumsum(counts)]
        lengths = np.zeros(size + pad_rows, np.int32)
        lengths[:size] = start + counts
        positions = np.zeros(total + pad_tokens, np.int64)
        for at, (first, count) in enumerate(zip(start.tolist(), counts, strict=True)):
            positions[offsets[at] : offsets[at] + count] = range(first, first + count)
        rows = torch.tensor([self.index[name] for name in names], dtype=torch.int32)
        tables = self.tables.gather_block_tables(rows, size + pad_rows)
        slots = self.tables.compute_slot_mappings(
            rows, torch.from_numpy(offsets), torch.from_numpy(positions), total + pad_tokens
        )
        return [
            PlanFacts(
                step,
                number,
                names,
                offsets,
                table.numpy().copy(),
                slots[number].numpy().copy(),
                lengths,
                positions=positions,
                num_tokens=total + pad_tokens,
                num_reqs=size + pad_rows,
            )
            for number, table in enumerate(tables)
        ]


def planted(plan: Any, group: Any, draw: random.Random) -> Any:
    """The plan with one entry changed that a consumer uses; None where the plan has none of the kind drawn."""
    from dataclasses import replace

    size = len(plan.req_ids)
    part = draw.choice(("block_table", "slot_mapping", "seq_lens", "positions", "query_start_loc"))
    array = getattr(plan, part).copy()
    row = draw.randrange(size)
    end = int(plan.seq_lens[row])
    if part == "block_table":
        array[row, (end - 1) // group.block_size] += draw.choice((1, -1, 7, 1000))
    elif part == "slot_mapping":
        if group.slots != "used":
            return None
        array[draw.randrange(int(plan.query_start_loc[size]))] += draw.choice((1, -1, group.block_size, -(1 << 20)))
    elif part == "positions":
        array[draw.randrange(int(plan.query_start_loc[size]))] += draw.choice((1, -1, group.block_size))
    else:
        array[row + (part == "query_start_loc")] += draw.choice((1, -1))
    return replace(plan, **{part: array})
