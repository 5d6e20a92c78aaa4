"""How many pairs of starts a claim needs, and what a finished run could have detected.

All effects and standard deviations are in log-ratio units; tests are two-sided paired t at 1 - level. The verdict's
interval is the wider of two, so its real power is slightly below these figures, never above.
"""

from __future__ import annotations

from math import inf, isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StatsError
from ._special import chi2_quantile, noncentral_t_cdf, t_quantile
from .pairs import differences

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

MIN_PAIRS = 6
MAX_PAIRS = 2_000


def power(pairs: int, effect: float, sd: float, level: float = 0.95) -> float:
    """Chance that a paired t interval at `level` excludes 0 when the true mean is `effect`."""
    _check(sd, level)
    if pairs < 2:
        raise StatsError(f"`pairs` must be >= 2, got {pairs!r}")
    shift = abs(effect) / sd * sqrt(pairs)
    critical = t_quantile(0.5 + level / 2, pairs - 1)
    low, high = noncentral_t_cdf(-critical, pairs - 1, shift), noncentral_t_cdf(critical, pairs - 1, shift)
    return float(np.clip(1.0 - high + low, 0.0, 1.0))


def detectable(pairs: int, sd: float, target: float = 0.8, level: float = 0.95) -> float:
    """Smallest effect found with chance `target` (the minimum detectable effect), log-ratio units."""
    _check(sd, level)
    _check_target(target)
    low, high = 0.0, sd
    while power(pairs, high, sd, level) < target:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        if power(pairs, middle, sd, level) < target:
            low = middle
        else:
            high = middle
    return high


def pairs_needed(
    effect: float, sd: float, *, margin: float = 0.0, target: float = 0.8, level: float = 0.95
) -> int | None:
    """Pairs so that an effect this far from `margin` is found with chance `target`; None above 2,000 pairs."""
    _check(sd, level)
    _check_target(target)
    distance = abs(effect - margin)
    if distance == 0 or power(MAX_PAIRS, distance, sd, level) < target:
        return None
    low, high = MIN_PAIRS - 1, MAX_PAIRS
    while high - low > 1:
        middle = (low + high) // 2
        if power(middle, distance, sd, level) >= target:
            high = middle
        else:
            low = middle
    return high


def pairs_still_needed(
    values: ArrayLike, *, margin: float = 0.0, target: float = 0.8, level: float = 0.95
) -> int | None:
    """Further pairs after these for a verdict with chance `target`, if mean and spread stay; None above 2,000."""
    d = differences(values)
    if d.size < 2:
        return MIN_PAIRS - int(d.size)
    sd = float(d.std(ddof=1))
    if sd == 0.0:
        return max(MIN_PAIRS - int(d.size), 0)
    total = pairs_needed(float(d.mean()), sd, margin=margin, target=target, level=level)
    # At least one: whoever asks has a run that did not decide.
    return None if total is None else max(total - int(d.size), MIN_PAIRS - int(d.size), 1)


def sd_upper(values: ArrayLike, confidence: float = 0.8) -> float:
    """Upper confidence bound of the standard deviation: few pilot pairs understate it as often as not."""
    d = differences(values)
    if d.size < 2:
        raise StatsError("a standard deviation needs at least 2 pilot pairs")
    if not 0.5 <= confidence < 1:
        raise StatsError(f"`confidence` must be in [0.5, 1), got {confidence!r}")
    return float(d.std(ddof=1)) * sqrt((d.size - 1) / chi2_quantile(1 - confidence, d.size - 1))


def _check(sd: float, level: float) -> None:
    if not (isfinite(sd) and 0 < sd < inf):
        raise StatsError(f"`sd` must be a positive finite number, got {sd!r}")
    if not 0.5 < level < 1.0:
        raise StatsError(f"`level` must be between 0.5 and 1 (0.95 for 95 %), got {level!r}")


def _check_target(target: float) -> None:
    if not 0.5 <= target < 1.0:
        raise StatsError(f"`target` (the wanted power) must be in [0.5, 1), got {target!r}")
