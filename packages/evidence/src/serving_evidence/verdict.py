"""The verdict rule, fixed: an interval over pairs of starts against a margin chosen in advance.

REPRODUCED      the interval's lower bound lies above the margin
NOT_REPRODUCED  its upper bound lies below the margin
INCONCLUSIVE    the margin lies inside, or there are fewer than 6 pairs
INVALID         the run broke its protocol, whatever the numbers say
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite, log1p
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from . import stats
from .stats import MIN_PAIRS

if TYPE_CHECKING:
    from collections.abc import Sequence

Status = Literal["REPRODUCED", "NOT_REPRODUCED", "INCONCLUSIVE", "INVALID"]
Rule = Literal["better", "not-worse", "same"]
Scale = Literal["log-ratio", "difference"]
METHOD = "wider of bootstrap-t and paired t over pairs of server starts"


@dataclass(frozen=True)
class Verdict:
    """One claim's verdict; estimate and bounds are oriented so that positive is better, in units of `scale`.

    A bound is None where it is infinite or there are fewer than 2 pairs.
    """

    status: Status
    metric: str
    scenario: str
    rule: Rule
    margin: float
    scale: Scale
    level: float
    pairs: int
    positive_pairs: int
    estimate: float | None
    low: float | None
    high: float | None
    interval_method: str | None
    reasons: tuple[str, ...]
    pairs_still_needed: int | None
    aa_rate: float | None
    aa_pairs: int | None
    independent: bool
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        return asdict(self) | {"reasons": list(self.reasons)}


@dataclass(frozen=True)
class Context:
    """What a verdict sentence must also say: A/A calibration of the box, who ran it, and protocol breaches."""

    invalid: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    aa_rate: float | None = None
    aa_pairs: int | None = None
    independent: bool = False


def judge(
    effects: Sequence[float] | np.ndarray[Any, Any],
    *,
    metric: str,
    scenario: str,
    rule: Rule = "better",
    margin: float = 0.0,
    scale: Scale = "log-ratio",
    level: float = 0.95,
    resamples: int = 9_999,
    power: float = 0.8,
    context: Context | None = None,
) -> Verdict:
    """Verdict on paired effects [pairs], positive = treatment better; margin is a fraction >= 0 (0.01 is 1 %)."""
    context = context or Context()
    d = np.asarray(effects, dtype=np.float64)
    pairs = int(d.size)
    threshold = log1p(margin) if scale == "log-ratio" else margin
    interval = stats.verdict_interval(d, level, resamples=resamples) if pairs >= 2 else None
    reasons: list[str] = list(context.invalid)
    status: Status
    needed: int | None = None
    if context.invalid:
        status = "INVALID"
    elif pairs < MIN_PAIRS or interval is None:
        status = "INCONCLUSIVE"
        reasons.append(f"{pairs} of at least {MIN_PAIRS} pairs: no exact paired test reaches 5 % below {MIN_PAIRS}")
    elif context.inconclusive:
        status = "INCONCLUSIVE"
        reasons += context.inconclusive
    else:
        status = decide(interval.low, interval.high, rule, threshold)
    if status == "INCONCLUSIVE" and not context.inconclusive:
        if pairs >= MIN_PAIRS and interval is not None:
            reasons.append("the interval holds the margin")
        needed = _still_needed(d, rule, threshold, level, power)
    estimate = float(d.mean()) if pairs else None
    low, high = (_finite(interval.low), _finite(interval.high)) if interval is not None else (None, None)
    positive = int(np.count_nonzero(d > 0))
    return Verdict(
        status=status,
        metric=metric,
        scenario=scenario,
        rule=rule,
        margin=margin,
        scale=scale,
        level=level,
        pairs=pairs,
        positive_pairs=positive,
        estimate=estimate,
        low=low,
        high=high,
        interval_method=interval.method if interval is not None else None,
        reasons=tuple(reasons),
        pairs_still_needed=needed,
        aa_rate=context.aa_rate,
        aa_pairs=context.aa_pairs,
        independent=context.independent,
        sentence=_sentence(
            status, metric, scenario, rule, margin, scale, level, d, low, high, reasons, needed, context
        ),
    )


def decide(low: float, high: float, rule: Rule, threshold: float) -> Status:
    """The rule itself, on bounds and a threshold >= 0 in the same units."""
    if rule == "same":
        if -threshold < low and high < threshold:
            return "REPRODUCED"
        return "NOT_REPRODUCED" if low > threshold or high < -threshold else "INCONCLUSIVE"
    bound = threshold if rule == "better" else -threshold
    if low > bound:
        return "REPRODUCED"
    return "NOT_REPRODUCED" if high < bound else "INCONCLUSIVE"


def _still_needed(d: np.ndarray[Any, Any], rule: Rule, threshold: float, level: float, power: float) -> int | None:
    if d.size == 0:
        return MIN_PAIRS
    if rule == "same":
        nearest = threshold if float(d.mean()) >= 0 else -threshold
    else:
        nearest = threshold if rule == "better" else -threshold
    return stats.pairs_still_needed(d, margin=nearest, target=power, level=level)


def _sentence(
    status: Status,
    metric: str,
    scenario: str,
    rule: Rule,
    margin: float,
    scale: Scale,
    level: float,
    d: np.ndarray[Any, Any],
    low: float | None,
    high: float | None,
    reasons: list[str],
    needed: int | None,
    context: Context,
) -> str:
    claim = {"better": "better by more than", "not-worse": "not worse by more than", "same": "the same within"}[rule]
    text = f"{status}: {metric} ({scenario}) of B against A {claim} {margin:.2%}"
    if d.size:
        text += f"; estimate {show(float(d.mean()), scale)}"
    if d.size >= 2:
        text += f", {level:.0%} interval {show_bounds(low, high, scale)} ({METHOD})"
    text += f"; {d.size} pairs, {int(np.count_nonzero(d > 0))} positive"
    if context.aa_rate is None:
        text += "; no A/A calibration"
    else:
        text += f"; A/A rate {context.aa_rate:.1%} over {context.aa_pairs} A/A pairs"
    text += "; run by " + ("an independent party" if context.independent else "the authors, not independent")
    if reasons:
        text += "; " + "; ".join(reasons)
    if status == "INCONCLUSIVE" and not context.inconclusive:
        text += "; " + (
            "no number of pairs up to 2,000 would decide at this mean and spread"
            if needed is None
            else f"about {needed} more pairs at this mean and spread"
        )
    return text + "."


def _finite(bound: float) -> float | None:
    # Resamples that drew one pair only have no spread: with very few pairs their t reaches infinity.
    return bound if isfinite(bound) else None


def show_bounds(low: float | None, high: float | None, scale: Scale) -> str:
    """An interval for people; a side without a bound says so."""
    return " to ".join("unbounded" if bound is None else show(bound, scale) for bound in (low, high))


def show(value: float, scale: Scale) -> str:
    """An oriented effect for people: percent change of a ratio, or percentage points of a difference."""
    if scale == "difference":
        return f"{value * 100:+.3f} points"
    # Oriented: +1 % means B is better by 1 %, for a time as for a throughput.
    return f"{np.expm1(value) * 100:+.2f} %"
