"""The schedules that the real receive threads are driven through, and what each must show. No engine is needed here.

A straggling save is what makes a queue wait; whether somebody behind the head could have gone is the layout's doing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

MS = 1e-3


@dataclass(frozen=True)
class Schedule:
    """One configuration of the layer-wise path, with its times.

    plane: gva (MemCache: copies by address), range (Mooncake: parts of one object a block) or key (an object a layer).
    config: the connector's extra config, as the user gives it.
    other_spec: layers with a second KV cache spec; they share buffers among themselves only.
    saves: False is a rank that saves nothing (a TP rank that is not the leader).
    no_save: layers without a save task; no_load: layers without blocks to load.
    requests, blocks: requests a step, and blocks that each loads.
    attention, rest, host: seconds a layer: device time of attention and of the rest, host time before attention.
    load, save: seconds that each transfer takes; `late` adds seconds to the save of a layer.
    needed: a late save begins to be late only when everything else has come to rest (the compute thread waits for the
        load that needs it, the device stream is empty), so that what could pass the waiting head is there to see,
        however slow the machine; False: late by the clock alone, for comparing times.
    hol: whether the configuration can show head-of-line blocking at all, and `pairs` which (head, later) it shows.
    """

    name: str
    plane: str = "gva"
    config: dict[str, Any] = field(default_factory=dict)
    other_spec: frozenset[int] = frozenset()
    saves: bool = True
    no_save: frozenset[int] = frozenset()
    no_load: frozenset[int] = frozenset()
    layers: int = 12
    requests: int = 1
    blocks: int = 4
    attention: float = 1 * MS
    rest: float = 1 * MS
    host: float = 0.2 * MS
    load: float = 2 * MS
    save: float = 2 * MS
    late: dict[int, float] = field(default_factory=dict)
    needed: bool = True
    hol: bool = False
    pairs: frozenset[tuple[int, int]] = frozenset()


SHARED = {"layerwise_num_shared_buffers": 3}
INDEPENDENT = {**SHARED, "layerwise_independent_layers": [0, 5, 6, 10]}
LATE = {1: 25 * MS, 2: 10 * MS, 3: 25 * MS, 4: 15 * MS, 7: 10 * MS}


def _table() -> dict[str, Schedule]:
    b = Schedule("B", config=INDEPENDENT, late=LATE, hol=True, pairs=frozenset({(4, 5)}))
    return {
        one.name: one
        for one in (
            Schedule("A", config=SHARED, late=LATE),
            b,
            Schedule(
                "C",
                config=SHARED,
                other_spec=frozenset({2, 5, 8, 11}),
                late={1: 15 * MS, 3: 30 * MS, 4: 10 * MS},  # the save of 2 is needed last, and saves are in order
                hol=True,
                pairs=frozenset({(7, 8)}),
            ),
            Schedule("D", config={"layerwise_prefetch_layers": 4}, late=LATE),
            replace(b, name="E", saves=False, hol=False, pairs=frozenset()),
            replace(b, name="F", config={**INDEPENDENT, "layerwise_prefetch_layers": 2}, hol=False, pairs=frozenset()),
            Schedule("G", config=SHARED, no_save=frozenset({2}), late=LATE, hol=True, pairs=frozenset({(4, 5)})),
            Schedule("key", plane="key", config={"layerwise_prefetch_layers": 3}, late=LATE),
            Schedule("range", plane="range", config={"layerwise_prefetch_layers": 3}, late=LATE),
            replace(b, name="B-requests", requests=4),
            replace(b, name="B-two-late", load=2.3 * MS, save=0.3 * MS, late={1: 6 * MS, 4: 6 * MS}),
            replace(
                b, name="B-deep", config={**INDEPENDENT, "layerwise_prefetch_layers": 8}, pairs=frozenset({(4, 5)})
            ),
            Schedule("A-last-independent", config={**SHARED, "layerwise_independent_layers": [0, -1]}, late=LATE),
        )
    }


SCHEDULES = _table()
