"""Typed access to the few special functions used (scipy.special alone: scipy.stats costs a second to import)."""

from __future__ import annotations

from math import isnan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special  # type: ignore[import-untyped, unused-ignore]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_special: Any = special


def t_cdf(t: float, df: float) -> float:
    """Student's t distribution function."""
    return float(_special.stdtr(df, t))


def t_quantile(p: float, df: float) -> float:
    """Student's t quantile."""
    return float(_special.stdtrit(df, p))


def noncentral_t_cdf(t: float, df: float, shift: float) -> float:
    """Noncentral t distribution function with noncentrality `shift`."""
    value = float(_special.nctdtr(df, shift, t))
    # Far in the tail scipy gives up with nan; the normal form is then right to more digits than anyone prints.
    return float(_special.ndtr(t - shift)) if isnan(value) else value


def chi2_quantile(p: float, df: float) -> float:
    """Chi-squared quantile."""
    return float(2.0 * _special.gammaincinv(df / 2.0, p))


def normal_cdf(x: ArrayLike) -> FloatArray:
    """Normal distribution function, elementwise."""
    return np.asarray(_special.ndtr(x), dtype=np.float64)


def normal_quantile(p: ArrayLike) -> FloatArray:
    """Normal quantile, elementwise."""
    return np.asarray(_special.ndtri(p), dtype=np.float64)


def binomial_cdf(k: ArrayLike, n: int, p: float) -> FloatArray:
    """P(X <= k) for X ~ Binomial(n, p), elementwise in k."""
    return np.asarray(_special.bdtr(k, n, p), dtype=np.float64)
