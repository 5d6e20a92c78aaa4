"""The simulator's layout rules against upstream's own function, over every small configuration and many larger ones."""

import itertools
import random

import ascend_sim
import pytest
from layerwise_sched import DataPath, WorkloadError
from layerwise_sched.simulation import buffers_in_use, make_plan

# Importing vllm-ascend warns about things that are not ours.
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def layout():
    ascend_sim.activate()
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store import layerwise_cache_layout

    return layerwise_cache_layout


def extra(shared, prefetch, independent):
    values = {
        "layerwise_num_shared_buffers": shared,
        "layerwise_prefetch_layers": prefetch,
        "layerwise_independent_layers": independent,
    }
    return {name: value for name, value in values.items() if value is not None}


def configurations():
    for layers in range(1, 7):
        for shared, prefetch in itertools.product([None, 1, 2, 3, 7], [None, 1, 3, 9]):
            for independent in (None, [], [0], [-1], [0, layers // 2], list(range(layers))):
                yield layers, shared, prefetch, independent
    drawn = random.Random(0)
    for _ in range(300):
        layers = drawn.randint(7, 64)
        own = drawn.sample(range(-layers, layers), drawn.randint(0, 6))
        yield layers, drawn.randint(1, layers), drawn.choice([None, 2, 8, 20]), own


def test_one_cache_spec(layout):
    for layers, shared, prefetch, independent in configurations():
        theirs = layout.build_layerwise_cache_layout(layers, extra(shared, prefetch, independent))
        own = (0,) if independent is None else independent
        ours = make_plan(layers, DataPath.GVA, shared, prefetch, own)
        where = (layers, shared, prefetch, independent)
        assert ours.prefetch_layer_map == theirs.prefetch_layer_map, where
        assert ours.prefetch_layers == theirs.num_prefetch_layers, where
        assert buffers_in_use(ours) == len(theirs.storage_indices), where
        slots = {layer: number for number, slot in enumerate(theirs.storage_indices) for layer in slot}
        for first, second in itertools.combinations(range(layers), 2):
            assert (ours.chains[first] == ours.chains[second]) == (slots[first] == slots[second]), where


def test_several_cache_specs(layout):
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    drawn = random.Random(1)
    for _ in range(60):
        layers = drawn.randint(2, 24)
        buckets = [drawn.randint(0, 2) for _ in range(layers)]
        specs = {
            f"model.layers.{layer}.attn": FullAttentionSpec(
                block_size=16, num_kv_heads=1, head_size=64 * (1 + buckets[layer]), dtype=torch.float16
            )
            for layer in range(layers)
        }
        shared, own = drawn.randint(1, 5), drawn.sample(range(layers), drawn.randint(0, min(3, layers)))
        theirs = layout.build_layerwise_reuse_layout(specs, layers, extra(shared, None, own))
        ours = make_plan(layers, DataPath.GVA, shared, None, own, buckets)
        assert ours.prefetch_layer_map == theirs.prefetch_layer_map
        assert ours.prefetch_layers == theirs.num_prefetch_layers
        assert buffers_in_use(ours) == len(theirs.buffer_slots)


@pytest.mark.parametrize(("shared", "prefetch", "own"), [(0, None, [0]), (2, 0, [0]), (2, 2, [9]), (2, 2, [-9])])
def test_both_refuse_the_same(layout, shared, prefetch, own):
    with pytest.raises(ValueError, match="layerwise_"):
        layout.build_layerwise_cache_layout(4, extra(shared, prefetch, own))
    with pytest.raises(WorkloadError):
        make_plan(4, DataPath.GVA, shared, prefetch, own)
