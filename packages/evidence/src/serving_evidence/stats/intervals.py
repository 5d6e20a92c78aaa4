"""Intervals for the mean paired difference; the verdict uses the wider of bootstrap-t and paired t.

Percentile and BCa intervals are here to be shown beside it: at 5 pairs a nominal 95 % one covers about 0.84
(benchmarks/evidence_coverage.py), so neither ever decides anything. Request-pooled intervals do not exist here at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import StatsError
from ._special import FloatArray, normal_cdf, normal_quantile, t_quantile
from .pairs import differences
from .resample import DEFAULT_RESAMPLES, DEFAULT_SEED, canonical, tail_ranks, weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Method = Literal["bootstrap-t", "paired-t", "percentile", "bca"]
# Experiments handled at once: 64 x 9,999 resamples of float64 is 5 MB, small enough to stay in cache.
_BLOCK = 64


@dataclass(frozen=True)
class Interval:
    """A two-sided interval for the mean paired difference, in log-ratio units; `level` is nominal."""

    low: float
    high: float
    level: float
    method: Method

    @property
    def width(self) -> float:
        """Distance between the bounds, in log-ratio units."""
        return self.high - self.low


def paired_t(values: ArrayLike, level: float = 0.95) -> Interval:
    """Student's t interval over pairs [pairs >= 2]."""
    return _single(values, level, "paired-t", DEFAULT_RESAMPLES, DEFAULT_SEED)


def bootstrap_t(
    values: ArrayLike, level: float = 0.95, *, resamples: int = DEFAULT_RESAMPLES, seed: int = DEFAULT_SEED
) -> Interval:
    """Studentized bootstrap over pairs [pairs >= 2]: equal tails of the resampled t statistic.

    A resample that drew one pair only has no spread; its t is infinite, as it should be (it carries no information).
    """
    return _single(values, level, "bootstrap-t", resamples, seed)


def percentile(
    values: ArrayLike, level: float = 0.95, *, resamples: int = DEFAULT_RESAMPLES, seed: int = DEFAULT_SEED
) -> Interval:
    """Percentile bootstrap over pairs: shown, never decides (too narrow at few pairs)."""
    return _single(values, level, "percentile", resamples, seed)


def bca(
    values: ArrayLike, level: float = 0.95, *, resamples: int = DEFAULT_RESAMPLES, seed: int = DEFAULT_SEED
) -> Interval:
    """Bias-corrected and accelerated bootstrap over pairs: shown, never decides (too narrow at few pairs)."""
    return _single(values, level, "bca", resamples, seed)


def verdict_interval(
    values: ArrayLike, level: float = 0.95, *, resamples: int = DEFAULT_RESAMPLES, seed: int = DEFAULT_SEED
) -> Interval:
    """The wider of bootstrap-t and paired t: the only interval that a verdict is read from."""
    by_t = paired_t(values, level)
    by_bootstrap = bootstrap_t(values, level, resamples=resamples, seed=seed)
    return by_bootstrap if by_bootstrap.width > by_t.width else by_t


def many(
    values: FloatArray,
    method: Method | Literal["verdict"],
    level: float = 0.95,
    *,
    resamples: int = DEFAULT_RESAMPLES,
    seed: int = DEFAULT_SEED,
) -> FloatArray:
    """Bounds [experiments, 2] of many experiments at once, values [experiments, pairs]: the single form's code."""
    d = np.asarray(values, dtype=np.float64)
    if d.ndim != 2 or d.shape[1] < 2:
        raise StatsError(f"`values` must be [experiments, pairs >= 2], got shape {d.shape!r}")
    _check_level(level)
    if method == "verdict":
        by_t = many(d, "paired-t", level)
        by_bootstrap = many(d, "bootstrap-t", level, resamples=resamples, seed=seed)
        wider = (by_bootstrap[:, 1] - by_bootstrap[:, 0]) > (by_t[:, 1] - by_t[:, 0])
        return np.where(wider[:, None], by_bootstrap, by_t)
    rows, sign = canonical(d)
    if method == "paired-t":
        bounds = _t_bounds(rows, level)
    else:
        by_method = {"bootstrap-t": _bootstrap_t_bounds, "percentile": _percentile_bounds, "bca": _bca_bounds}
        w = weights(d.shape[1], resamples, seed)
        blocks = [by_method[method](rows[i : i + _BLOCK], w, level) for i in range(0, d.shape[0], _BLOCK)]
        bounds = np.concatenate(blocks)
    return np.where(sign > 0, bounds, -bounds[:, ::-1])


def _single(values: ArrayLike, level: float, method: Method, resamples: int, seed: int) -> Interval:
    d = differences(values)
    if d.size < 2:
        raise StatsError("one pair has no spread: an interval needs at least 2 pairs of starts, a verdict 6")
    low, high = many(d[None, :], method, level, resamples=resamples, seed=seed)[0]
    return Interval(float(low), float(high), level, method)


def _check_level(level: float) -> None:
    if not 0.5 < level < 1.0:
        raise StatsError(f"`level` must be between 0.5 and 1 (0.95 for 95 %), got {level!r}")


def _mean_and_error(d: FloatArray) -> tuple[FloatArray, FloatArray]:
    # Equal values have no spread; their computed mean is off by a rounding error, and would show one.
    constant = (d == d[:, :1]).all(axis=1, keepdims=True)
    mean = np.where(constant, d[:, :1], d.mean(axis=1, keepdims=True))
    return mean, np.where(constant, 0.0, d.std(axis=1, ddof=1, keepdims=True)) / np.sqrt(d.shape[1])


def _t_bounds(d: FloatArray, level: float) -> FloatArray:
    mean, error = _mean_and_error(d)
    reach = t_quantile(0.5 + level / 2.0, d.shape[1] - 1) * error
    return np.concatenate([mean - reach, mean + reach], axis=1)


def _bootstrap_t_bounds(d: FloatArray, w: FloatArray, level: float) -> FloatArray:
    n = d.shape[1]
    mean, error = _mean_and_error(d)
    # Centred first: the second moment of far-off values would lose the spread to rounding.
    centred = d - mean
    shift = centred @ w.T
    variance = (centred * centred) @ w.T - shift * shift
    # A one-pair resample has exactly no spread; anything below this is that, seen through rounding.
    floor = 1e-12 * np.maximum((centred * centred).max(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    spread = np.sqrt(np.where(variance > floor, variance, 0.0) / (n - 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread > 0, shift / spread, np.where(shift == 0, 0.0, np.sign(shift) * np.inf))
    low, high = _order_statistics(t, level)
    with np.errstate(invalid="ignore"):
        bounds = np.stack([mean[:, 0] - error[:, 0] * high, mean[:, 0] - error[:, 0] * low], axis=1)
    # No spread at all: every resample is the mean itself, and 0 * inf must not turn that into nan.
    return np.where(error > 0, bounds, mean)


def _percentile_bounds(d: FloatArray, w: FloatArray, level: float) -> FloatArray:
    mean, _ = _mean_and_error(d)
    return mean + np.stack(_order_statistics((d - mean) @ w.T, level), axis=1)


def _bca_bounds(d: FloatArray, w: FloatArray, level: float) -> FloatArray:
    mean, _ = _mean_and_error(d)
    centred = d - mean
    resampled = np.sort(centred @ w.T, axis=1)
    count = resampled.shape[1]
    below = ((resampled < 0).sum(axis=1) + (resampled <= 0).sum(axis=1)) / (2.0 * count)
    bias = normal_quantile(np.clip(below, 0.5 / count, 1 - 0.5 / count))
    # The jackknife of a mean is linear in the values, so its acceleration needs no leave-one-out loop.
    square = (centred**2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        acceleration = np.where(square > 0, (centred**3).sum(axis=1) / (6.0 * square**1.5), 0.0)
    bounds = []
    for z in normal_quantile([(1 - level) / 2, (1 + level) / 2]):
        at = normal_cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))
        rank = np.clip(np.round(at * (count + 1)).astype(np.int64) - 1, 0, count - 1)
        bounds.append(np.take_along_axis(resampled, rank[:, None], axis=1)[:, 0])
    return mean + np.stack(bounds, axis=1)


def _order_statistics(values: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    low, high = tail_ranks(values.shape[1], level)
    parted = np.partition(values, (low, high), axis=1)
    return parted[:, low], parted[:, high]
