"""Two folders of results made elsewhere, compared: pairs are formed by start, and every weakness is said aloud."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import canonical, samples
from .adapters import read_folder
from .analysis import Ask, Row, Settings, Start, analyse, common_metrics
from .errors import ResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .samples import Result
    from .verdict import Context, Rule

DEFAULT_METRICS = (
    "output_throughput",
    "request_throughput",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "error_rate",
)


@dataclass(frozen=True)
class Comparison:
    """Rows a scenario, the starts behind them, and the warnings a reader needs."""

    rows: tuple[Row, ...]
    starts: dict[str, int]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        return {
            "kind": "exploratory",
            "version": 1,
            "pairs": self.starts,
            "warnings": list(self.warnings),
            "rows": [row.to_json() for row in self.rows],
        }


def compare_folders(
    a: Path,
    b: Path,
    *,
    metric: str | None = None,
    rule: Rule = "better",
    margin: float = 0.0,
    settings: Settings | None = None,
    every_metric: bool = False,
    context: Context | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compare arm A (control) with arm B (treatment); `metric` is primary, everything else exploratory.

    Raises ResultError when the folders hold no comparable workload.
    """
    if progress is not None:
        progress("reading")
    by_arm = {"A": _by_scenario(read_folder(a)), "B": _by_scenario(read_folder(b))}
    shared = [key for key in by_arm["A"] if key in by_arm["B"]]
    if not shared:
        raise ResultError(
            f"no workload in common: A has {[_label(v[0]) for v in by_arm['A'].values()]!r}, "
            f"B has {[_label(v[0]) for v in by_arm['B'].values()]!r}"
        )
    warnings = ["exploratory: no protocol was locked before these data; a claim needs `serving-evidence run`"]
    for arm, other in (("A", "B"), ("B", "A")):
        warnings += [
            f"{_label(runs[0])}: only in {arm}, left out"
            for key, runs in by_arm[arm].items()
            if key not in by_arm[other]
        ]
    rows: list[Row] = []
    pairs: dict[str, int] = {}
    for key in shared:
        scenario = _label(by_arm["A"][key][0])
        if scenario in pairs:  # same label, different hidden identity (lengths, model)
            scenario = f"{scenario}-{key[:6]}"
        starts, said = _starts(by_arm["A"][key], by_arm["B"][key], scenario)
        warnings += said
        pairs[scenario] = len(starts) // 2
        asks = _asks(starts, scenario, metric, rule, margin, every_metric)
        rows += analyse(starts, asks, settings, context, progress)
    return Comparison(tuple(rows), pairs, tuple(dict.fromkeys(warnings)))


def _by_scenario(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        found[canonical.fingerprint({"tool": result.tool, **result.workload})].append(result)
    return dict(found)


def _label(result: Result) -> str:
    workload = result.workload
    parts = [
        f"{name}{workload[key]}"
        for name, key in (("c", "max_concurrency"), ("qps", "request_rate"), ("n", "num_prompts"))
        if key in workload
    ]
    return "-".join(parts) or f"{result.tool} {workload.get('benchmark', '')}".strip().replace(" ", "-").lower()


def _starts(a: Sequence[Result], b: Sequence[Result], scenario: str) -> tuple[list[Start], list[str]]:
    warnings: list[str] = []
    servers = {"A": _servers(a), "B": _servers(b)}
    if any(len(runs) > 1 for arm in servers.values() for runs in arm):
        warnings.append(f"{scenario}: repeats on one server count as one start (a sweep restarts per combination only)")
    left, right = _order(servers["A"], servers["B"])
    count = min(len(left), len(right))
    for arm, extra in (("A", left[count:]), ("B", right[count:])):
        warnings += [f"{scenario}: start {arm} {runs[0].source} has no partner, left out" for runs in extra]
    dates = [[runs[0].date for runs in side[:count]] for side in (left, right)]
    if (
        count > 1
        and all(all(side) for side in dates)
        and (max(dates[0]) < min(dates[1]) or max(dates[1]) < min(dates[0]))
    ):
        warnings.append(f"{scenario}: all of one arm ran before the other: drift of the box counts as effect")
    starts = []
    for pair in range(count):
        starts.append(_start("A", pair, left[pair], scenario))
        starts.append(_start("B", pair, right[pair], scenario))
    return starts, warnings


def _servers(results: Sequence[Result]) -> list[list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result.server or result.source].append(result)
    return list(groups.values())


def _order(a: list[list[Result]], b: list[list[Result]]) -> tuple[list[list[Result]], list[list[Result]]]:
    # Equal file names on both sides say more about who belongs together than clocks do.
    names = [sorted(runs[0].source for runs in side) for side in (a, b)]
    if names[0] == names[1]:
        return sorted(a, key=lambda runs: runs[0].source), sorted(b, key=lambda runs: runs[0].source)
    return a, b


def _start(arm: Any, pair: int, runs: Sequence[Result], scenario: str) -> Start:
    values, tails = start_values(runs)
    return Start(arm=arm, pair=pair, values={scenario: values}, tails={scenario: tails})


def start_values(runs: Sequence[Result]) -> tuple[dict[str, float], dict[str, int]]:
    """Metrics of one start (the mean over client runs on the same server) and the samples behind its tails."""
    all_values = [samples.metrics(run) for run in runs]
    shared = set.intersection(*(set(values) for values in all_values))
    values = {name: float(np.mean([found[name] for found in all_values])) for name in sorted(shared)}
    counts = {name: [samples.tail_samples(run, name) for run in runs] for name in values}
    tails = {name: min(c for c in found if c is not None) for name, found in counts.items() if None not in found}
    return values, tails


def _asks(
    starts: Sequence[Start], scenario: str, metric: str | None, rule: Rule, margin: float, every_metric: bool
) -> list[Ask]:
    known = common_metrics(starts, scenario)
    positive = [
        name
        for name in known
        if name.endswith("error_rate") or all(start.values[scenario][name] > 0 for start in starts)
    ]
    chosen = positive if every_metric else [name for name in DEFAULT_METRICS if name in positive]
    if metric is not None:
        chosen = [metric, *(name for name in chosen if name != metric)]
    if not chosen:
        raise ResultError(f"{scenario}: no metric in common that can be compared; seen: {known[:12]!r}")
    return [
        Ask(name, scenario, "primary" if name == metric else "exploratory", rule, margin if name == metric else 0.0)
        for name in chosen
    ]
