"""Pure functions on arrays: everything that a verdict is computed from. Unit of analysis: the pair of server starts."""

from __future__ import annotations

from .calibration import Calibration, calibrate
from .coverage import simulated_coverage
from .hypothesis import (
    Equivalence,
    SignFlip,
    equivalent,
    holm,
    non_inferior,
    one_sided_p,
    paired_t_p,
    sign_flip,
)
from .intervals import Interval, bca, bootstrap_t, many, paired_t, percentile, verdict_interval
from .pairs import as_percent, differences, log_ratios
from .power import MIN_PAIRS, detectable, pairs_needed, pairs_still_needed, power, sd_upper
from .tails import TailBound, floor, tail_bound

__all__ = [
    "MIN_PAIRS",
    "Calibration",
    "Equivalence",
    "Interval",
    "SignFlip",
    "TailBound",
    "as_percent",
    "bca",
    "bootstrap_t",
    "calibrate",
    "detectable",
    "differences",
    "equivalent",
    "floor",
    "holm",
    "log_ratios",
    "many",
    "non_inferior",
    "one_sided_p",
    "paired_t",
    "paired_t_p",
    "pairs_needed",
    "pairs_still_needed",
    "percentile",
    "power",
    "sd_upper",
    "sign_flip",
    "simulated_coverage",
    "tail_bound",
    "verdict_interval",
]
