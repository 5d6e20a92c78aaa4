"""Simulated coverage of each interval at few pairs, printed beside the intervals that do not decide.

The numbers are the output of benchmarks/coverage.py (normal differences); a test simulates them again.
"""

from __future__ import annotations

# pairs: (verdict, percentile, bca), share of nominal 95 % intervals that hold the true mean.
NORMAL_95: dict[int, tuple[float, float, float]] = {}


def simulated(pairs: int, method: str) -> float | None:
    """Coverage of a nominal 95 % interval at this many pairs, or None where it was not simulated."""
    found = NORMAL_95.get(pairs)
    return None if found is None else found[("verdict", "percentile", "bca").index(method)]
