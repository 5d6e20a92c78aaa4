"""What a layer-wise receive thread works on: tasks, what each waits for, and who owns a buffer before whom.

A task is one layer of one step: upstream's `LayerLoadTask`, which carries all requests and all groups of that layer.
Upstream gives it no id, no request and no time, so they are copied here when it is enqueued (the key-based thread
clears the list it came with). Source: vllm-ascend 0.27.1rc1 to 0.30.0rc2, `kv_pool/ascend_store`.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


class DataPath(StrEnum):
    """Which of upstream's receive paths runs the task."""

    GVA = "gva"
    """Memcache data plane, global virtual addresses: the only path whose tasks can wait for a save."""
    RANGE = "range"
    """Mooncake block keys with get sessions (`_handle_range_layer_task`)."""
    KEY = "key"
    """One key a block and layer (`KVCacheStoreKeyLayerRecvingThread`)."""


class DependencyKind(IntEnum):
    """What a task can wait for, numbered in no particular order; `dependencies` gives the handler's order."""

    SAVE_CPU = 0
    """The save of the slot's former owner: `layer_save_finished_events[source]`, a CPU event."""
    SAVE_NPU = 1
    """The same save on the compute stream: `sync_save_events[source]`. On a rank that saves nothing the CPU event is
    set at once and only this one says that the slot may be reused."""
    GATE_CONDITION = 2
    """The host has recorded the attention boundary of the gate's layer."""
    GATE_NPU = 3
    """The compute stream has reached that boundary."""
    SLOT_RELEASE = 4
    """`external_slot_release_waiter`, a blocking call of another connector that cannot be asked."""
    DATA_ORDER = 5
    """An earlier task of the same owner chain or range group, or a barrier (see `layerwise_sched.legal`)."""


class Dependency(NamedTuple):
    """One thing that a task waits for.

    kind: what it is.
    subject: the layer whose save is meant (save kinds), the gate's id (gate kinds), the task's own layer
        (SLOT_RELEASE), or the cid of the earlier task (DATA_ORDER).
    """

    kind: DependencyKind
    subject: int


class Task(NamedTuple):
    """One layer load of one step. A NamedTuple: the compute thread makes one for each layer it enqueues.

    cid: correlation id, unique in the process and never reused; ascends in the order of enqueueing.
    step: number of the forward pass, from 0.
    layer: physical layer, from 0.
    path: the receive path.
    source: layer whose save must end before this layer's slot may be overwritten (`wait_for_save_layer`), or None.
    gate: id of the attention gate, or None for no gate. Equal ids are one gate; ids ascend in the order in which the
        gates open, over the whole process.
    chain: owner chain of the layer's slot, as `owner_chains` numbers them: equal numbers share one buffer. -1 where it
        is not known: such tasks count as one chain, so none of them passes another.
    groups: KV cache groups of the transfers, without repeats, in the order in which they run.
    requests: request ids, without repeats, sorted.
    has_io: whether anything is transferred. A task without I/O only passes an event on.
    final: layer_id is `final_layer_id`: releases the leases of all layers and reports requests finished.
    key_major: the range path's per-group state (`use_key_major_ranges`): its groups must be visited in layer order.
    slot_waiter: an `external_slot_release_waiter` is installed, so that readiness cannot be known.
    """

    cid: int
    step: int
    layer: int
    path: DataPath = DataPath.GVA
    source: int | None = None
    gate: int | None = None
    chain: int = -1
    groups: tuple[int, ...] = (0,)
    requests: tuple[str, ...] = ()
    has_io: bool = True
    final: bool = False
    key_major: bool = False
    slot_waiter: bool = False


task_of: Callable[[tuple[Any, ...]], Task] = partial(tuple.__new__, Task)
"""A Task of all its fields in their order, unchecked: a third of the cost of calling the class, once a layer."""


def dependencies(task: Task) -> tuple[Dependency, ...]:
    """What the task waits for outside the queue, in the order in which upstream's handler waits for it.

    Data order is not among them: it depends on what is queued before (`layerwise_sched.legal`). The key-based thread
    has no NPU wait for a save; a task without I/O passes its gate by (both read in the sources).
    """
    found: list[Dependency] = []
    if task.source is not None:
        found.append(Dependency(DependencyKind.SAVE_CPU, task.source))
        if task.path is not DataPath.KEY:
            found.append(Dependency(DependencyKind.SAVE_NPU, task.source))
    if task.gate is not None and task.has_io:
        found.append(Dependency(DependencyKind.GATE_CONDITION, task.gate))
        found.append(Dependency(DependencyKind.GATE_NPU, task.gate))
    if task.slot_waiter:
        found.append(Dependency(DependencyKind.SLOT_RELEASE, task.layer))
    return tuple(found)


def owner_chains(prefetch_layer_map: Mapping[int, int], num_layers: int) -> tuple[int, ...]:
    """The owner chain of each layer: the first layer that owned its slot.

    prefetch_layer_map: upstream's map, layer -> layer that owned the slot before it. Layers outside the map own their
    slot from the start. Returns one number per layer, shape [num_layers]. Raises ValueError for a layer out of range
    and for a source that does not come before its layer.
    """
    chains = list(range(num_layers))
    for layer in sorted(prefetch_layer_map):
        source = prefetch_layer_map[layer]
        if not 0 <= source < layer < num_layers:
            raise ValueError(
                f"prefetch_layer_map has {layer!r}: {source!r}; expected 0 <= source < layer < {num_layers}"
            )
        chains[layer] = chains[source]
    return tuple(chains)


class LayerPlan(NamedTuple):
    """The static facts of one worker's layer-wise loads.

    num_layers: layers of this pipeline stage.
    prefetch_layers: upstream's `num_prefetch_layers`: tasks in flight.
    prefetch_layer_map: layer -> source; empty without buffer reuse.
    chains: `owner_chains` of it, shape [num_layers].
    shared_buffers: upstream's `layerwise_num_shared_buffers`; None where it does not apply.
    path: the receive path.
    """

    num_layers: int
    prefetch_layers: int
    prefetch_layer_map: Mapping[int, int]
    chains: Sequence[int]
    shared_buffers: int | None
    path: DataPath
