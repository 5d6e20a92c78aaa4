"""ADOPT, KEEP FIFO or INCONCLUSIVE: a rule that was written down before the runs it judges.

A policy is worth its place only where (1) head-of-line events are *stable*: at least one in every repeat under FIFO;
(2) its gain in median step time is beyond the noise: over at least 3 independent repeats, paired, the smallest gain
exceeds the spread of FIFO's own repeats (largest minus smallest median, as a part of the median) and the floor; (3) no
regression is left unexplained: neither p99 of the step time nor the peak of tasks in flight grows beyond the noise
and the floor, and no data error, open lease or unfinished task occurred.
No event in any repeat, or no gain beyond noise, means KEEP FIFO - a full result. Otherwise, and with fewer repeats than
3, INCONCLUSIVE.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_REPEATS: Final = 3
FLOOR_PCT: Final = 1.0
"""A gain or a loss below this, in per cent of the step time, changes nothing for a user."""


class Answer(StrEnum):
    """What a comparison of a policy with FIFO says."""

    ADOPT = "ADOPT"
    KEEP_FIFO = "KEEP FIFO"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Repeat:
    """One independent repeat of one arm.

    median_ms, p99_ms: of its step times. hol: head-of-line events. in_flight: peak of tasks in flight.
    faults: data errors, open leases, unfinished tasks, violations of legal order, unexplained times, together.
    """

    median_ms: float
    p99_ms: float
    hol: int
    in_flight: int
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer, the numbers it rests on (per cent of FIFO's median step time; gains positive), and why, in words."""

    answer: Answer
    reasons: tuple[str, ...]
    gain_pct: float
    least_gain_pct: float
    noise_pct: float
    tail_pct: float


def judge(fifo: Sequence[Repeat], other: Sequence[Repeat]) -> Verdict:
    """Judge a policy's repeats against FIFO's, paired in order. Raises ValueError for unequal or no repeats."""
    if len(fifo) != len(other) or not fifo:
        raise ValueError(
            f"repeats must be paired and at least one, got {len(fifo)} of FIFO and {len(other)} of the other"
        )
    base = statistics.median(repeat.median_ms for repeat in fifo)
    gains = [100 * (a.median_ms - b.median_ms) / base for a, b in zip(fifo, other, strict=True)]
    medians = [repeat.median_ms for repeat in fifo]
    noise = 100 * (max(medians) - min(medians)) / base
    tails = [100 * (a.p99_ms - b.p99_ms) / base for a, b in zip(fifo, other, strict=True)]
    tail = statistics.median(tails)
    numbers = (statistics.median(gains), min(gains), noise, tail)
    faults = sum(repeat.faults for repeat in (*fifo, *other))
    if faults:
        return Verdict(Answer.INCONCLUSIVE, (f"{faults} faults occurred: the runs cannot be judged",), *numbers)
    with_events = sum(repeat.hol > 0 for repeat in fifo)
    if not with_events:
        return Verdict(Answer.KEEP_FIFO, ("no head-of-line event under FIFO: nothing to gain",), *numbers)
    if len(fifo) < MIN_REPEATS:
        why = f"{len(fifo)} repeats; the rule asks for at least {MIN_REPEATS}"
        return Verdict(Answer.INCONCLUSIVE, (why,), *numbers)
    bar = max(noise, FLOOR_PCT)
    if min(gains) <= bar:
        why = f"the smallest gain, {min(gains):+.2f} %, does not exceed noise and floor, {bar:.2f} %"
        return Verdict(Answer.KEEP_FIFO, (why,), *numbers)
    if with_events < len(fifo):
        why = f"events in {with_events} of {len(fifo)} repeats: not stable"
        return Verdict(Answer.INCONCLUSIVE, (why,), *numbers)
    regressions = []
    if tail < -bar:
        regressions.append(f"p99 of the step time grew by {-tail:.2f} %")
    if max(repeat.in_flight for repeat in other) > max(repeat.in_flight for repeat in fifo):
        regressions.append("more tasks were in flight at once")
    if regressions:
        return Verdict(Answer.INCONCLUSIVE, tuple(f"unexplained: {reason}" for reason in regressions), *numbers)
    why = f"events in every repeat, and the smallest gain, {min(gains):+.2f} %, exceeds noise and floor, {bar:.2f} %"
    return Verdict(Answer.ADOPT, (why,), *numbers)
