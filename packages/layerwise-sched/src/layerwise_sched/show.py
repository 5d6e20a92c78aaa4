"""Summaries as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from layerwise_sched.text import for_rich

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table; the first column is text, the others are numbers. Cells are escaped."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        made.add_row(*(for_rich(number_text(cell)) for cell in row))
    return made


def number_text(value: object) -> str:
    """A number as people read it; None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"


def run_tables(summary: Mapping[str, Any]) -> list[Table]:
    """What happened, where the time went, and head-of-line blocking, of one run."""
    hol, tasks, steps, depth = (summary[name] for name in ("hol", "tasks", "steps", "depth"))
    facts: list[tuple[str, object]] = [("policy", ", ".join(summary["policies"]) or "not recorded")]
    if (plan := summary["plan"]) is not None:
        facts += [
            ("path", plan["path"]),
            ("layers / slots", f"{plan['layers']} / {plan['slots']}"),
            ("layerwise_prefetch_layers (in flight)", plan["prefetch_layers"]),
            ("layerwise_num_shared_buffers (allocation)", plan["shared_buffers"]),
            ("reuse: layer from source", ", ".join(f"{a}<-{b}" for a, b in plan["sources"].items()) or "none"),
        ]
    facts += [
        (
            "steps",
            f"{steps['count']}; median {number_text(steps['median_ms'])} ms, p99 {number_text(steps['p99_ms'])} ms",
        ),
        ("tasks", f"{tasks['count']}, {tasks['with_io']} with I/O, {tasks['unfinished']} unfinished"),
        ("tasks whose stages do not add up", f"{summary['explained']['problems']} of {tasks['complete']}"),
        ("breaks of legal order", summary["legal"]["violations"]),
        ("transfer hidden behind compute", f"{summary['overlap']['overlap_pct']:.1f} %"),
        ("peak queue / in flight", f"{depth['queue_max']} / {depth['in_flight_max']}"),
        (
            "peak leases / backend queue",
            f"{number_text(depth['leases_max'])} / {number_text(depth['backend_queue_max'])}",
        ),
        ("rows dropped / without task", f"{summary['dropped_rows']} / {summary['orphan_rows']}"),
    ]
    stages = [
        (name, row["p50_us"], row["p95_us"], row["p99_us"], row["max_us"], row["total_ms"], row["share_pct"])
        for name, row in summary["stages"].items()
    ]
    stages.append(("compute stall", *(summary["stall"][key] for key in _SPREAD), None))
    events = [
        ("events / heads / steps with one", f"{hol['events']} / {hol['heads']} / {hol['steps']}"),
        ("duration p50 / p95 / p99, us", _tails(hol["duration"])),
        ("potential p50 / p95 / p99, us", _tails(hol["potential"])),
        ("potential in all, ms (upper bound)", hol["potential"]["total_ms"]),
        ("times the thread was stuck", f"{hol['waits']}; {number_text(hol['waits_ms'])} ms"),
        ("of them with only empty tasks ready", hol["only_empty_ready"]),
        ("of them with readiness unknown", hol["unknown"]),
        ("passes / late heads", f"{summary['passes']['count']} / {summary['passes']['late']}"),
        ("structurally impossible", hol["impossible"] or "no"),
    ]
    return [
        table("Run", ("", "value"), facts),
        table("Stages of a task", ("stage", "p50 us", "p95 us", "p99 us", "max us", "total ms", "share %"), stages),
        table("Head-of-line blocking", ("", "value"), events),
        evidence_table(summary),
    ]


_SPREAD = ("p50_us", "p95_us", "p99_us", "max_us", "total_ms")


def _tails(row: Mapping[str, float]) -> str:
    return " / ".join(number_text(row[key]) for key in ("p50_us", "p95_us", "p99_us"))


def evidence_table(summary: Mapping[str, Any]) -> Table:
    """The longest events with both sides' evidence."""
    rows = [
        (_head(event), event["duration_us"], event["potential_us"], ", ".join(_later(event)))
        for event in summary["hol"]["longest"]
    ]
    return table("Longest events", ("head unmet", "us", "potential us", "ready behind it, since"), rows)


def _head(event: Mapping[str, Any]) -> str:
    head = event["head"]
    source = f"(L{head['source']})" if head["source"] is not None else ""
    return f"step {event['step']}: L{head['layer']} misses {head['missing']}{source}"


def _later(event: Mapping[str, Any]) -> list[str]:
    """Each ready task, how long before the head it was ready, and by which proofs."""
    until = event["head"]["unmet_until_ns"]
    return [
        f"L{later['layer']} {(until - later['ready_ns']) / 1e3:.0f} us before "
        f"({', '.join(sorted({proof for _, proof in later['proofs'].values()})) or 'waits for nothing'})"
        for later in event["later"]
    ]


def compare_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Policies side by side on one workload."""
    columns = {
        "policy": "policy",
        "median ms": "median_ms",
        "p99 ms": "p99_ms",
        "gain %": "gain_pct",
        "events": "hol_events",
        "passes": "reordered",
        "late heads": "late_heads",
        "holds": "holds",
        "breaks": "violations",
    }
    cells = [[row[field] for field in columns.values()] for row in rows]
    return table("Policies on the same workload", tuple(columns), cells)
