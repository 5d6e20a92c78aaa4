"""Faults of lengths, positions and rows, of what the runner keeps between steps, and of the final metadata objects."""

from __future__ import annotations

from kv_plan_guard.adapters.planting import Scene, fault, has_rows, with_row


# -- lengths, positions, rows ------------------------------------------------------------------------------------------
@fault("inputs")
def short_length(scene: Scene) -> bool:
    """A length lacks this step's token."""
    scene.batch.seq_lens[0] -= 1
    return True


@fault("inputs")
def long_length(scene: Scene) -> bool:
    """A length counts a token that is not there."""
    scene.batch.seq_lens[0] += 1
    return True


@fault("inputs")
def zero_length(scene: Scene) -> bool:
    """A real row looks like padding."""
    scene.batch.seq_lens[0] = 0
    return True


@fault("inputs", "host")
def host_length(scene: Scene) -> bool:
    """The host's copy of a length is one too long."""
    scene.batch.seq_lens_np[0] += 1
    return True


@fault("inputs")
def wrong_position(scene: Scene) -> bool:
    """A token stands one position late."""
    scene.batch.positions[0] += 1
    return True


@fault("inputs")
def wrong_query_start(scene: Scene) -> bool:
    """A token changes rows."""
    batch = scene.batch
    row = next((row for row in range(1, batch.num_reqs) if batch.num_scheduled_tokens[row] >= 2), None)
    if row is None:
        return False
    batch.query_start_loc[row] += 1
    batch.query_start_loc_np[row] += 1
    return True


@fault("inputs")
def swapped_requests(scene: Scene) -> bool:
    """Two batch rows stand for each other's request."""
    if not has_rows(scene, 2):
        return False
    mapping = scene.batch.idx_mapping
    first = int(mapping[0])
    mapping[0] = mapping[1]
    mapping[1] = first
    return True


# -- what the runner keeps between steps -------------------------------------------------------------------------------
@fault("append", "table", workload="growing")
def lost_block(scene: Scene) -> bool:
    """A new block is never appended to the row."""
    index, ids, overwrite = scene.arguments
    if overwrite or not ids[scene.gid]:
        return False
    ids = tuple([] if gid == scene.gid else group for gid, group in enumerate(ids))
    scene.memory["calls"] = [(index, ids, overwrite)]
    return True


@fault("append", "table", workload="growing")
def stranded_block(scene: Scene) -> bool:
    """A block id kept from elsewhere comes before the new one, and every later column is one late."""
    index, ids, overwrite = scene.arguments
    tables = scene.runner.block_tables
    room = tables.block_tables[scene.gid].gpu.shape[1]
    count = int(tables.num_blocks.np[scene.gid, index])
    if overwrite or not ids[scene.gid] or count + len(ids[scene.gid]) >= room:
        return False
    stranded = int(scene.runner.kv_cache_config.num_blocks) - 2
    scene.memory["calls"] = [(index, with_row(ids, scene.gid, [stranded, *ids[scene.gid]]), overwrite)]
    return True


@fault("append", "table", workload="reused-rows")
def inherited_row(scene: Scene) -> bool:
    """A new request's blocks are appended to what the row's last owner left."""
    index, ids, overwrite = scene.arguments
    tables = scene.runner.block_tables
    count, room = int(tables.num_blocks.np[scene.gid, index]), tables.block_tables[scene.gid].gpu.shape[1]
    if not overwrite or not count or count + len(ids[scene.gid]) > room:
        return False
    old = tables.block_tables[scene.gid].gpu[index, :count].tolist()
    if old[: len(ids[scene.gid])] == list(ids[scene.gid])[: len(old)]:
        return False  # the new owner got the old one's block: nothing would be wrong
    scene.memory["calls"] = [(index, with_row(ids, scene.gid, [*old, *ids[scene.gid]]), True)]
    return True


@fault("add", "table", workload="preemption")
def stale_row_after_resume(scene: Scene) -> bool:
    """A request that comes back after a preemption keeps the row it had before."""
    (output,) = scene.arguments
    tables, states = scene.runner.block_tables, scene.runner.req_states
    for request in output.scheduled_new_reqs:
        old = scene.memory["resumed"].get(request.req_id, [])
        new = list(request.block_ids[scene.gid])
        if old and old[: len(new)] != new[: len(old)]:
            kept = (old + new[len(old) :])[: len(new)]
            index = states.req_id_to_index[request.req_id]
            tables.append_block_ids(index, with_row(request.block_ids, scene.gid, kept), overwrite=True)
            return True
    return False


@fault("inputs")
def stale_counter(scene: Scene) -> bool:
    """The device's count of computed tokens is one ahead: positions, slots and lengths all follow it."""
    from vllm.v1.worker.gpu.input_batch import prepare_pos_seq_lens

    batch, runner = scene.batch, scene.runner
    runner.req_states.num_computed_tokens.gpu[int(batch.idx_mapping_np[0])] += 1
    prepare_pos_seq_lens(
        batch.idx_mapping,
        batch.query_start_loc,
        runner.req_states.num_computed_tokens.gpu,
        runner.input_buffers.positions,
        runner.input_buffers.seq_lens,
    )
    return True


@fault("sampled", "drafts", workload="drafts")
def rejection_not_taken_back(scene: Scene) -> bool:
    """Rejected drafts stay counted as computed."""
    args, named = scene.arguments
    if len(args) < 4 or not bool((args[3] > 0).any()):
        return False
    scene.arguments = [(*args[:3], args[3] * 0, *args[4:]), named]
    return True


# -- metadata objects --------------------------------------------------------------------------------------------------
@fault("metadata", "state")
def state_of_another_request(scene: Scene) -> bool:
    """Two requests' recurrent states change places in the final metadata."""
    indices = getattr(scene.metadata, "state_indices_tensor_d", None)
    if indices is None or len(indices) < 2:
        return False
    scene.metadata.state_indices_tensor_d = indices.flip(0).contiguous()
    return True


@fault("metadata", "state")
def null_state(scene: Scene) -> bool:
    """A recurrent state is read from the null block."""
    indices = getattr(scene.metadata, "state_indices_tensor_d", None)
    if indices is None or not len(indices):
        return False
    scene.metadata.state_indices_tensor_d = indices * 0
    return True


@fault("metadata")
def cut_slots(scene: Scene) -> bool:
    """The final metadata's own slots, after the runner's were right: a copy with one token elsewhere."""
    slots = scene.metadata.slot_mapping.clone()
    slots[-1] += 2
    scene.metadata.slot_mapping = slots
    return True


@fault("metadata")
def wrong_final_table(scene: Scene) -> bool:
    """The final metadata's own block table, after the runner's was right: a copy with one row of another request."""
    name = "block_tables" if hasattr(scene.metadata, "block_tables") else "block_table"
    table = getattr(scene.metadata, name).clone()
    if len(table) < 2:
        return False
    table[0] = table[1]
    setattr(scene.metadata, name, table)
    return True
