"""How many tokens of each request are computed, scheduled and known: the scheduler's counts, judged and followed.

Under asynchronous scheduling with drafts the scheduler counts every draft in flight as accepted. The true count is
known exactly while every step with drafts was settled by what the sampler returned, and else as a range.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard.arrays import any_true, ones
from kv_plan_guard.violation import Code, Violation

if TYPE_CHECKING:
    from kv_plan_guard.facts import OutputFacts, StepFacts
    from kv_plan_guard.mirror import Mirror
    from kv_plan_guard.requests import StepRecord

I64: TypeAlias = NDArray[np.int64]


def scheduled(mirror: Mirror, facts: StepFacts, req_ids: list[str], wrong: list[Violation]) -> tuple[I64, int, bool]:
    """(tokens of each request, their sum, whether each has one)."""
    given = facts.num_scheduled_tokens
    size = len(req_ids)
    try:
        numbers = [given[name] for name in req_ids]
    except KeyError:
        numbers = [given.get(name, 0) for name in req_ids]
    total = sum(numbers)
    if size and min(numbers) <= 0:
        for name, number in zip(req_ids, numbers, strict=True):
            if number <= 0:
                wrong.append(cycle(facts.step, name, "at least 1 token", number, "sent, but not scheduled"))
    elif total == size == len(given):
        return ones(size), total, True
    if len(given) != size:
        sent = {*req_ids, *facts.preempted, *facts.cached.req_ids}
        wrong += [
            cycle(facts.step, name, "new or cached", "neither", "scheduled, but not sent")
            for name in sorted(set(given) - sent)
        ]
    return np.array(numbers, np.int64), total, False


def drafts(
    mirror: Mirror, facts: StepFacts, req_ids: list[str], before: StepRecord | None, wrong: list[Violation]
) -> I64:
    """Drafts of each request; a placeholder needs a predecessor that proposed what will fill it.

    A request that is new in this step may carry placeholders: vLLM pads a last prompt token to the size of a decode.
    """
    spec = facts.spec_tokens
    mirror.speculates = True
    fresh = {request.req_id for request in facts.new}
    for name, tokens in spec.items():
        if name not in facts.num_scheduled_tokens or not len(tokens) or tokens[0] != -1 or name in fresh:
            continue
        slot = mirror.index.get(name)
        if before is None or slot is None or mirror.stamp[slot] != before.step:
            why = "placeholder drafts for a request that was not in the step before"
            wrong.append(cycle(facts.step, name, "a row in the step before", "none", why))
    return np.array([len(spec[name]) if name in spec else 0 for name in req_ids], np.int64)


def advance(
    mirror: Mirror,
    step: int,
    settled: int,
    req_ids: list[str],
    slots: NDArray[np.intp],
    computed: I64,
    scheduled: I64,
    drafts: I64 | None,
    wrong: list[Violation],
) -> tuple[I64, I64, I64]:
    """Judge the scheduler's counts and take them in; returns (low, high, tokens that the step adds at most)."""
    if mirror.speculates:
        low, high, most = _bounds(mirror, slots, computed, settled)
    else:
        low, high, most = computed, computed, mirror.end[slots]
    ahead = computed > most
    if any_true(ahead):
        for at in np.flatnonzero(ahead).tolist():
            why = "more computed tokens than its steps can have computed"
            wrong.append(_length(step, req_ids[at], int(most[at]), int(computed[at]), why))
    end = high + scheduled
    known = mirror.known[slots]
    own = end if drafts is None else end - drafts
    beyond = own > known
    if any_true(beyond):
        for at in np.flatnonzero(beyond).tolist():
            why = "more tokens are scheduled than the worker knows or has in flight"
            wrong.append(_length(step, req_ids[at], int(known[at]), int(own[at]), why))
    iterations = mirror.layout.tokens_per_write
    if iterations > 1:  # one step of such an engine goes on for several tokens
        own, end = own + (iterations - 1), end + (iterations - 1)
    sampled = (own >= known).view(np.int8).astype(np.int64)
    if iterations > 1:
        sampled *= iterations
    if drafts is not None:
        sampled *= drafts + 1
    mirror.scheduled[slots], mirror.end[slots] = scheduled, end
    mirror.low[slots], mirror.high[slots] = low, high
    mirror.known[slots] = known + sampled
    mirror.stamp[slots] = step
    if mirror.speculates:
        mirror.drafts[slots] = 0 if drafts is None else drafts
        sure = low == high
        mirror.exact[slots] = sure if drafts is None else sure & (drafts == 0)
        mirror.frontier[slots] = end
    return low, high, sampled


def _bounds(mirror: Mirror, slots: NDArray[np.intp], computed: I64, settled: int) -> tuple[I64, I64, I64]:
    """Least and greatest true count of computed tokens, and the most that the scheduler may count.

    The scheduler counts drafts in flight as accepted; what is settled it must have taken off.
    """
    pending = np.zeros(len(mirror.names), np.int64)
    for record in mirror.records:
        if record.step > settled and record.drafts is not None:
            alive = mirror.life[record.slots] == record.lives
            pending[record.slots[alive]] += record.drafts[alive]
    exact, frontier = mirror.exact[slots], mirror.frontier[slots]
    high = np.where(exact, np.minimum(frontier, computed), computed)
    most = np.where(exact, frontier + pending[slots], mirror.end[slots])
    return np.where(exact, high, computed - pending[slots]), high, most


def settle(mirror: Mirror, facts: OutputFacts, record: StepRecord) -> None:
    """Take in what a step really produced."""
    if list(facts.req_ids) == record.req_ids:
        where = np.arange(len(record.req_ids))
    else:
        place = {name: at for at, name in enumerate(record.req_ids)}
        where = np.array([place.get(name, -1) for name in facts.req_ids], np.intp)
    sampled = np.asarray(facts.num_sampled, np.int64)
    rejected = np.zeros_like(sampled) if facts.num_rejected is None else np.asarray(facts.num_rejected, np.int64)
    here = np.flatnonzero((where >= 0) & (mirror.life[record.slots[where]] == record.lives[where]))
    where, sampled, rejected = where[here], sampled[here], rejected[here]
    slots = record.slots[where]
    mirror.known[slots] += sampled - record.sampled[where]
    mirror.kept[slots] = record.scheduled[where] - rejected
    if not mirror.speculates:
        return
    sure = np.flatnonzero(record.low[where] == record.high[where])
    frontier = record.low[where] + record.scheduled[where] - rejected
    for at in sure.tolist():
        _set_frontier(mirror, int(slots[at]), record, int(frontier[at]))


def _set_frontier(mirror: Mirror, slot: int, record: StepRecord, frontier: int) -> None:
    current = mirror.current
    assert current is not None
    if mirror.stamp[slot] == record.step:
        mirror.frontier[slot], mirror.exact[slot] = frontier, True
    elif mirror.stamp[slot] == current.step:
        # The next step was taken in before this one was settled: its start is now known.
        where = int(np.flatnonzero(current.slots == slot)[0])
        start = min(frontier, int(mirror.high[slot]))
        current.low[where] = current.high[where] = mirror.low[slot] = mirror.high[slot] = start
        mirror.end[slot] = mirror.frontier[slot] = start + int(mirror.scheduled[slot])
        mirror.exact[slot] = mirror.drafts[slot] == 0


def cycle(step: int, name: str, expected: str, actual: str | int, why: str) -> Violation:
    """A request's state that cannot be."""
    return Violation(Code.CYCLE, step, None, "scheduler", expected, actual, request=name, why=why)


def _length(step: int, name: str, expected: int, actual: int, why: str) -> Violation:
    return Violation(Code.LEN, step, None, "scheduler", expected, actual, request=name, why=why)
