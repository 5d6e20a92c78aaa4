"""Random workloads for the property tests."""

from __future__ import annotations

from hypothesis import strategies as st
from layerwise_sched.model import DataPath
from layerwise_sched.simulation import Spec

TIMES = st.sampled_from([0.0, 1.0, 40.0, 300.0, 1_000.0, 2_300.0, 9_000.0])


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """Any plan that upstream accepts, with times that make any of load, save and compute the bottleneck."""
    layers = draw(st.integers(1, 14))
    path = draw(st.sampled_from([DataPath.GVA, DataPath.GVA, DataPath.GVA, DataPath.RANGE, DataPath.KEY]))
    layer = st.integers(0, layers - 1)
    return Spec(
        path=path,
        layers=layers,
        shared_buffers=draw(st.none() | st.integers(1, layers)),
        prefetch_layers=draw(st.none() | st.integers(1, layers + 2)),
        independent=tuple(draw(st.lists(layer, max_size=layers, unique=True))),
        buckets=draw(st.none() | st.lists(st.integers(0, 2), min_size=layers, max_size=layers).map(tuple)),
        steps=draw(st.integers(1, 4)),
        requests=draw(st.integers(1, 4)),
        hit_every=draw(st.integers(1, 3)),
        load_us=draw(TIMES),
        save_us=draw(TIMES),
        attention_us=draw(TIMES),
        rest_us=draw(TIMES),
        host_us=draw(TIMES),
        build_us=draw(TIMES),
        spread=draw(st.sampled_from([0.0, 0.3, 1.0])),
        straggler_us=draw(TIMES),
        straggler_layers=tuple(draw(st.lists(layer, max_size=4, unique=True))),
        straggler_odds=draw(st.sampled_from([0.0, 0.2])),
        saving_rank=draw(st.booleans()),
        no_save=tuple(draw(st.lists(layer, max_size=4, unique=True))),
        groups=draw(st.integers(1, 3)),
        slot_us=draw(st.none() | TIMES) if path is DataPath.GVA else None,
    )
