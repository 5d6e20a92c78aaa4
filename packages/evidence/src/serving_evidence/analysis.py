"""From starts to verdicts: per-start metrics, paired by start, judged by the rule that was declared.

A `Start` is one server process. Several client runs against the same process are one start (their metrics are
averaged): repeats of one server say nothing about the next one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isfinite, log1p
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from . import samples, stats
from .errors import ResultError, StatsError
from .verdict import Context, Rule, Scale, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .stats._special import FloatArray

Arm = Literal["A", "B"]
Role = Literal["primary", "gate", "secondary", "exploratory"]


@dataclass(frozen=True)
class Start:
    """One server start: its arm, its pair, and per scenario the metrics and the samples behind each tail metric."""

    arm: Arm
    pair: int
    values: Mapping[str, Mapping[str, float]]
    tails: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Ask:
    """One metric to be judged, with its role and rule."""

    metric: str
    scenario: str
    role: Role
    rule: Rule = "better"
    margin: float = 0.0
    direction: samples.Direction | None = None


@dataclass(frozen=True)
class Settings:
    """Numbers of the decision rule, as in the protocol."""

    level: float = 0.95
    resamples: int = 9_999
    power: float = 0.8


@dataclass(frozen=True)
class Row:
    """Everything shown of one metric; effects are oriented (positive = B better), one a pair, in pair order."""

    role: Role
    direction: samples.Direction
    mean_a: float
    mean_b: float
    effects: tuple[float, ...]
    verdict: Verdict
    intervals: Mapping[str, tuple[float | None, float | None]]
    sign_flip_p: float
    sign_flip_minimum: float
    t_p: float | None
    equivalence_p: float | None
    holm_p: float | None
    sd: float | None
    detectable: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        plain = {name: value for name, value in asdict(self).items() if name != "verdict"}
        return plain | {
            "verdict": self.verdict.to_json(),
            "effects": list(self.effects),
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items()},
        }


def analyse(
    starts: Sequence[Start],
    asks: Sequence[Ask],
    settings: Settings | None = None,
    context: Context | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Row]:
    """One row a metric, in the order asked; the secondary family gets Holm-adjusted sign-flip p-values."""
    settings, context = settings or Settings(), context or Context()
    paired = pair_up(starts)
    rows = []
    for ask in asks:
        if progress is not None:
            progress(f"{ask.metric} ({ask.scenario})")
        rows.append(_row(paired, ask, settings, context))
    family = [i for i, row in enumerate(rows) if row.role == "secondary"]
    adjusted = stats.holm([rows[i].sign_flip_p for i in family])
    for i, p in zip(family, adjusted, strict=True):
        rows[i] = Row(**{**rows[i].__dict__, "holm_p": p})
    return rows


def pair_up(starts: Iterable[Start]) -> list[tuple[Start, Start]]:
    """(A, B) of every complete pair, in pair order; a start without its partner is left out (and counted elsewhere)."""
    by_pair: dict[int, dict[Arm, Start]] = {}
    for start in starts:
        arms = by_pair.setdefault(start.pair, {})
        if start.arm in arms:
            raise ResultError(f"pair {start.pair} has two starts of arm {start.arm}")
        arms[start.arm] = start
    return [(arms["A"], arms["B"]) for _, arms in sorted(by_pair.items()) if len(arms) == 2]


def common_metrics(starts: Sequence[Start], scenario: str) -> list[str]:
    """Metrics that every start has for this scenario and whose better direction is known."""
    names = [set(start.values.get(scenario, {})) for start in starts]
    shared = set.intersection(*names) if names else set()
    return sorted(name for name in shared if samples.direction(name) is not None)


def effects(
    metric: str, a: Sequence[float], b: Sequence[float], direction: samples.Direction
) -> tuple[FloatArray, Scale]:
    """Oriented paired effects: log-ratios, or plain differences for rates that can be 0 (error_rate)."""
    sign = 1.0 if direction == "higher" else -1.0
    if metric.endswith("error_rate"):
        return sign * (np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)), "difference"
    return sign * stats.log_ratios(a, b), "log-ratio"


def _row(paired: Sequence[tuple[Start, Start]], ask: Ask, settings: Settings, context: Context) -> Row:
    direction = ask.direction or samples.direction(ask.metric)
    if direction is None:
        raise ResultError(f"metric {ask.metric!r}: say which way is better (direction: higher or lower)")
    if not paired:
        raise ResultError(f"no complete pair of starts has {ask.metric!r}")
    a = [_value(start, ask) for start, _ in paired]
    b = [_value(start, ask) for _, start in paired]
    try:
        d, scale = effects(ask.metric, a, b, direction)
    except StatsError as problem:
        raise ResultError(f"metric {ask.metric!r} ({ask.scenario}): {problem}") from None
    refused = _tail_refusal(paired, ask)
    verdict = judge(
        d,
        metric=ask.metric,
        scenario=ask.scenario,
        rule=ask.rule,
        margin=ask.margin,
        scale=scale,
        level=settings.level,
        resamples=settings.resamples,
        power=settings.power,
        context=Context(**{**context.__dict__, "inconclusive": (*context.inconclusive, *refused)}),
    )
    flip = stats.sign_flip(d)
    many = d.size >= 2
    sd = float(d.std(ddof=1)) if many else None
    margin = log1p(ask.margin) if scale == "log-ratio" else ask.margin
    return Row(
        role=ask.role,
        direction=direction,
        mean_a=_centre(a, scale),
        mean_b=_centre(b, scale),
        effects=tuple(float(x) for x in d),
        verdict=verdict,
        intervals=_intervals(d, settings) if many else {},
        sign_flip_p=flip.p,
        sign_flip_minimum=flip.minimum,
        t_p=stats.paired_t_p(d) if many else None,
        equivalence_p=stats.equivalent(d, margin).p if many and margin > 0 else None,
        holm_p=None,
        sd=sd,
        detectable=stats.detectable(d.size, sd, settings.power, settings.level) if sd else None,
    )


def _value(start: Start, ask: Ask) -> float:
    try:
        return start.values[ask.scenario][ask.metric]
    except KeyError:
        known = sorted(start.values.get(ask.scenario, {}))
        raise ResultError(
            f"start {start.arm}{start.pair} has no {ask.metric!r} in scenario {ask.scenario!r}; it has {known[:12]!r}"
        ) from None


def _tail_refusal(paired: Sequence[tuple[Start, Start]], ask: Ask) -> tuple[str, ...]:
    counts = [start.tails.get(ask.scenario, {}).get(ask.metric) for pair in paired for start in pair]
    known = [count for count in counts if count is not None]
    quantile = samples.QUANTILES.get(ask.metric.partition("_")[0])
    if not known or quantile is None:
        return ()
    least = stats.floor(quantile)
    if min(known) >= least:
        return ()
    return (f"{ask.metric} of {min(known)} samples a start is refused: its 99 % bound needs {least}",)


def _centre(values: Sequence[float], scale: Scale) -> float:
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean() if scale == "difference" else np.exp(np.log(array).mean()))


def _intervals(d: FloatArray, settings: Settings) -> dict[str, tuple[float | None, float | None]]:
    found = {
        "bootstrap-t": stats.bootstrap_t(d, settings.level, resamples=settings.resamples),
        "paired-t": stats.paired_t(d, settings.level),
        "percentile": stats.percentile(d, settings.level, resamples=settings.resamples),
        "bca": stats.bca(d, settings.level, resamples=settings.resamples),
    }
    return {
        name: (x.low if isfinite(x.low) else None, x.high if isfinite(x.high) else None) for name, x in found.items()
    }
