"""Coverage of the verdict interval over simulated experiments, the percentile bootstrap beside it, and A/A verdicts.

A cell is one number of pairs, one shape of the start effects and one number of requests per start. In every pair each
arm's start has its own effect (spread 1 of the paired difference); the requests add their own noise, averaged over the
start. The production code computes every interval, thousands of experiments at a time.
"""

# env: light

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from _evidence_common import write_summary
from serving_evidence import stats

PAIRS = (3, 5, 6, 8, 10, 20)
SHAPES = ("normal", "skewed", "bimodal")
REQUESTS = (1, 16, 256)
REQUEST_SPREAD = 0.3
BLOCK = 1_000


def differences(rng: np.random.Generator, shape: str, experiments: int, pairs: int, requests: int) -> Any:
    """Paired differences [experiments, pairs] with mean 0."""
    size = (experiments, pairs)
    if shape == "normal":
        effect = rng.normal(0, 1, size)
    elif shape == "skewed":  # a shifted exponential: skewness 2, as far as warm-up and stalls push a start
        effect = rng.exponential(1, size) - 1
    else:  # two regimes of a start, 30 % of starts in the slow one, small noise inside each
        effect = np.where(rng.random(size) < 0.3, 0.7, -0.3) * 2 + rng.normal(0, 0.2, size)
    noise = REQUEST_SPREAD * np.sqrt(2.0 / requests)
    return effect + rng.normal(0, noise, size)


def cell(seed: int, shape: str, pairs: int, requests: int, experiments: int, resamples: int) -> dict[str, Any]:
    """Coverage of each method in one cell, and the share of directional verdicts (all of them false: A equals B)."""
    rng = np.random.default_rng([seed, pairs, SHAPES.index(shape), requests])
    held = {"verdict": 0, "percentile": 0, "bca": 0}
    for done in range(0, experiments, BLOCK):
        d = differences(rng, shape, min(BLOCK, experiments - done), pairs, requests)
        for method in held:
            bounds = stats.many(d, method, resamples=resamples)  # type: ignore[arg-type]
            held[method] += int(np.count_nonzero((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)))
    row: dict[str, Any] = {"shape": shape, "pairs": pairs, "requests": requests}
    row.update({method: count / experiments for method, count in held.items()})
    # Below six pairs the only verdict is INCONCLUSIVE, whatever the interval says.
    row["false_positive"] = 1 - row["verdict"] if pairs >= stats.MIN_PAIRS else 0.0
    return row


def worst(rows: list[dict[str, Any]], shape: str, pairs: int, method: str = "verdict") -> float:
    """Lowest coverage over the numbers of requests."""
    return min(float(row[method]) for row in rows if row["shape"] == shape and row["pairs"] == pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/coverage"))
    parser.add_argument("--experiments", type=int, default=10_000)
    parser.add_argument("--resamples", type=int, default=1_999)
    parser.add_argument("--requests", type=int, nargs="+", default=list(REQUESTS))
    parser.add_argument("--pairs", type=int, nargs="+", default=list(PAIRS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = []
    for shape in SHAPES:
        for pairs in options.pairs:
            for requests in options.requests:
                rows.append(cell(options.seed, shape, pairs, requests, options.experiments, options.resamples))
                sys.stdout.write(
                    "  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items())
                    + "\n"
                )
                sys.stdout.flush()
    normal_false = [row["false_positive"] for row in rows if row["shape"] == "normal" and row["pairs"] >= 6]
    figures = {
        "normal_6": worst(rows, "normal", 6),
        "normal_10": worst(rows, "normal", 10),
        "skewed_6": worst(rows, "skewed", 6),
        "skewed_10": worst(rows, "skewed", 10),
        "bimodal_10": worst(rows, "bimodal", 10),
        "percentile_5": worst(rows, "normal", 5, "percentile"),
        # The mean over cells: each cell's own rate has a sampling error of 0.2 points at 10,000 experiments.
        "aa_false_positive": float(np.mean(normal_false)),
        "experiments": options.experiments,
    }
    large = [n for n in options.pairs if n >= 6]
    passed = (
        all(worst(rows, "normal", n) >= 0.93 for n in large)
        and all(worst(rows, "skewed", n) >= 0.90 for n in large)
        and figures["aa_false_positive"] <= 0.05
    )
    return write_summary(options.out, "coverage", options.seed, figures, rows, passed)


if __name__ == "__main__":
    sys.exit(main())
