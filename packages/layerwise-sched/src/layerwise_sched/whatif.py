"""The same workload under several policies, in the simulator: one row a policy, gains against FIFO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerwise_sched.policy import make_policy
from layerwise_sched.simulation.engine import Simulated, simulate
from layerwise_sched.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.simulation.workload import Workload


def what_if(workload: Workload, policies: Sequence[str], lookahead: int = 16) -> dict[str, Simulated]:
    """A simulation of each policy, in the order given."""
    return {name: simulate(workload, make_policy(name, lookahead=lookahead)) for name in policies}


def compare_rows(simulated: dict[str, Simulated]) -> list[dict[str, Any]]:
    """What `compare` shows; gains are of the median step time, per cent of the first policy's."""
    rows: list[dict[str, Any]] = []
    base: float | None = None
    for name, result in simulated.items():
        summary = summarise(result.run())
        median = summary["steps"]["median_ms"]
        base = median if base is None else base
        rows.append(
            {
                "policy": name,
                "median_ms": median,
                "p99_ms": summary["steps"]["p99_ms"],
                "gain_pct": 100 * (base - median) / base if base else 0.0,
                "hol_events": summary["hol"]["events"],
                "hol_ms": summary["hol"]["duration"]["total_ms"],
                "reordered": result.counts.reordered,
                "late_heads": summary["passes"]["late"],
                "holds": result.counts.holds,
                "violations": summary["legal"]["violations"],
                "unexplained": summary["explained"]["problems"],
                "impossible": summary["hol"]["impossible"],
            }
        )
    return rows
