"""Tests over pairs: exact sign-flip, paired t, equivalence and non-inferiority, Holm's correction."""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, sqrt
from typing import TYPE_CHECKING, Literal

import numpy as np

from ..errors import StatsError
from ._special import FloatArray, t_cdf
from .pairs import differences

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

# 2**20 sign patterns: half a second and 8 MB. Beyond that the p-value is drawn, and says so.
_EXACT_PAIRS = 21
_DRAWS = 1_000_000
_TIE = 1e-12


@dataclass(frozen=True)
class SignFlip:
    """Two-sided sign-flip test: p, the smallest p that this many pairs can give at all, and how p was found."""

    p: float
    minimum: float
    method: Literal["exact", "drawn"]


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests against -margin and +margin; `p` is the larger of the two."""

    p_low: float
    p_high: float

    @property
    def p(self) -> float:
        """p-value of the claim that the mean lies inside the margins."""
        return max(self.p_low, self.p_high)


def sign_flip(values: ArrayLike, *, seed: int = 0) -> SignFlip:
    """Exact two-sided p of the mean when each pair's sign is a coin toss (no effect, any distribution).

    Up to 21 pairs every sign pattern is counted; above, one million patterns are drawn with `seed`.
    """
    d = differences(values)
    # Sorted, so that the sum's rounding does not depend on the order of the pairs.
    d = d[np.lexsort((d, np.abs(d)))]
    observed = abs(float(d.sum())) - _TIE * float(np.abs(d).sum())
    if d.size <= _EXACT_PAIRS:
        # A pattern and its mirror are equally extreme, so the first sign can stay fixed.
        sums: FloatArray = d[:1]
        for value in d[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return SignFlip(float(np.mean(np.abs(sums) >= observed)), _minimum(d.size), "exact")
    rng = np.random.default_rng(seed)
    hits = 0
    block = 10_000
    for _ in range(_DRAWS // block):
        signs = rng.integers(0, 2, size=(block, d.size), dtype=np.int8) * 2.0 - 1.0
        hits += int(np.count_nonzero(np.abs(signs @ d) >= observed))
    return SignFlip((hits + 1) / (_DRAWS + 1), max(_minimum(d.size), 1 / (_DRAWS + 1)), "drawn")


def _minimum(pairs: int) -> float:
    return float(2.0 ** (1 - pairs))


def paired_t_p(values: ArrayLike) -> float:
    """Two-sided p of the paired t test of mean 0; 1.0 when all differences are exactly 0."""
    return min(1.0, 2.0 * min(one_sided_p(values, 0.0), 1.0 - one_sided_p(values, 0.0)))


def one_sided_p(values: ArrayLike, bound: float) -> float:
    """p of the one-sided paired t test whose claim is `mean > bound`: small when the mean lies clearly above."""
    d = differences(values)
    if d.size < 2:
        raise StatsError("a t test needs at least 2 pairs of starts")
    distance = float(d.mean()) - bound
    error = float(d.std(ddof=1)) / sqrt(d.size)
    if error == 0.0:
        return 0.5 if distance == 0.0 else float(distance < 0)
    return t_cdf(-distance / error, d.size - 1)


def non_inferior(values: ArrayLike, margin: float) -> float:
    """p of the claim that the mean is above -margin (margin >= 0, log-ratio units)."""
    return one_sided_p(values, -_margin(margin))


def equivalent(values: ArrayLike, margin: float) -> Equivalence:
    """TOST: is the mean inside (-margin, +margin)? margin > 0, log-ratio units."""
    width = _margin(margin)
    d = differences(values)
    return Equivalence(p_low=one_sided_p(d, -width), p_high=one_sided_p(-d, -width))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given, for one declared family."""
    for p in p_values:
        if isnan(p) or not 0.0 <= p <= 1.0:
            raise StatsError(f"a p-value must be between 0 and 1, got {p!r}")
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def _margin(margin: float) -> float:
    if not (np.isfinite(margin) and margin >= 0):
        raise StatsError(f"`margin` must be a finite number >= 0, got {margin!r}")
    return float(margin)
