"""A run in numbers: what `report` and `compare` print, what the study keeps. Plain JSON values only.

Quantiles are nearest-rank: a value that occurred. Times end in _us or _ms and come from integer nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerwise_sched.checker import check_run
from layerwise_sched.hol import HolEvent, find, impossible
from layerwise_sched.passing import passes
from layerwise_sched.stages import check, totals
from layerwise_sched.timeline import Code

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from layerwise_sched.runs import Run

WORST = 10
"""Events, problems and violations listed one by one in a summary; all are counted."""


def quantile(values: Sequence[int], q: float) -> int:
    """The nearest-rank `q` quantile of sorted values; 0 for none."""
    return values[min(len(values) - 1, max(0, -(-len(values) * round(q * 1_000) // 1_000) - 1))] if values else 0


def spread_us(values: Iterable[int]) -> dict[str, float]:
    """Median, tails, maximum and sum of nanoseconds, in microseconds (the sum in milliseconds)."""
    ordered = sorted(values)
    return {
        "p50_us": quantile(ordered, 0.5) / 1e3,
        "p95_us": quantile(ordered, 0.95) / 1e3,
        "p99_us": quantile(ordered, 0.99) / 1e3,
        "max_us": (ordered[-1] if ordered else 0) / 1e3,
        "total_ms": sum(ordered) / 1e6,
    }


def summarise(run: Run, *, finished: bool = True) -> dict[str, Any]:
    """Everything that a run says. finished: see `checker.check_run`."""
    sums = totals(run)
    total = sum(sum(values) for values in sums.values())
    found = find(run)
    problems = check(run)
    violations = check_run(run, finished=finished)
    passing = passes(run)
    steps = sorted(step.end - step.begin for step in run.steps)
    return {
        "policies": [name + (" (fall-back)" if fallback else "") for _, name, fallback in run.policies],
        "plan": _plan(run),
        "steps": {"count": len(steps), **_step_ms(steps)},
        "tasks": {
            "count": len(run.tasks),
            "complete": len(run.complete),
            "with_io": sum(task.task.has_io for task in run.tasks.values()),
            "failed": sum(task.failed is not None for task in run.tasks.values()),
            "unfinished": sum(not task.complete for task in run.tasks.values()),
        },
        "stages": {
            stage.value: {**spread_us(values), "share_pct": 100 * sum(values) / total if total else 0.0}
            for stage, values in sums.items()
        },
        "stall": spread_us(stall.end - stall.begin for stall in run.stalls),
        "hol": {
            "events": len(found.events),
            "heads": len({event.head for event in found.events}),
            "steps": len({event.step for event in found.events}),
            "duration": spread_us(event.duration_ns for event in found.events),
            "potential": spread_us(event.potential_ns for event in found.events),
            "waits": found.waits,
            "waits_ms": found.waits_ns / 1e6,
            "only_empty_ready": found.empty,
            "unknown": found.unknown,
            "impossible": _impossible(run),
            "longest": [describe(event, run) for event in _longest(found.events)],
        },
        "passes": {
            "count": len(passing),
            "late": sum(bool(item.late_ns) for item in passing),
            "late_time": spread_us(item.late_ns for item in passing if item.late_ns),
            "unknown": sum(item.late_ns is None for item in passing),
        },
        "overlap": overlap(run),
        "depth": depths(run),
        "explained": {"tasks": len(run.complete), "problems": len(problems), "first": _rows(problems)},
        "legal": {"violations": len(violations), "first": _rows(violations)},
        "dropped_rows": run.dropped,
        "orphan_rows": run.orphans,
    }


def _step_ms(steps: Sequence[int]) -> dict[str, float]:
    return {
        "median_ms": quantile(steps, 0.5) / 1e6,
        "p95_ms": quantile(steps, 0.95) / 1e6,
        "p99_ms": quantile(steps, 0.99) / 1e6,
        "max_ms": (steps[-1] if steps else 0) / 1e6,
    }


def _rows(items: Sequence[Any]) -> list[dict[str, Any]]:
    return [{name: _json(value) for name, value in item._asdict().items()} for item in items[:WORST]]


def _json(value: object) -> Any:
    return value if isinstance(value, int) else str(value)


def _plan(run: Run) -> dict[str, Any] | None:
    if (plan := run.plan) is None:
        return None
    return {
        "path": plan.path.value,
        "layers": plan.num_layers,
        "prefetch_layers": plan.prefetch_layers,
        "shared_buffers": plan.shared_buffers,
        "slots": len(set(plan.chains)),
        "sources": {str(layer): source for layer, source in sorted(plan.prefetch_layer_map.items())},
    }


def _impossible(run: Run) -> str | None:
    """The structural reason, for the saves that the run's last whole step had."""
    if run.plan is None:
        return None
    saves = None
    if run.steps:
        step = run.steps[-1].step
        saves = [(step, layer) not in run.compute_saves for layer in range(run.plan.num_layers)]
    reason = impossible(run.plan, saves)
    return None if reason is None else reason.value


def _longest(events: Sequence[HolEvent]) -> list[HolEvent]:
    return sorted(events, key=lambda event: -event.duration_ns)[:WORST]


def describe(event: HolEvent, run: Run) -> dict[str, Any]:
    """One event with the evidence of both sides: the head unmet until, later ones ready since, and by what proof."""
    head = run.tasks[event.head]
    return {
        "step": event.step,
        "head": {
            "cid": event.head,
            "layer": event.layer,
            "requests": list(head.task.requests),
            "missing": event.missing.name.lower(),
            "source": head.task.source,
            "unmet_until_ns": event.end,
            "seen_unmet_ns": head.unmet.get(event.missing),
        },
        "begin_ns": event.begin,
        "duration_us": event.duration_ns / 1e3,
        "potential_us": event.potential_ns / 1e3,
        "held": event.held,
        "later": [
            {
                "cid": later.run.task.cid,
                "layer": later.run.task.layer,
                "ready_ns": later.ready_at,
                "transfer_us": later.transfer_ns / 1e3,
                "proofs": {kind.name.lower(): [met.at, met.proof.name.lower()] for kind, met in later.proofs},
            }
            for later in event.later
        ],
    }


def depths(run: Run) -> dict[str, Any]:
    """Peaks of what was in flight: queued tasks, tasks not yet done, their metadata (block ranges), leases."""
    changes: list[tuple[int, int, int]] = []
    for task in run.tasks.values():
        ranges = len(task.task.groups) * len(task.task.requests) if task.task.has_io else 0
        changes.append((task.enqueued, 1, ranges))
        if (end := task.done if task.done is not None else task.failed) is not None:
            changes.append((end, -1, -ranges))
    level = peak = held = most_held = 0
    for _, change, ranges in sorted(changes):
        level += change
        held += ranges
        peak = max(peak, level)
        most_held = max(most_held, held)
    queued = [task.queued for task in run.tasks.values()]
    return {
        "queue_max": max(queued, default=0),
        "in_flight_max": peak,
        "block_ranges_max": most_held,
        "leases_max": max((leases for _, leases, _ in run.gauges), default=None),
        "backend_queue_max": max((depth for _, _, depth in run.gauges if depth >= 0), default=None),
    }


def overlap(run: Run) -> dict[str, float]:
    """How much of the transfer time lay outside the compute thread's stalls: hidden, against exposed, ms."""
    transfers = sorted(
        (span.begin, span.end) for task in run.tasks.values() for span in task.spans if span.code is Code.TRANSFER
    )
    stalls = sorted((stall.begin, stall.end) for stall in run.stalls)
    exposed = at = 0
    for begin, end in transfers:
        while at < len(stalls) and stalls[at][1] <= begin:
            at += 1
        for stall in stalls[at:]:
            if stall[0] >= end:
                break
            exposed += min(end, stall[1]) - max(begin, stall[0])
    total = sum(end - begin for begin, end in transfers)
    hidden = total - exposed
    return {
        "transfer_ms": total / 1e6,
        "hidden_ms": hidden / 1e6,
        "exposed_ms": exposed / 1e6,
        "overlap_pct": 100 * hidden / total if total else 0.0,
    }
