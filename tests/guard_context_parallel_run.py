"""One rank for test_guard_context_parallel.py; arguments: RANK WORLD PORT JOB.json OUT.json.

Real gloo processes and vLLM's real block tables: each rank applies the same decisions, computes its own local slots and
lengths by vLLM's functions, and audits them with its own guard. Ranks then gather what they found, so that the test
sees that together they hold every token once.
"""

import importlib
import inspect
import json
import sys
from pathlib import Path


def main(rank, world, port, job_path, out_path):
    import torch
    import torch.distributed as dist
    from ascend_sim import activate

    job = json.loads(Path(job_path).read_text())
    activate("plain")
    importlib.import_module("vllm.v1.worker.cpu.shm")  # host memory stands for device memory, as in the CPU worker
    import numpy as np
    from kv_plan_guard import Config, Guard
    from kv_plan_guard.facts import CachedRequests, NewRequest, PlanFacts, StepFacts
    from kv_plan_guard.layout import GroupLayout, Layout
    from vllm.v1.worker.gpu import cp_utils
    from vllm.v1.worker.gpu.block_table import BlockTables

    rank, world = int(rank), int(world)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    size, interleave, device = job["block_size"], job["interleave"], torch.device("cpu")
    arguments = {
        "block_sizes": [size],
        "max_num_reqs": 8,
        "max_num_batched_tokens": 256,
        "max_num_blocks_per_group": [16],
        "device": device,
        "kernel_block_sizes": [size],
        "cp_size": world,
        "cp_rank": rank,
        "cp_interleave": interleave,
    }
    known = inspect.signature(BlockTables.__init__).parameters
    tables = BlockTables(**{name: value for name, value in arguments.items() if name in known})
    group = GroupLayout("full", size, 64, row_width=16, shards=world, shard_rank=rank, interleave=interleave)
    local_lengths = getattr(cp_utils, "maybe_prepare_dcp_local_seq_lens", None) or cp_utils.prepare_dcp_local_seq_lens
    guard = Guard(Config(enabled=True, action="log"), Layout((group,), rank=f"dcp{rank}"))
    held, computed, found, local, owned = {}, {}, [], [], []
    free = iter(range(1, 64))
    for number, step in enumerate(job["steps"]):
        new, ids, blocks, counts = [], [], [], []
        for name, tokens in step.items():
            before = computed.get(name, 0)
            need = -(-(before + tokens) // (size * world)) - len(held.get(name, []))
            fresh = [next(free) for _ in range(need)]
            is_new = name not in held
            if is_new:
                held[name] = list(fresh)
                new.append(NewRequest(name, (fresh,), 0, num_known_tokens=None))
            else:
                held[name] += fresh
                ids.append(name)
                blocks.append((fresh,) if fresh else None)
                counts.append(before)
            index = list(held).index(name)
            if fresh:
                tables.append_block_ids(index, (fresh,), overwrite=is_new)
        tables.apply_staged_writes()
        guard.observe(StepFacts(number, dict(step), new, CachedRequests(ids, blocks, counts)))
        names = sorted(step)
        mapping = torch.tensor([list(held).index(name) for name in names], dtype=torch.int32)
        starts = np.concatenate([[0], np.cumsum([step[name] for name in names])]).astype(np.int32)
        positions = np.concatenate([np.arange(step[n]) + computed.get(n, 0) for n in names]).astype(np.int64)
        lengths = torch.tensor([computed.get(name, 0) + step[name] for name in names], dtype=torch.int32)
        rows = tables.gather_block_tables(mapping, len(names))[0]
        total = int(starts[-1])
        slots = tables.compute_slot_mappings(
            mapping, torch.from_numpy(starts), torch.from_numpy(positions), num_tokens_padded=total
        )[0].clone()
        part = torch.zeros(8, dtype=torch.int32)
        local_lengths(part, lengths, len(names), world, rank, interleave)
        if job.get("fault") == number and rank == job["fault_rank"]:
            mine = int((slots >= 0).nonzero()[0])
            slots[mine] = -1  # a token that is this rank's is never written
        plan = PlanFacts(
            number, 0, names, query_start_loc=starts, block_table=rows.numpy(), slot_mapping=slots.numpy(),
            seq_lens=lengths.numpy(), positions=positions, local_seq_lens=part[: len(names)].numpy(),
        )  # fmt: skip
        audit = guard.audit(plan)
        found += [[violation.code.value, violation.step] for violation in audit.violations]
        local.append(part[: len(names)].tolist())
        owned.append((slots >= 0).int())
        for name in names:
            computed[name] = computed.get(name, 0) + step[name]
    every = []
    for mine in owned:
        total = mine.clone()
        dist.all_reduce(total)
        every.append(sorted(set(total.tolist())))
    audits = guard.stats.audits
    empty = sum(not bool(mine.any()) for mine in owned)
    Path(out_path).write_text(
        json.dumps({"rank": rank, "found": found, "local": local, "owners": every, "audits": audits, "empty": empty})
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:6])
