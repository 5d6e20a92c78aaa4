"""Paired differences between server starts: the only unit that any interval in this package is computed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..errors import StatsError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from ._special import FloatArray


def log_ratios(control: ArrayLike, treatment: ArrayLike) -> FloatArray:
    """Natural log of treatment over control, one value a pair of starts.

    control, treatment: one positive number a start [pairs], in the same unit, paired by position.
    Returns float64 [pairs]; 0.01 is about +1 %. Raises StatsError when a value has no logarithm.
    """
    a = _positive("control", control)
    b = _positive("treatment", treatment)
    if a.shape != b.shape:
        raise StatsError(
            f"`control` has {a.size} starts and `treatment` {b.size}: pairs need the same number; "
            "leave the unpaired start out and say so, or run its partner"
        )
    # In one step: log(b) - log(a) keeps swap-negation exact, log(b / a) does not.
    return np.log(b) - np.log(a)


def differences(values: ArrayLike) -> FloatArray:
    """The same values as a checked float64 vector [pairs]: one dimension, not empty, all finite."""
    d = np.asarray(values, dtype=np.float64)
    if d.ndim != 1 or d.size == 0:
        raise StatsError(f"paired differences must be a non-empty vector, got shape {d.shape!r}")
    if not np.isfinite(d).all():
        raise StatsError(f"paired differences must be finite, got {d[~np.isfinite(d)][:3].tolist()!r}")
    return d


def as_percent(log_ratio: float) -> float:
    """Percent change that a log-ratio stands for: 0.01 -> 1.005."""
    return float(np.expm1(log_ratio) * 100.0)


def _positive(name: str, values: ArrayLike) -> FloatArray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise StatsError(f"`{name}` must be a non-empty vector, got shape {array.shape!r}")
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        where = int(np.flatnonzero(bad)[0])
        raise StatsError(
            f"`{name}`[{where}] is {float(array[where])!r}: a ratio needs positive finite values; "
            "a metric that can be 0 (an error rate) is compared by difference, not by ratio"
        )
    return array
