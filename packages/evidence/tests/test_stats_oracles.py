"""The statistics against scipy, statsmodels and pingouin where they overlap."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.stats
from serving_evidence import stats

with warnings.catch_warnings():
    # Both libraries warn about their own dependencies at import; that says nothing about ours.
    warnings.simplefilter("ignore")
    import pingouin
    from statsmodels.stats.multitest import multipletests
    from statsmodels.stats.power import TTestPower
    from statsmodels.stats.proportion import binom_test_reject_interval
    from statsmodels.stats.weightstats import ttost_paired

SIZES = [2, 3, 6, 10, 21]


def sample(pairs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, pairs]).normal(0.01, 0.02, size=pairs)


@pytest.mark.parametrize("pairs", SIZES)
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_paired_t_interval_is_scipys(pairs: int, level: float) -> None:
    d = sample(pairs)
    ours = stats.paired_t(d, level)
    theirs = scipy.stats.ttest_1samp(d, 0.0).confidence_interval(level)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=1e-10)


@pytest.mark.parametrize("pairs", SIZES)
def test_paired_t_p_is_scipys(pairs: int) -> None:
    d = sample(pairs)
    assert stats.paired_t_p(d) == pytest.approx(scipy.stats.ttest_1samp(d, 0.0).pvalue, rel=1e-9)


@pytest.mark.parametrize("pairs", [2, 3, 6, 10, 14])
def test_sign_flip_is_scipys_exact_permutation_test(pairs: int) -> None:
    d = sample(pairs, seed=3)
    theirs = scipy.stats.permutation_test(
        (d,), lambda x, axis: np.mean(x, axis=axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert stats.sign_flip(d).p == pytest.approx(theirs.pvalue, rel=1e-12)


def test_drawn_sign_flip_agrees_with_the_t_test_where_both_must_agree() -> None:
    d = sample(60, seed=5)
    ours = stats.sign_flip(d)
    assert ours.method == "drawn"
    assert ours.p == pytest.approx(scipy.stats.ttest_1samp(d, 0.0).pvalue, rel=0.2, abs=1e-3)


@pytest.mark.parametrize("pairs", [6, 10, 40])
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_shown_bootstrap_intervals_are_scipys_up_to_resampling_noise(pairs: int, method: str) -> None:
    d = np.random.default_rng(pairs).lognormal(0.0, 0.7, size=pairs)
    ours = {"percentile": stats.percentile, "bca": stats.bca}[method](d, resamples=19_999)
    theirs = scipy.stats.bootstrap(
        (d,),
        np.mean,
        method="BCa" if method == "bca" else "percentile",
        n_resamples=19_999,
        rng=np.random.default_rng(1),
    ).confidence_interval
    noise = 0.03 * (theirs.high - theirs.low)
    assert ours.low == pytest.approx(theirs.low, abs=noise)
    assert ours.high == pytest.approx(theirs.high, abs=noise)


@pytest.mark.parametrize("pairs", SIZES)
@pytest.mark.parametrize("margin", [0.005, 0.03])
def test_tost_is_statsmodels_and_pingouins(pairs: int, margin: float) -> None:
    d = sample(pairs)
    zero = np.zeros_like(d)
    ours = stats.equivalent(d, margin)
    p, low, high = ttost_paired(d, zero, -margin, margin)
    assert ours.p == pytest.approx(p, rel=1e-8)
    assert ours.p_low == pytest.approx(low[1], rel=1e-8)
    assert ours.p_high == pytest.approx(high[1], rel=1e-8)
    theirs = pingouin.tost(d, zero, bound=margin, paired=True)
    assert ours.p == pytest.approx(float(theirs.filter(regex="^p").iloc[0, 0]), rel=1e-6)


@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_non_inferiority_is_a_one_sided_t_test(margin: float) -> None:
    d = sample(8)
    theirs = scipy.stats.ttest_1samp(d, -margin, alternative="greater").pvalue
    assert stats.non_inferior(d, margin) == pytest.approx(theirs, rel=1e-10)


def test_holm_is_statsmodels() -> None:
    p = np.random.default_rng(2).uniform(size=12) ** 3
    assert stats.holm(p.tolist()) == pytest.approx(multipletests(p, method="holm")[1], rel=1e-12)


@pytest.mark.parametrize("pairs", [3, 6, 10, 40])
@pytest.mark.parametrize("effect", [0.1, 0.5, 1.5])
def test_power_is_statsmodels(pairs: int, effect: float) -> None:
    theirs = TTestPower().power(effect, pairs, 0.05, alternative="two-sided")
    if np.isnan(theirs):  # where scipy's noncentral t gives up
        theirs = 1.0
    assert stats.power(pairs, effect, 1.0) == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize("pairs", [6, 10, 40])
def test_detectable_effect_is_statsmodels(pairs: int) -> None:
    theirs = TTestPower().solve_power(nobs=pairs, alpha=0.05, power=0.8, alternative="two-sided")
    assert stats.detectable(pairs, 1.0) == pytest.approx(float(np.squeeze(theirs)), rel=1e-4)


def test_sd_upper_covers_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).normal(size=(4_000, 4))
    covered = np.mean([stats.sd_upper(row, 0.8) >= 1.0 for row in draws])
    assert covered == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("samples", [459, 1_000, 5_000])
def test_tail_bound_takes_the_largest_rank_that_the_binomial_allows(samples: int) -> None:
    x = np.arange(samples, dtype=float)
    bound = stats.tail_bound(x, 0.99)
    assert bound.upper is not None
    above = samples - 1 - int(bound.upper)
    binomial = scipy.stats.binom(samples, 0.01)
    assert binomial.cdf(above) <= 0.01 < binomial.cdf(above + 1)
    # statsmodels' rejection region of the same one-sided test ends at the same count.
    low, _ = binom_test_reject_interval(0.01, samples, alpha=0.01, alternative="smaller")
    assert int(low) == above
