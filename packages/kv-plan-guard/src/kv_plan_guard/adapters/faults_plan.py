"""Faults of a plan as the runner makes it: block tables and slots."""

from __future__ import annotations

from kv_plan_guard.adapters.planting import Scene, fault, has_rows


# -- block tables ------------------------------------------------------------------------------------------------------
@fault("plan", "table")
def wrong_row(scene: Scene) -> bool:
    """Two rows change places."""
    if not has_rows(scene, 2):
        return False
    table = scene.tables[scene.gid]
    first = table[0].clone()
    table[0] = table[1]
    table[1] = first
    return True


@fault("plan", workload="long")
def shifted_row(scene: Scene) -> bool:
    """A row begins one column late."""
    rows = [row for row in range(scene.batch.num_reqs) if scene.last_column(row) >= 1]
    if not rows:
        return False
    table = scene.tables[scene.gid]
    table[rows[0], :-1] = table[rows[0], 1:].clone()
    return True


@fault("plan", workload="long")
def swapped_columns(scene: Scene) -> bool:
    """Two blocks of one request change places: every block is its own, and the order is wrong."""
    table = scene.tables[scene.gid]
    for row in range(scene.batch.num_reqs):
        last = scene.last_column(row)
        if last >= 1 and int(table[row, last - 1]) > 0:
            table[row, last - 1 : last + 1] = table[row, last - 1 : last + 1].flip(0)
            return True
    return False


@fault("plan", "table")
def foreign_block(scene: Scene) -> bool:
    """The column that is written names another live request's block."""
    if not has_rows(scene, 2):
        return False
    table = scene.tables[scene.gid]
    table[0, scene.last_column(0)] = table[1, scene.last_column(1)]
    return True


@fault("plan", "table", workload="early-end")
def freed_block(scene: Scene) -> bool:
    """The column that is written names a block whose request has finished."""
    if not scene.memory.get("freed"):
        return False
    scene.tables[scene.gid][0, scene.last_column(0)] = scene.memory["freed"][0]
    return True


@fault("plan", "table")
def unallocated_block(scene: Scene) -> bool:
    """The column that is written names a block that nobody ever had."""
    scene.tables[scene.gid][0, scene.last_column(0)] = scene.pool - 1
    return True


@fault("plan", "table")
def null_block_in_row(scene: Scene) -> bool:
    """A needed column names the null block."""
    scene.tables[scene.gid][0, scene.last_column(0)] = 0
    return True


@fault("plan")
def block_beyond_pool(scene: Scene) -> bool:
    """A needed column names a block that does not exist: the step itself may crash on it.

    Of an attention group: recurrent operators take an id that does not exist unchecked, and end the process.
    """
    scene.tables[scene.gid][0, scene.last_column(0)] = scene.pool + 3
    return True


@fault("plan")
def negative_block(scene: Scene) -> bool:
    """A needed column is negative; of an attention group, as `block_beyond_pool`."""
    scene.tables[scene.gid][0, scene.last_column(0)] = -2
    return True


@fault("plan", "groups")
def swapped_groups(scene: Scene) -> bool:
    """One request's rows of two groups change places."""
    one, other = scene.tables[0], scene.tables[1]
    width = min(one.shape[1], other.shape[1])
    # Within each group's pool: an id beyond it is another kind, and recurrent operators read it unchecked.
    mine, others = one[0, :width] % scene.pool_of(1), other[0, :width] % scene.pool_of(0)
    if bool((mine == other[0, :width]).all()) or bool((others == one[0, :width]).all()):
        return False
    one[0, :width], other[0, :width] = others, mine
    return True


# -- slots -------------------------------------------------------------------------------------------------------------
@fault("plan")
def off_by_one_slot(scene: Scene) -> bool:
    """A token goes one slot too far."""
    scene.slots[scene.gid, 0] += 1
    return True


@fault("plan")
def no_slot_for_a_token(scene: Scene) -> bool:
    """A real token gets -1 and is never written."""
    scene.slots[scene.gid, 0] = -1
    return True


@fault("plan")
def null_block_write(scene: Scene) -> bool:
    """A token goes into the null block."""
    scene.slots[scene.gid, 0] = 5
    return True


@fault("plan")
def duplicate_write(scene: Scene) -> bool:
    """Two tokens go to one slot."""
    if scene.batch.num_tokens < 2:
        return False
    scene.slots[scene.gid, 1] = scene.slots[scene.gid, 0]
    return True


@fault("plan")
def swapped_slots(scene: Scene) -> bool:
    """The first tokens of two requests change places."""
    if not has_rows(scene, 2):
        return False
    slots, second = scene.slots[scene.gid], int(scene.batch.query_start_loc_np[1])
    first = int(slots[0])
    slots[0] = slots[second]
    slots[second] = first
    return True


@fault("plan", workload="early-end")
def freed_slot(scene: Scene) -> bool:
    """A token goes into a block whose request has finished."""
    if not scene.memory.get("freed"):
        return False
    scene.slots[scene.gid, 0] = scene.memory["freed"][0] * scene.block_size + 1
    return True


@fault("plan")
def wrong_rank_local_rule(scene: Scene) -> bool:
    """The rule of a context-parallel shard on a group that every rank holds whole."""
    slots, count = scene.slots[scene.gid], scene.batch.num_tokens
    positions = scene.batch.positions[:count]
    mine = positions % 2 == 0
    if bool(mine.all()):
        return False
    slots[:count] = (slots[:count] // 2).where(mine, slots.new_full((), -1))
    return True


@fault("plan")
def int32_wrap(scene: Scene) -> bool:
    """A slot number that wrapped: 2^31 too low in int32, 2^32 too low in int64."""
    import torch

    slots = scene.slots[scene.gid]
    # Too high by as much would end the process in a kernel that trusts its slots; a negative one is skipped.
    slots[0] = int(slots[0]) - (1 << (31 if slots.dtype == torch.int32 else 32))
    return True


@fault("plan", "groups")
def slots_of_another_group(scene: Scene) -> bool:
    """One group writes by another group's slots."""
    other = 1 - scene.gid
    count = scene.batch.num_tokens
    if bool((scene.slots[scene.gid, :count] == scene.slots[other, :count]).all()):
        return False
    scene.slots[scene.gid, :count] = scene.slots[other, :count]
    return True


@fault("plan")
def stale_slots(scene: Scene) -> bool:
    """The slots of the step before are used again."""
    count = scene.batch.num_tokens
    kept = scene.memory.get("slots")
    scene.memory["slots"] = scene.slots[scene.gid, :count].clone()
    if kept is None or len(kept) != count:
        return False
    scene.slots[scene.gid, :count] = kept
    return True
