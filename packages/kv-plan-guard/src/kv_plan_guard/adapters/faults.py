"""The catalogue: each fault as it would be made by wrong code of a runner, on the runner's own tensors and objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kv_plan_guard.adapters.planting import Fault, Scene

if TYPE_CHECKING:
    from collections.abc import Callable

    from kv_plan_guard.adapters.planting import Place, Plant

FAULTS: dict[str, Fault] = {}


def _fault(place: Place, wants: str = "slots", workload: str = "mixed") -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        name = plant.__name__.strip("_").replace("_", "-")
        FAULTS[name] = Fault(name, place, plant, wants, workload)
        return plant

    return register


def _rows(scene: Scene, at_least: int = 1) -> bool:
    return scene.batch is not None and scene.batch.num_reqs >= at_least


# -- block tables ------------------------------------------------------------------------------------------------------
@_fault("plan", "table")
def wrong_row(scene: Scene) -> bool:
    """Two rows change places."""
    if not _rows(scene, 2):
        return False
    table = scene.tables[scene.gid]
    first = table[0].clone()
    table[0] = table[1]
    table[1] = first
    return True


@_fault("plan", workload="long")
def shifted_row(scene: Scene) -> bool:
    """A row begins one column late."""
    rows = [row for row in range(scene.batch.num_reqs) if scene.last_column(row) >= 1]
    if not rows:
        return False
    table = scene.tables[scene.gid]
    table[rows[0], :-1] = table[rows[0], 1:].clone()
    return True


@_fault("plan", workload="long")
def swapped_columns(scene: Scene) -> bool:
    """Two blocks of one request change places: every block is its own, and the order is wrong."""
    table = scene.tables[scene.gid]
    for row in range(scene.batch.num_reqs):
        last = scene.last_column(row)
        if last >= 1 and int(table[row, last - 1]) > 0:
            table[row, last - 1 : last + 1] = table[row, last - 1 : last + 1].flip(0)
            return True
    return False


@_fault("plan", "table")
def foreign_block(scene: Scene) -> bool:
    """The column that is written names another live request's block."""
    if not _rows(scene, 2):
        return False
    table = scene.tables[scene.gid]
    table[0, scene.last_column(0)] = table[1, scene.last_column(1)]
    return True


@_fault("plan", "table", workload="early-end")
def freed_block(scene: Scene) -> bool:
    """The column that is written names a block whose request has finished."""
    if not scene.memory.get("freed"):
        return False
    scene.tables[scene.gid][0, scene.last_column(0)] = scene.memory["freed"][0]
    return True


@_fault("plan", "table")
def unallocated_block(scene: Scene) -> bool:
    """The column that is written names a block that nobody ever had."""
    scene.tables[scene.gid][0, scene.last_column(0)] = scene.pool - 1
    return True


@_fault("plan", "table")
def null_block_in_row(scene: Scene) -> bool:
    """A needed column names the null block."""
    scene.tables[scene.gid][0, scene.last_column(0)] = 0
    return True


@_fault("plan", "table")
def block_beyond_pool(scene: Scene) -> bool:
    """A needed column names a block that does not exist: the step itself may crash on it."""
    scene.tables[scene.gid][0, scene.last_column(0)] = scene.pool + 3
    return True


@_fault("plan", "table")
def negative_block(scene: Scene) -> bool:
    """A needed column is negative."""
    scene.tables[scene.gid][0, scene.last_column(0)] = -2
    return True


@_fault("plan", "groups")
def swapped_groups(scene: Scene) -> bool:
    """One request's rows of two groups change places."""
    one, other = scene.tables[0], scene.tables[1]
    width = min(one.shape[1], other.shape[1])
    first = one[0, :width].clone()
    if bool((first == other[0, :width]).all()):
        return False
    one[0, :width] = other[0, :width]
    other[0, :width] = first
    return True


# -- slots -------------------------------------------------------------------------------------------------------------
@_fault("plan")
def off_by_one_slot(scene: Scene) -> bool:
    """A token goes one slot too far."""
    scene.slots[scene.gid, 0] += 1
    return True


@_fault("plan")
def no_slot_for_a_token(scene: Scene) -> bool:
    """A real token gets -1 and is never written."""
    scene.slots[scene.gid, 0] = -1
    return True


@_fault("plan")
def null_block_write(scene: Scene) -> bool:
    """A token goes into the null block."""
    scene.slots[scene.gid, 0] = 5
    return True


@_fault("plan")
def duplicate_write(scene: Scene) -> bool:
    """Two tokens go to one slot."""
    if scene.batch.num_tokens < 2:
        return False
    scene.slots[scene.gid, 1] = scene.slots[scene.gid, 0]
    return True


@_fault("plan")
def swapped_slots(scene: Scene) -> bool:
    """The first tokens of two requests change places."""
    if not _rows(scene, 2):
        return False
    slots, second = scene.slots[scene.gid], int(scene.batch.query_start_loc_np[1])
    first = int(slots[0])
    slots[0] = slots[second]
    slots[second] = first
    return True


@_fault("plan", workload="early-end")
def freed_slot(scene: Scene) -> bool:
    """A token goes into a block whose request has finished."""
    if not scene.memory.get("freed"):
        return False
    scene.slots[scene.gid, 0] = scene.memory["freed"][0] * scene.block_size + 1
    return True


@_fault("plan")
def wrong_rank_local_rule(scene: Scene) -> bool:
    """The rule of a context-parallel shard on a group that every rank holds whole."""
    slots, count = scene.slots[scene.gid], scene.batch.num_tokens
    positions = scene.batch.positions[:count]
    mine = positions % 2 == 0
    if bool(mine.all()):
        return False
    slots[:count] = (slots[:count] // 2).where(mine, slots.new_full((), -1))
    return True


@_fault("plan")
def int32_wrap(scene: Scene) -> bool:
    """A slot number that went through a narrower type: 2^31 too low in int32, 2^32 too high in int64."""
    import torch

    slots = scene.slots[scene.gid]
    slots[0] = int(slots[0]) + (-(1 << 31) if slots.dtype == torch.int32 else 1 << 32)
    return True


@_fault("plan", "groups")
def slots_of_another_group(scene: Scene) -> bool:
    """One group writes by another group's slots."""
    other = 1 - scene.gid
    count = scene.batch.num_tokens
    if bool((scene.slots[scene.gid, :count] == scene.slots[other, :count]).all()):
        return False
    scene.slots[scene.gid, :count] = scene.slots[other, :count]
    return True


@_fault("plan")
def stale_slots(scene: Scene) -> bool:
    """The slots of the step before are used again."""
    count = scene.batch.num_tokens
    kept = scene.memory.get("slots")
    scene.memory["slots"] = scene.slots[scene.gid, :count].clone()
    if kept is None or len(kept) != count:
        return False
    scene.slots[scene.gid, :count] = kept
    return True


# -- lengths, positions, rows ------------------------------------------------------------------------------------------
@_fault("inputs")
def short_length(scene: Scene) -> bool:
    """A length lacks this step's token."""
    scene.batch.seq_lens[0] -= 1
    return True


@_fault("inputs")
def long_length(scene: Scene) -> bool:
    """A length counts a token that is not there."""
    scene.batch.seq_lens[0] += 1
    return True


@_fault("inputs")
def zero_length(scene: Scene) -> bool:
    """A real row looks like padding."""
    scene.batch.seq_lens[0] = 0
    return True


@_fault("inputs", "host")
def host_length(scene: Scene) -> bool:
    """The host's copy of a length is one too long."""
    scene.batch.seq_lens_np[0] += 1
    return True


@_fault("inputs")
def wrong_position(scene: Scene) -> bool:
    """A token stands one position late."""
    scene.batch.positions[0] += 1
    return True


@_fault("inputs")
def wrong_query_start(scene: Scene) -> bool:
    """A token changes rows."""
    batch = scene.batch
    row = next((row for row in range(1, batch.num_reqs) if batch.num_scheduled_tokens[row] >= 2), None)
    if row is None:
        return False
    batch.query_start_loc[row] += 1
    batch.query_start_loc_np[row] += 1
    return True


@_fault("inputs")
def swapped_requests(scene: Scene) -> bool:
    """Two batch rows stand for each other's request."""
    if not _rows(scene, 2):
        return False
    mapping = scene.batch.idx_mapping
    first = int(mapping[0])
    mapping[0] = mapping[1]
    mapping[1] = first
    return True


# -- what the runner keeps between steps -------------------------------------------------------------------------------
@_fault("append", "table", workload="growing")
def lost_block(scene: Scene) -> bool:
    """A new block is never appended to the row."""
    index, ids, overwrite = scene.arguments
    if overwrite or not ids[scene.gid]:
        return False
    ids = tuple([] if gid == scene.gid else group for gid, group in enumerate(ids))
    scene.memory["calls"] = [(index, ids, overwrite)]
    return True


@_fault("append", "table", workload="growing")
def stranded_block(scene: Scene) -> bool:
    """A block id kept from elsewhere comes before the new one, and every later column is one late."""
    index, ids, overwrite = scene.arguments
    tables = scene.runner.block_tables
    room = tables.block_tables[scene.gid].gpu.shape[1]
    count = int(tables.num_blocks.np[scene.gid, index])
    if overwrite or not ids[scene.gid] or count + len(ids[scene.gid]) >= room:
        return False
    stranded = int(scene.runner.kv_cache_config.num_blocks) - 2
    scene.memory["calls"] = [(index, _with(ids, scene.gid, [stranded, *ids[scene.gid]]), overwrite)]
    return True


@_fault("append", "table", workload="reused-rows")
def inherited_row(scene: Scene) -> bool:
    """A new request's blocks are appended to what the row's last owner left."""
    index, ids, overwrite = scene.arguments
    tables = scene.runner.block_tables
    count, room = int(tables.num_blocks.np[scene.gid, index]), tables.block_tables[scene.gid].gpu.shape[1]
    if not overwrite or not count or count + len(ids[scene.gid]) > room:
        return False
    old = tables.block_tables[scene.gid].gpu[index, :count].tolist()
    scene.memory["calls"] = [(index, _with(ids, scene.gid, [*old, *ids[scene.gid]]), True)]
    return True


@_fault("add", "table", workload="preemption")
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
            tables.append_block_ids(index, _with(request.block_ids, scene.gid, kept), overwrite=True)
            return True
    return False


@_fault("inputs")
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


@_fault("sampled", "drafts", workload="drafts")
def rejection_not_taken_back(scene: Scene) -> bool:
    """Rejected drafts stay counted as computed."""
    args, named = scene.arguments
    if len(args) < 4 or not bool((args[3] > 0).any()):
        return False
    scene.arguments = [(*args[:3], args[3] * 0, *args[4:]), named]
    return True


# -- metadata objects --------------------------------------------------------------------------------------------------
@_fault("metadata", "state")
def state_of_another_request(scene: Scene) -> bool:
    """Two requests' recurrent states change places in the final metadata."""
    indices = getattr(scene.metadata, "state_indices_tensor_d", None)
    if indices is None or len(indices) < 2:
        return False
    scene.metadata.state_indices_tensor_d = indices.flip(0).contiguous()
    return True


@_fault("metadata", "state")
def null_state(scene: Scene) -> bool:
    """A recurrent state is read from the null block."""
    indices = getattr(scene.metadata, "state_indices_tensor_d", None)
    if indices is None or not len(indices):
        return False
    scene.metadata.state_indices_tensor_d = indices * 0
    return True


@_fault("metadata")
def cut_slots(scene: Scene) -> bool:
    """The final metadata's own slots, after the runner's were right: a copy with one token elsewhere."""
    slots = scene.metadata.slot_mapping.clone()
    slots[-1] += 2
    scene.metadata.slot_mapping = slots
    return True


@_fault("metadata")
def wrong_final_table(scene: Scene) -> bool:
    """The final metadata's own block table, after the runner's was right: a copy with one row of another request."""
    name = "block_tables" if hasattr(scene.metadata, "block_tables") else "block_table"
    table = getattr(scene.metadata, name).clone()
    if len(table) < 2:
        return False
    table[0] = table[1]
    setattr(scene.metadata, name, table)
    return True


def _with(ids: Any, gid: int, new: list[int]) -> tuple[list[int], ...]:
    return tuple(new if group == gid else list(old) for group, old in enumerate(ids))
