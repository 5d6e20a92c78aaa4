"""Bootstrap resamples as weights: the same fixed draws for every data set of one size.

A resample of n pairs is a row of counts that sums to n, so means and second moments of all resamples are two matrix
products. With the draws fixed by (n, resamples, seed) an interval is a pure function of the data, and a coverage
simulation runs the very code that a verdict uses, thousands of experiments at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StatsError

if TYPE_CHECKING:
    from ._special import FloatArray

DEFAULT_RESAMPLES = 9_999
DEFAULT_SEED = 20_261_129


@lru_cache(maxsize=32)
def weights(pairs: int, resamples: int = DEFAULT_RESAMPLES, seed: int = DEFAULT_SEED) -> FloatArray:
    """Read-only float64 [resamples, pairs]; each row is a resample's counts divided by `pairs`."""
    if pairs < 2:
        raise StatsError(f"`pairs` must be >= 2 to resample, got {pairs!r}")
    if resamples < 999:
        raise StatsError(f"`resamples` must be >= 999 for a stable 95 % interval, got {resamples!r}")
    rng = np.random.Generator(np.random.PCG64([seed, pairs, resamples]))
    drawn = rng.multinomial(pairs, np.full(pairs, 1.0 / pairs), size=resamples)
    result = drawn.astype(np.float64) / pairs
    result.setflags(write=False)
    return result


def tail_ranks(resamples: int, level: float) -> tuple[int, int]:
    """Zero-based ranks of the lower and upper order statistic that cut (1 - level) / 2 off each side."""
    tail = (1.0 - level) / 2.0
    low = max(round((resamples + 1) * tail), 1)
    return low - 1, resamples - low


def canonical(d: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Rows of d in an order that depends neither on the order of pairs nor on which arm is called A.

    d: [experiments, pairs]. Returns (canonical rows, sign [experiments, 1]); d equals sign * rows up to order.
    Without it swapping the arms would give the mirrored interval only up to resampling noise.
    """
    up = np.sort(d, axis=1)
    down = -up[:, ::-1]
    differs = up != down
    first = np.argmax(differs, axis=1)
    rows = np.arange(d.shape[0])
    flip = differs.any(axis=1) & (down[rows, first] > up[rows, first])
    sign = np.where(flip, -1.0, 1.0)[:, None]
    return np.where(flip[:, None], down, up), sign
