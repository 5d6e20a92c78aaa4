"""The statistics against cases worked by hand, and the properties that must hold for any data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_evidence import stats
from serving_evidence.errors import StatsError
from serving_evidence.stats.resample import weights

METHODS = {
    "paired-t": stats.paired_t,
    "bootstrap-t": lambda d: stats.bootstrap_t(d, resamples=999),
    "percentile": lambda d: stats.percentile(d, resamples=999),
    "bca": lambda d: stats.bca(d, resamples=999),
    "verdict": lambda d: stats.verdict_interval(d, resamples=999),
}
differences = st.lists(st.floats(-0.5, 0.5).filter(lambda x: x == 0 or abs(x) > 1e-9), min_size=3, max_size=9)
throughputs = st.lists(st.tuples(st.floats(1.0, 1e4), st.floats(1.0, 1e4)), min_size=3, max_size=9)


def test_log_ratio_by_hand() -> None:
    assert stats.log_ratios([100.0, 50.0], [110.0, 50.0]).tolist() == pytest.approx([math.log(1.1), 0.0])
    assert stats.as_percent(math.log(1.1)) == pytest.approx(10.0)


def test_paired_t_by_hand() -> None:
    # mean 2, sd 1, n 3: 2 +- 4.302653 / sqrt(3)
    interval = stats.paired_t([1.0, 2.0, 3.0])
    assert (interval.low, interval.high) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_sign_flip_by_hand() -> None:
    # Sums of 8 patterns of (1, 2, 3): |6| twice, |4| twice, |2| twice, |0| twice.
    assert stats.sign_flip([1.0, 2.0, 3.0]).p == 0.25
    assert stats.sign_flip([1.0, 2.0, -3.0]).p == 1.0
    assert stats.sign_flip([-1.0, 2.0, 3.0]).p == 0.5
    six = stats.sign_flip([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert (six.p, six.minimum, six.method) == (0.03125, 0.03125, "exact")


@pytest.mark.parametrize(("pairs", "minimum"), [(3, 0.25), (4, 0.125), (5, 0.0625), (6, 0.03125), (10, 2**-9)])
def test_smallest_possible_p(pairs: int, minimum: float) -> None:
    assert stats.sign_flip(np.full(pairs, 0.01)).p == stats.sign_flip(np.arange(1, pairs + 1)).minimum == minimum


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert stats.holm([]) == []


def test_tost_by_hand() -> None:
    # mean 0, sd 1, n 4, margin 1: t = 1 / 0.5 = 2 with 3 degrees of freedom, one-sided p 0.06966 both ways.
    d = np.array([-1.0, -1.0, 1.0, 1.0]) * math.sqrt(3) / 2
    result = stats.equivalent(d, 1.0)
    assert (result.p_low, result.p_high) == pytest.approx((0.0696630, 0.0696630), abs=1e-6)


def test_tail_floors_are_those_of_load_generators() -> None:
    assert stats.floor(0.99) == 459
    assert stats.floor(0.9, above=1) == 64
    assert stats.floor(0.99, above=1) == 662


def test_p99_is_refused_below_its_floor_and_conservative_above() -> None:
    short = stats.tail_bound(np.arange(458.0), 0.99)
    assert short.upper is None
    assert short.floor == 459
    just = stats.tail_bound(np.arange(459.0), 0.99)
    assert just.upper == 458.0
    assert stats.tail_bound(np.arange(662.0), 0.99).upper == 660.0


@pytest.mark.parametrize(
    ("pairs", "at_80", "at_90"),
    [
        (3, 3.26, 3.92),
        (4, 2.13, 2.51),
        (5, 1.68, 1.97),
        (6, 1.43, 1.67),
        (8, 1.16, 1.34),
        (10, 1.0, 1.15),
        (20, 0.66, 0.76),
    ],
)
def test_detectable_effects_in_units_of_the_spread(pairs: int, at_80: float, at_90: float) -> None:
    assert stats.detectable(pairs, 1.0) == pytest.approx(at_80, abs=0.005)
    assert stats.detectable(pairs, 1.0, 0.9) == pytest.approx(at_90, abs=0.005)
    assert stats.detectable(pairs, 0.02) == pytest.approx(at_80 * 0.02, abs=2e-4)


def test_pairs_needed_is_the_first_size_with_the_power() -> None:
    needed = stats.pairs_needed(0.01, 0.02)
    assert needed is not None
    assert stats.power(needed, 0.01, 0.02) >= 0.8 > stats.power(needed - 1, 0.01, 0.02)
    assert stats.pairs_needed(0.0, 0.02) is None
    assert stats.pairs_needed(1.0, 0.02) == stats.MIN_PAIRS


def test_pairs_still_needed_never_says_none_are() -> None:
    d = np.array([0.01, 0.012, 0.011, 0.009, 0.01, 0.011])
    assert stats.pairs_still_needed(d, margin=0.0) == 1
    assert stats.pairs_still_needed(d[:3], margin=0.0) == 3
    assert stats.pairs_still_needed(d, margin=float(d.mean())) is None


def test_power_far_out_is_one_not_nan() -> None:
    assert stats.power(2_000, 30.0, 1.0) == 1.0


def test_the_coverage_check_tells_a_percentile_interval_from_an_honest_one() -> None:
    d = np.random.default_rng(0).normal(size=(2_000, 5))

    def coverage(method: str) -> float:
        bounds = stats.many(d, method, resamples=1999)  # type: ignore[arg-type]
        return float(np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)))

    assert coverage("percentile") < 0.88
    assert coverage("verdict") > 0.93


def test_one_and_many_are_the_same_code() -> None:
    d = np.random.default_rng(4).normal(size=(70, 6))
    bounds = stats.many(d, "verdict", resamples=999)
    for row, (low, high) in zip(d, bounds, strict=True):
        one = stats.verdict_interval(row, resamples=999)
        assert (one.low, one.high) == pytest.approx((low, high), rel=1e-12)


def test_resamples_are_fixed_and_read_only() -> None:
    first = weights(6, 999)
    weights.cache_clear()
    assert np.array_equal(first, weights(6, 999))
    assert np.allclose(first.sum(axis=1), 1.0)
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1.0


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=60)
@given(differences)
def test_swapping_the_arms_negates(method: str, d: list[float]) -> None:
    one, other = METHODS[method](d), METHODS[method]([-x for x in d])
    assert one.low == pytest.approx(-other.high, rel=1e-9, abs=1e-12)
    assert one.high == pytest.approx(-other.low, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=60)
@given(differences, st.randoms(use_true_random=False))
def test_order_of_pairs_does_not_matter(method: str, d: list[float], random: object) -> None:
    shuffled = list(d)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = METHODS[method](d), METHODS[method](shuffled)
    assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-9, abs=1e-12)
    assert stats.sign_flip(d).p == stats.sign_flip(shuffled).p


@settings(deadline=None, max_examples=60)
@given(throughputs, st.floats(1e-3, 1e3))
def test_unit_of_the_metric_does_not_matter(pairs: list[tuple[float, float]], scale: float) -> None:
    a, b = zip(*pairs, strict=True)
    one = stats.log_ratios(a, b)
    other = stats.log_ratios([x * scale for x in a], [x * scale for x in b])
    assert one == pytest.approx(other, abs=1e-9)
    assert np.array_equal(stats.log_ratios(b, a), -one)


@settings(deadline=None, max_examples=60)
@given(differences)
def test_the_wider_interval_decides_and_holds_the_mean(d: list[float]) -> None:
    verdict = METHODS["verdict"](d)
    assert verdict.width == pytest.approx(max(METHODS["paired-t"](d).width, METHODS["bootstrap-t"](d).width), rel=1e-9)
    assert METHODS["paired-t"](d).low - 1e-12 <= np.mean(d) <= METHODS["paired-t"](d).high + 1e-12


@settings(deadline=None, max_examples=60)
@given(differences)
def test_p_values_are_probabilities_and_flip_invariant(d: list[float]) -> None:
    p = stats.sign_flip(d)
    assert p.minimum <= p.p <= 1.0
    assert p.p == stats.sign_flip([-x for x in d]).p
    assert 0.0 <= stats.paired_t_p(d) <= 1.0


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_only_raises_and_keeps_order(p: list[float]) -> None:
    adjusted = stats.holm(p)
    assert all(before <= after <= 1.0 for before, after in zip(p, adjusted, strict=True))
    ranked = sorted(range(len(p)), key=lambda i: p[i])
    assert [adjusted[i] for i in ranked] == sorted(adjusted)


def test_all_pairs_equal_gives_a_point_not_nan() -> None:
    for method in METHODS.values():
        interval = method([0.25] * 6)
        assert (interval.low, interval.high) == (0.25, 0.25)
    assert stats.paired_t_p([0.0] * 6) == 1.0
    assert stats.pairs_still_needed([0.25] * 6) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stats.log_ratios([1.0, 2.0], [1.0]), "2 starts and `treatment` 1"),
        (lambda: stats.log_ratios([1.0, 0.0], [1.0, 1.0]), r"`control`\[1\] is 0.0"),
        (lambda: stats.log_ratios([1.0], [float("nan")]), r"`treatment`\[0\] is nan"),
        (lambda: stats.log_ratios([], []), "non-empty"),
        (lambda: stats.paired_t([0.1]), "at least 2 pairs"),
        (lambda: stats.paired_t([0.1, float("inf")]), "finite"),
        (lambda: stats.paired_t([0.1, 0.2], 95.0), "`level`"),
        (lambda: stats.bootstrap_t([0.1, 0.2], resamples=10), "`resamples`"),
        (lambda: stats.holm([1.5]), "between 0 and 1"),
        (lambda: stats.equivalent([0.1, 0.2], -1.0), "`margin`"),
        (lambda: stats.floor(99.0), "`quantile`"),
        (lambda: stats.tail_bound([], 0.99), "non-empty"),
        (lambda: stats.power(1, 0.1, 0.1), "`pairs`"),
        (lambda: stats.power(6, 0.1, 0.0), "`sd`"),
        (lambda: stats.calibrate([0.1]), "at least 2 pairs"),
    ],
)
def test_bad_numbers_are_named(call: object, words: str) -> None:
    with pytest.raises(StatsError, match=words):
        call()  # type: ignore[operator]


def test_calibration_counts_relabelled_verdicts() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, size=8)
    result = stats.calibrate(noise, resamples=999)
    assert (result.pairs, result.relabellings) == (8, 128)
    assert result.false_positive_rate <= 0.08
    # Planted: an A/A run whose pairs all differ by the same amount is the worst case of a regime, and shows up.
    assert stats.calibrate(np.full(6, 0.02), resamples=999).false_positive_rate == pytest.approx(1 / 32)


def test_shipped_coverage_is_that_of_the_code() -> None:
    """A small simulation with this code must come near the shipped figures; a stale table would not."""
    rng = np.random.default_rng(5)
    d = rng.normal(0, 1, (1_500, 5))
    for method in ("verdict", "percentile"):
        bounds = stats.many(d, method, resamples=999)  # type: ignore[arg-type]
        held = float(np.mean((bounds[:, 0] <= 0) & (bounds[:, 1] >= 0)))
        shipped = stats.simulated_coverage(method, 5)
        assert shipped is not None
        assert abs(held - shipped["normal"]) < 0.03, (method, held, shipped)
    assert stats.simulated_coverage("verdict", 7) is None
    assert stats.simulated_coverage("nothing", 5) is None
