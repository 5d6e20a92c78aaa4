"""The verdict's rule, case by case."""

from __future__ import annotations

import pytest
from layerwise_sched.verdict import Answer, Repeat, judge


def arm(*medians: float, hol: int = 5, p99: float = 0.0, in_flight: int = 3, faults: int = 0) -> list[Repeat]:
    return [Repeat(median, p99 or median, hol, in_flight, faults) for median in medians]


@pytest.mark.parametrize(
    ("fifo", "other", "answer", "words"),
    [
        (arm(100, 100.4, 99.8), arm(95, 95, 95), Answer.ADOPT, "events in every repeat"),
        (arm(100, 100, 100, hol=0), arm(90, 90, 90), Answer.KEEP_FIFO, "nothing to gain"),
        (arm(100, 100, 100), arm(99.5, 99.5, 99.5), Answer.KEEP_FIFO, "does not exceed noise and floor"),
        (arm(100, 110, 100), arm(95, 103, 95), Answer.KEEP_FIFO, "does not exceed noise and floor, 10.00 %"),
        (arm(100, 100, 100), arm(95, 101, 95), Answer.KEEP_FIFO, "does not exceed"),
        (arm(100, 100), arm(90, 90), Answer.INCONCLUSIVE, "2 repeats; the rule asks for at least 3"),
        (arm(100, 100, 100), arm(95, 95, 95, p99=120), Answer.INCONCLUSIVE, "p99 of the step time grew"),
        (arm(100, 100, 100), arm(95, 95, 95, in_flight=4), Answer.INCONCLUSIVE, "more tasks were in flight"),
        (arm(100, 100, 100), arm(95, 95, 95, faults=1), Answer.INCONCLUSIVE, "3 faults occurred"),
        ([*arm(100, 100), *arm(100, hol=0)], arm(95, 95, 95), Answer.INCONCLUSIVE, "2 of 3 repeats: not stable"),
    ],
)
def test_the_rule(fifo: list[Repeat], other: list[Repeat], answer: Answer, words: str) -> None:
    verdict = judge(fifo, other)
    assert verdict.answer is answer
    assert words in verdict.reasons[0]


def test_numbers_and_bad_input() -> None:
    verdict = judge(arm(100, 102, 98), arm(90, 92, 88))
    assert (verdict.gain_pct, verdict.least_gain_pct, verdict.noise_pct) == pytest.approx((10, 10, 4))
    with pytest.raises(ValueError, match="must be paired"):
        judge(arm(1), arm(1, 1))
    with pytest.raises(ValueError, match="must be paired"):
        judge([], [])
