"""Leases of a step stay when its final layer has no load task: only that task's end releases them.

The receive thread releases the leases of a step in the task of the final layer. Where that layer has nothing to load
(an independent last layer in a step without a new hit), nobody does, and the pool keeps the blocks until the lease's
own time is over (5 minutes). Real here: vllm-ascend's worker with its send and receive threads; the pool counts leases.
"""

# pairs: 0.30.0 0.29.0 0.27.1

from __future__ import annotations

from dataclasses import replace

from _show import finish


def open_leases(without: frozenset[int], steps: int = 3) -> dict[str, int]:
    """Leases that are still open after so many steps, and wrong bytes that attention found."""
    from layerwise_rig import Rig
    from layerwise_schedules import SCHEDULES
    from layerwise_stream import device_stream

    with device_stream() as stream:
        rig = Rig(replace(SCHEDULES["A"], no_load=without), stream)
        for _ in range(steps):
            rig.step()
        stream.synchronize()
        return {"open leases": len(rig.pool.open_leases()), "wrong bytes": len(rig.errors)}


def main() -> None:
    """The same steps with and without blocks to load in the final layer."""
    from ascend_sim import activate

    activate()
    from layerwise_schedules import SCHEDULES

    last = SCHEDULES["A"].layers - 1
    none = {"open leases": 0, "wrong bytes": 0}
    rows = [
        {
            "what": "final layer without blocks to load",
            "expected": none,
            "seen": open_leases(frozenset({last})),
            "faulty": True,
        },
        {"what": "final layer with blocks to load", "expected": none, "seen": open_leases(frozenset())},
        {"what": "a layer before it without blocks", "expected": none, "seen": open_leases(frozenset({last - 1}))},
    ]
    finish("layerwise-leases", rows)


if __name__ == "__main__":
    main()
