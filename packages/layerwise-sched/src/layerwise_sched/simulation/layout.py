"""Which layer's slot follows which: the rules of upstream's layer-wise cache layout, written anew from their outcome.

Layers outside `independent` are bucketed by cache spec; a bucket of more layers than `shared_buffers` shares that many
slots round robin, so that a layer's source is the layer that had its slot before. One bucket: sources ascend with the
layer. Several buckets: they need not. Checked against upstream's own function in the engine tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerwise_sched.errors import WorkloadError
from layerwise_sched.model import DataPath, LayerPlan, owner_chains

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_DEFAULT_PREFETCH = 8
PREFETCH_WITHOUT_REUSE = 2


def make_plan(
    num_layers: int,
    path: DataPath = DataPath.GVA,
    shared_buffers: int | None = None,
    prefetch_layers: int | None = None,
    independent: Iterable[int] = (0,),
    buckets: Sequence[int] | None = None,
) -> LayerPlan:
    """The plan of one worker, with upstream's defaults where an argument is None.

    shared_buffers: slots a bucket, GVA only; None: one a layer, so no reuse. prefetch_layers: tasks in flight; None:
    min(shared_buffers, 8) on GVA, 2 elsewhere. independent: layers with a slot of their own, negative ones count from
    the end. buckets: the cache spec of each layer as a number, shape [num_layers]; None: all equal.
    Raises WorkloadError for what upstream refuses too.
    """
    if num_layers < 1:
        raise WorkloadError(f"num_layers must be >= 1, got {num_layers!r}")
    slots = num_layers if shared_buffers is None else shared_buffers
    if slots < 1:
        raise WorkloadError(f"shared_buffers must be >= 1 or None, got {shared_buffers!r}")
    if prefetch_layers is not None and prefetch_layers < 1:
        raise WorkloadError(f"prefetch_layers must be >= 1 or None, got {prefetch_layers!r}")
    if buckets is not None and len(buckets) != num_layers:
        raise WorkloadError(f"buckets must have one number a layer ({num_layers}), got {len(buckets)}")
    own = set()
    for layer in independent:
        if not -num_layers <= layer < num_layers:
            raise WorkloadError(f"independent layer must be from {-num_layers} to {num_layers - 1}, got {layer!r}")
        own.add(layer % num_layers)
    sources: dict[int, int] = {}
    if path is DataPath.GVA:
        members: dict[int, list[int]] = {}
        for layer in range(num_layers):
            if layer not in own:
                members.setdefault(buckets[layer] if buckets else 0, []).append(layer)
        for layers in members.values():
            sources.update(zip(layers[slots:], layers, strict=False))
    default = min(slots, MAX_DEFAULT_PREFETCH) if path is DataPath.GVA else PREFETCH_WITHOUT_REUSE
    return LayerPlan(
        num_layers=num_layers,
        prefetch_layers=prefetch_layers if prefetch_layers is not None else default,
        prefetch_layer_map=sources,
        chains=owner_chains(sources, num_layers),
        shared_buffers=shared_buffers if path is DataPath.GVA else None,
        path=path,
    )


def buffers_in_use(plan: LayerPlan) -> int:
    """Slots that the layers of a plan live in: what `layerwise_num_shared_buffers` changes (memory, not order)."""
    return len(set(plan.chains))
