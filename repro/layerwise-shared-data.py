"""`_build_shared_load_data` takes the group's first task for every layer: a continuing request's blocks are not loaded.

With an independent first layer (the default) a step that mixes a new pool hit with a continuing request has a first
task that names the new hit alone: independent layers load only on a new hit. The shared arrays made of that task are
then used for every later layer. Real here: vllm-ascend's worker methods, the requests' metadata is the rig's.
"""

# pairs: 0.30.0 0.29.0 0.27.1

from __future__ import annotations

from typing import Any

from _show import finish

LAYERS = 6


def worker_and_requests() -> tuple[Any, list[Any]]:
    """A worker with layer reuse and layer 0 independent; one new hit of blocks 0, 1 and one request going on, 2, 3."""
    import numpy as np
    from layerwise_rig import TOKENS, Rig
    from layerwise_schedules import Schedule
    from layerwise_stream import DeviceStream
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.metadata import LoadSpec, ReqMeta

    config = {"layerwise_num_shared_buffers": 2}
    rig = Rig(Schedule("shared", config=config, layers=LAYERS, requests=2, blocks=2), DeviceStream())
    worker = rig.worker
    worker.layerwise_offload, worker.independent_layers = True, [0]
    worker.grouped_block_size, worker.hash_block_size, worker.use_eagle = [TOKENS], TOKENS, False
    made = []
    for name, blocks, computed, hit in (("new-hit", [0, 1], 0, 32), ("continuing", [2, 3], 32, 32)):
        addresses = np.array([1000 + block for block in blocks], dtype=np.int64)
        request = ReqMeta(
            req_id=name,
            block_ids_by_group=[blocks],
            block_hashes=[bytes([block]) for block in blocks],
            is_last_chunk=True,
            block_ids_np=np.array(blocks),
            block_gvas_np=addresses,
            load_block_gvas_np=addresses,
            load_keys=[f"{name}-{block}" for block in blocks],
            target_token_len=hit + TOKENS,
        )
        request.load_spec = LoadSpec(vllm_cached_tokens=computed, kvpool_cached_tokens=hit, can_load=True)
        request.load_masks = None
        made.append(request)
    return worker, made


def main() -> None:
    """Blocks that each layer's task names, and those that its shared arrays hold."""
    from ascend_sim import activate

    activate()
    worker, requests = worker_and_requests()
    worker.layer_load_tasks = [[] for _ in range(LAYERS)]
    for layer in range(LAYERS):
        worker._process_load_for_layer_batch(requests, layer, 0, layer)
    worker._build_shared_load_data()
    rows = []
    for layer, tasks in enumerate(worker.layer_load_tasks):
        wanted, held, keys = [], [], []
        for task in tasks:
            for part in task.block_ranges:
                wanted += [int(block) for block in part.request.block_ids_np[part.start_block : part.end_block]]
                keys += part.request.load_keys
            held += [int(block) for block in task.shared_block_data.block_ids_arr.tolist()]
        expected = {"blocks": sorted(wanted), "leases to release": len(keys)}
        seen = {"blocks": sorted(held), "leases to release": len(tasks[0].shared_block_data.load_keys)}
        what = f"layer {layer}" + (", independent: only the new hit loads there" if layer == 0 else "")
        rows.append({"what": what, "expected": expected, "seen": seen, "faulty": layer > 0})
    finish("layerwise-shared-data", rows)


if __name__ == "__main__":
    main()
