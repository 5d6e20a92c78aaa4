"""A/A calibration: how often this harness on this box finds a difference where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import StatsError
from .intervals import Interval, many, verdict_interval
from .pairs import differences
from .resample import DEFAULT_RESAMPLES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_EXACT_PAIRS = 12
_DRAWS = 4_096


@dataclass(frozen=True)
class Calibration:
    """Result of an A/A run: pairs, their interval, and the share of relabelled runs with a directional verdict."""

    pairs: int
    mean: float
    sd: float
    interval: Interval
    false_positive_rate: float
    relabellings: int


def calibrate(
    values: ArrayLike, level: float = 0.95, *, resamples: int = DEFAULT_RESAMPLES, seed: int = 0
) -> Calibration:
    """Relabel the two equal arms of each A/A pair and count verdicts that exclude 0.

    values: log-ratios of an A/A run [pairs >= 2]. Every relabelling up to 12 pairs, 4,096 drawn ones above.
    """
    d = differences(values)
    if d.size < 2:
        raise StatsError("an A/A calibration needs at least 2 pairs of starts, and 6 to be worth quoting")
    # Overall sign does not change whether 0 is excluded, so the first sign stays fixed.
    if d.size <= _EXACT_PAIRS:
        codes = np.arange(2 ** (d.size - 1))
        bits = (codes[:, None] >> np.arange(d.size - 1)[None, :]) & 1
    else:
        bits = np.random.default_rng(seed).integers(0, 2, size=(_DRAWS, d.size - 1))
    signs = np.concatenate([np.ones((bits.shape[0], 1)), bits * 2.0 - 1.0], axis=1)
    bounds = many(np.abs(d)[None, :] * signs, "verdict", level, resamples=resamples)
    excludes = (bounds[:, 0] > 0) | (bounds[:, 1] < 0)
    return Calibration(
        pairs=int(d.size),
        mean=float(d.mean()),
        sd=float(d.std(ddof=1)),
        interval=verdict_interval(d, level, resamples=resamples),
        false_positive_rate=float(excludes.mean()),
        relabellings=int(signs.shape[0]),
    )
