"""Honest tail percentiles of one run: binomial bounds instead of a point read off too few samples.

The bound rests on order statistics: of n independent samples, t may lie above the reported value only if
P(Binomial(n, 1 - q) <= t) <= 1 - confidence. MLPerf's load generator stops early on the same rule. It speaks of the
requests of one start; requests of one server are not independent starts, so no comparison of arms rests on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StatsError
from ._special import binomial_cdf

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

DEFAULT_CONFIDENCE = 0.99


@dataclass(frozen=True)
class TailBound:
    """Upper confidence bound of one quantile; `upper` is None when there are fewer samples than `floor`."""

    quantile: float
    confidence: float
    samples: int
    floor: int
    estimate: float
    upper: float | None


def floor(quantile: float, confidence: float = DEFAULT_CONFIDENCE, *, above: int = 0) -> int:
    """Fewest samples that bound `quantile` when `above` of them may lie above the bound (459 for p99 and 0 above)."""
    _check(quantile, confidence)
    if above < 0:
        raise StatsError(f"`above` must be >= 0, got {above!r}")
    low, high = above, above + 1
    while not _bounded(high, above, quantile, confidence):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _bounded(middle, above, quantile, confidence):
            high = middle
        else:
            low = middle
    return high


def tail_bound(values: ArrayLike, quantile: float, confidence: float = DEFAULT_CONFIDENCE) -> TailBound:
    """Quantile of `values` [samples] with the smallest order statistic that bounds it from above."""
    _check(quantile, confidence)
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise StatsError(f"tail samples must be a non-empty vector of finite numbers, got shape {x.shape!r}")
    estimate = float(np.quantile(x, quantile))
    least = floor(quantile, confidence)
    if x.size < least:
        return TailBound(quantile, confidence, x.size, least, estimate, None)
    above = _largest_above(x.size, quantile, confidence)
    rank = x.size - 1 - above
    return TailBound(quantile, confidence, x.size, least, estimate, float(np.partition(x, rank)[rank]))


def _largest_above(samples: int, quantile: float, confidence: float) -> int:
    candidates = np.arange(int((1 - quantile) * samples) + 1)
    allowed = binomial_cdf(candidates, samples, 1 - quantile) <= 1 - confidence
    return int(np.count_nonzero(allowed)) - 1


def _bounded(samples: int, above: int, quantile: float, confidence: float) -> bool:
    return bool(binomial_cdf(above, samples, 1 - quantile) <= 1 - confidence)


def _check(quantile: float, confidence: float) -> None:
    for name, value in (("quantile", quantile), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise StatsError(f"`{name}` must be between 0 and 1 (0.99 for p99), got {value!r}")
