"""The mirror: what every request and block of the engine must be, from the scheduler's decisions alone.

Everything is keyed by request id; a request's numbers stand at its *slot* in flat arrays, so that a batch is one
gather. A life is one stay of a request in the worker: an id that comes back is a new life.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Final

import numpy as np

from kv_plan_guard import rules
from kv_plan_guard.blocks import GroupBlocks
from kv_plan_guard.errors import FactsError
from kv_plan_guard.violation import Code, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kv_plan_guard.facts import CachedRequests, Ids, NewRequest, OutputFacts, StepFacts
    from kv_plan_guard.layout import Layout

#: Known tokens of a request whose number of tokens nobody told: no bound.
UNBOUNDED: Final = 1 << 60
_ARRAYS: Final = ("scheduled", "low", "high", "end", "known", "encoder", "life", "drafts", "frontier", "stamp", "kept")


@dataclass(slots=True)
class StepRecord:
    """One step as it was scheduled. Arrays [num_reqs] in the order of `req_ids` (not the batch's row order)."""

    step: int
    settled: int
    req_ids: list[str]
    slots: NDArray[np.intp]
    lives: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    scheduled: NDArray[np.int64]
    drafts: NDArray[np.int64] | None
    sampled: NDArray[np.int64]  # tokens this step was assumed to add at most
    summary: StepFacts


@dataclass(slots=True)
class Limbo:
    """A request that was given up while a step in flight still uses its blocks."""

    request: str
    life: int
    last_step: int
    rows: list[NDArray[np.int32]]


@dataclass(slots=True)
class Given:
    """Blocks that changed hands in this step, for the lifetime check."""

    group: int
    request: str
    life: int
    blocks: list[int] = field(default_factory=list)


class Mirror:
    """See the module. `current` is the record of the newest step."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.groups = [GroupBlocks(group) for group in layout.groups]
        self.index: dict[str, int] = {}
        self.names: list[str | None] = []
        self._free: list[int] = []
        self.scheduled = self.low = self.high = self.end = np.zeros(0, np.int64)
        self.known = self.encoder = self.life = self.drafts = np.zeros(0, np.int64)
        self.frontier = self.stamp = self.kept = np.zeros(0, np.int64)
        self.exact = np.zeros(0, np.bool_)
        self.speculates = layout.num_speculative_tokens > 0
        self.records: deque[StepRecord] = deque()
        self.current: StepRecord | None = None
        self.previous_ids: dict[str, int] = {}  # preempted requests, with their known tokens
        self.limbo: list[Limbo] = []
        self.given: list[Given] = []
        self.tracks_given = bool(layout.connector_checks) or layout.tokens_per_write > 1
        self.version = 0  # grows when a request comes or goes
        self._lives = 0
        self._order: tuple[int, Sequence[str], NDArray[np.intp]] | None = None
        self._ephemeral = [group for group in self.groups if group.layout.ephemeral]
        self._resize(16)

    # -- one step --------------------------------------------------------------------------------------------------

    def observe(self, facts: StepFacts) -> list[Violation]:
        """Take in one decision; returns the impossible in it (CYCLE, LEN)."""
        last = self.current.step if self.current is not None else None
        if last is not None and facts.step <= last:
            raise FactsError(f"StepFacts.step must grow: got {facts.step!r} after {last!r}")
        wrong: list[Violation] = []
        step = facts.step
        settled = step - 1 - self.layout.steps_in_flight if facts.settled is None else facts.settled
        if self.tracks_given:
            self.given = []
        before = self.current
        self._forget_settled(settled)
        for name in facts.finished:
            self.previous_ids.pop(name, None)
            self._drop(name, step)
        broken = self._preempt(facts, wrong) if facts.preempted else frozenset()
        for request in facts.new:
            self._add(request, step)
        slots, req_ids, sched = self._cached(facts, broken, wrong)
        if facts.new:
            fresh = [self.index[request.req_id] for request in facts.new]
            slots = np.concatenate([slots, np.array(fresh, np.intp)])
            req_ids = [*req_ids, *(request.req_id for request in facts.new)]
            sched = np.concatenate([sched, np.array([r.num_computed_tokens for r in facts.new], np.int64)])
        scheduled = self._scheduled(facts, req_ids, wrong)
        drafts = self._drafts(facts, req_ids, before, wrong)
        self._record(facts, settled, req_ids, slots, sched, scheduled, drafts, wrong)
        return wrong

    def settle(self, facts: OutputFacts) -> None:
        """Take in what the sampler returned for an earlier step, or the current one."""
        record = next((r for r in self.records if r.step == facts.step), None)
        if record is None:
            raise FactsError(f"OutputFacts.step {facts.step!r} is not a step in flight")
        place = {name: at for at, name in enumerate(record.req_ids)}
        for at, name in enumerate(facts.req_ids):
            where = place.get(name)
            if where is None:
                continue
            slot = int(record.slots[where])
            if self.life[slot] != record.lives[where]:
                continue
            self.known[slot] += int(facts.num_sampled[at]) - int(record.sampled[where])
            rejected = int(facts.num_rejected[at]) if facts.num_rejected is not None else 0
            self.kept[slot] = int(record.scheduled[where]) - rejected
            if record.low[where] == record.high[where]:
                self._set_frontier(slot, record, int(record.low[where] + record.scheduled[where]) - rejected)

    # -- requests --------------------------------------------------------------------------------------------------

    def _resize(self, size: int) -> None:
        old = len(self.names)
        for name in _ARRAYS:
            array = getattr(self, name)
            grown = np.zeros(size, array.dtype)
            grown[: len(array)] = array
            setattr(self, name, grown)
        self.exact = np.concatenate([self.exact, np.zeros(size - len(self.exact), np.bool_)])
        self.names += [None] * (size - old)
        self._free += range(size - 1, old - 1, -1)
        for group in self.groups:
            group.ensure_slots(size)

    def _add(self, request: NewRequest, step: int) -> None:
        name = request.req_id
        if name in self.index:  # an input that is streamed in pieces: the worker starts the request anew
            self._drop(name, step)
        if len(request.block_ids) != len(self.groups):
            raise FactsError(f"{name!r} has blocks of {len(request.block_ids)} groups, the layout {len(self.groups)}")
        self.previous_ids.pop(name, None)
        if not self._free:
            self._resize(2 * len(self.names))
        slot = self._free.pop()
        self._lives += 1
        self.index[name], self.names[slot], self.life[slot] = slot, name, self._lives
        self.version += 1
        known = request.num_known_tokens
        self.known[slot] = UNBOUNDED if known is None else known
        self.encoder[slot] = request.num_encoder_tokens
        self.end[slot] = self.frontier[slot] = request.num_computed_tokens
        self.exact[slot], self.kept[slot], self.stamp[slot] = True, 0, -1
        self._replace(slot, request.block_ids, request.num_computed_tokens, step)

    def _replace(self, slot: int, block_ids: Sequence[Ids], computed: int, step: int) -> None:
        name, life = self.names[slot] or "", int(self.life[slot])
        for number, group in enumerate(self.groups):
            hits = computed // group.layout.span if group.layout.kind not in ("ring", "cross") else 0
            group.append(slot, life, name, block_ids[number], hits, step)
            self._note_given(number, name, life, block_ids[number][hits:])  # hits are read only

    def _note_given(self, group: int, name: str, life: int, ids: Ids) -> None:
        if self.tracks_given and ids:
            self.given.append(Given(group, name, life, list(ids)))

    def _drop(self, name: str, step: int) -> None:
        slot = self.index.pop(name, None)
        if slot is None:
            return
        life = int(self.life[slot])
        self._keep_in_limbo(slot, name, life)
        for group in self.groups:
            group.drop(slot, life, name, step)
        self.names[slot], self.life[slot] = None, 0
        self._free.append(slot)
        self.version += 1

    def _keep_in_limbo(self, slot: int, name: str, life: int) -> None:
        if self.tracks_given and self.records and self.stamp[slot] >= 0:
            rows = [group.manager_row(slot).copy() for group in self.groups]
            self.limbo.append(Limbo(name, life, int(self.stamp[slot]), rows))

    def _forget_settled(self, settled: int) -> None:
        while len(self.records) > 1 and self.records[0].step <= settled:
            self.records.popleft()
        if self.limbo:
            self.limbo = [gone for gone in self.limbo if gone.last_step > settled]

    def _preempt(self, facts: StepFacts, wrong: list[Violation]) -> frozenset[str]:
        """Give preempted requests up; returns those that the same decision also schedules."""
        both = []
        for name in facts.preempted:
            if name in self.index:
                self.previous_ids[name] = int(self.known[self.index[name]])
            new_too = any(request.req_id == name for request in facts.new)
            if name in facts.num_scheduled_tokens and not new_too and name not in facts.cached.resumed:
                both.append(name)
                wrong.append(_cycle(facts.step, name, "preempted", "scheduled", "preempted and scheduled in one step"))
            self._drop(name, facts.step)
        return frozenset(both)

    def _cached(
        self, facts: StepFacts, broken: frozenset[str], wrong: list[Violation]
    ) -> tuple[NDArray[np.intp], list[str], NDArray[np.int64]]:
        cached, step = facts.cached, facts.step
        resumed = cached.resumed
        if resumed:
            self._resume(cached, step, broken)
        names = cached.req_ids
        order = self._order
        if order is not None and order[0] == self.version and order[1] == names:
            slots = order[2]
            keep = None
        else:
            found = list(map(self.index.get, names))
            keep = None
            if None in found:
                keep = [at for at, slot in enumerate(found) if slot is not None]
                for at, slot in enumerate(found):
                    if slot is None and names[at] not in broken:
                        why = "the worker does not know this request"
                        wrong.append(_cycle(step, names[at], "known to the worker", "cached", why))
            slots = np.array([slot for slot in found if slot is not None], np.intp)
            if keep is None:
                self._order = (self.version, names, slots)
        new_ids = cached.new_block_ids
        if new_ids and (len(new_ids) != len(names) or len(cached.num_computed_tokens) != len(names)):
            raise FactsError(
                f"CachedRequests has {len(names)} req_ids, {len(new_ids)} new_block_ids and "
                f"{len(cached.num_computed_tokens)} num_computed_tokens"
            )
        replaced = facts.block_replacements
        for at in compress(range(len(new_ids)), new_ids):
            name = names[at]
            slot = self.index.get(name)
            if slot is not None and name not in resumed and name not in replaced:
                self._append(slot, name, new_ids[at] or (), step)
        for name, ids in replaced.items():
            if name in self.index:
                self._renew(self.index[name], name, ids, step)
        sched = np.array(cached.num_computed_tokens, np.int64)
        if keep is not None:
            return slots, [names[at] for at in keep], sched[keep]
        return slots, names if isinstance(names, list) else list(names), sched

    def _append(self, slot: int, name: str, ids: Sequence[Ids], step: int) -> None:
        life = int(self.life[slot])
        for number, group in enumerate(self.groups):
            group.append(slot, life, name, ids[number], 0, step)
            self._note_given(number, name, life, ids[number])

    def _renew(self, slot: int, name: str, ids: Sequence[Ids], step: int) -> None:
        """A whole new row for a live request; columns that are computed already may be shared."""
        life = int(self.life[slot])
        self._keep_in_limbo(slot, name, life)
        for group in self.groups:
            group.drop(slot, life, name, step)
        self._replace(slot, ids, int(self.end[slot]), step)

    def _resume(self, cached: CachedRequests, step: int, broken: frozenset[str]) -> None:
        """Requests of `resumed`: a new life, whose block list replaces whatever was there."""
        from kv_plan_guard.facts import NewRequest

        for at, name in enumerate(cached.req_ids):
            if name not in cached.resumed or name in broken:
                continue
            known = self.previous_ids.get(name)
            if name in self.index:
                known = int(self.known[self.index[name]])
            elif known is None:
                continue  # never seen: reported with the unknown ones
            ids = cached.new_block_ids[at] or tuple(() for _ in self.groups)
            self._add(NewRequest(name, ids, cached.num_computed_tokens[at], known), step)

    def nbytes(self) -> int:
        """Bytes of the arrays by request; those of the groups are theirs to count."""
        return int(self.exact.nbytes + sum(getattr(self, name).nbytes for name in _ARRAYS))

    # -- counts ----------------------------------------------------------------------------------------------------

    def _scheduled(self, facts: StepFacts, req_ids: list[str], wrong: list[Violation]) -> NDArray[np.int64]:
        counts = facts.num_scheduled_tokens
        if (
            len(counts) == len(req_ids)
            and sum(counts.values()) == len(req_ids)
            and min(counts.values(), default=1) == 1
            and all(map(counts.__contains__, req_ids))
        ):
            return np.ones(len(req_ids), np.int64)
        found = np.array([counts.get(name, 0) for name in req_ids], np.int64)
        if (found <= 0).any():
            for name, number in zip(req_ids, found.tolist(), strict=True):
                if number <= 0:
                    wrong.append(_cycle(facts.step, name, "at least 1 token", number, "sent, but not scheduled"))
        if len(counts) != len(req_ids):
            sent = {*req_ids, *facts.preempted, *facts.cached.req_ids}
            wrong += [
                _cycle(facts.step, name, "new or cached", "neither", "scheduled, but not sent")
                for name in sorted(set(counts) - sent)
            ]
        return found

    def _drafts(
        self, facts: StepFacts, req_ids: list[str], before: StepRecord | None, wrong: list[Violation]
    ) -> NDArray[np.int64] | None:
        spec = facts.spec_tokens
        if not spec:
            return None
        self.speculates = True
        for name, tokens in spec.items():
            if name not in facts.num_scheduled_tokens or not len(tokens) or tokens[0] != -1:
                continue
            slot = self.index.get(name)
            if before is None or slot is None or self.stamp[slot] != before.step:
                why = "placeholder drafts for a request that was not in the step before"
                wrong.append(_cycle(facts.step, name, "a row in the step before", "none", why))
        return np.array([len(spec[name]) if name in spec else 0 for name in req_ids], np.int64)

    def _record(
        self,
        facts: StepFacts,
        settled: int,
        req_ids: list[str],
        slots: NDArray[np.intp],
        sched: NDArray[np.int64],
        scheduled: NDArray[np.int64],
        drafts: NDArray[np.int64] | None,
        wrong: list[Violation],
    ) -> None:
        before = self.end[slots]
        if self.speculates:
            low, high, before = self._bounds(slots, sched, settled)
        else:
            low = high = sched
        if (sched > before).any():
            self._ahead(facts.step, req_ids, sched, before, wrong)
        end = high + scheduled
        known = self.known[slots]
        limit = known if drafts is None else known + drafts
        if (end > limit).any():
            for at in np.flatnonzero(end > limit).tolist():
                why = "more tokens are scheduled than the worker knows or has in flight"
                wrong.append(_length(facts.step, req_ids[at], int(limit[at]), int(end[at]), why))
        own = end if drafts is None else end - drafts
        sampled = (own >= known).astype(np.int64)
        if drafts is not None:
            sampled *= 1 + drafts
        self.scheduled[slots], self.low[slots], self.high[slots], self.end[slots] = scheduled, low, high, end
        self.known[slots] = known + sampled
        self.stamp[slots] = facts.step
        if self.speculates:
            self.drafts[slots] = 0 if drafts is None else drafts
            sure = low == high
            self.exact[slots] = sure if drafts is None else sure & (drafts == 0)
            self.frontier[slots] = end
        for group in self._ephemeral:
            first = rules.first_needed_token(group.layout, high) // group.layout.span
            group.release_before(slots, first)
        self.current = StepRecord(
            facts.step, settled, req_ids, slots, self.life[slots], low, high, scheduled, drafts, sampled, facts
        )
        self.records.append(self.current)

    def _bounds(
        self, slots: NDArray[np.intp], sched: NDArray[np.int64], settled: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Least and greatest true count of computed tokens, and the most that the scheduler may count.

        The scheduler counts drafts in flight as accepted; what is settled it must have taken off.
        """
        pending = np.zeros(len(self.names), np.int64)
        for record in self.records:
            if record.step > settled and record.drafts is not None:
                alive = self.life[record.slots] == record.lives
                pending[record.slots[alive]] += record.drafts[alive]
        exact = self.exact[slots]
        high = np.where(exact, np.minimum(self.frontier[slots], sched), sched)
        most = np.where(exact, self.frontier[slots] + pending[slots], self.end[slots])
        return np.where(exact, high, sched - pending[slots]), high, most

    def _set_frontier(self, slot: int, record: StepRecord, frontier: int) -> None:
        current = self.current
        assert current is not None
        if self.stamp[slot] == record.step:
            self.frontier[slot], self.exact[slot] = frontier, True
        elif self.stamp[slot] == current.step:
            # The next step was taken in before this one was settled: its start is now known.
            where = int(np.flatnonzero(current.slots == slot)[0])
            start = min(frontier, int(self.high[slot]))
            current.low[where] = current.high[where] = self.low[slot] = self.high[slot] = start
            self.end[slot] = self.frontier[slot] = start + int(self.scheduled[slot])
            self.exact[slot] = self.drafts[slot] == 0

    def _ahead(
        self,
        step: int,
        req_ids: list[str],
        sched: NDArray[np.int64],
        before: NDArray[np.int64],
        wrong: list[Violation],
    ) -> None:
        """The scheduler's count lies above what the request's steps can have computed."""
        for at in np.flatnonzero(sched > before).tolist():
            why = "more computed tokens than its steps can have computed"
            wrong.append(_length(step, req_ids[at], int(before[at]), int(sched[at]), why))


def _cycle(step: int, name: str, expected: str, actual: str | int, why: str) -> Violation:
    return Violation(Code.CYCLE, step, None, "scheduler", expected, actual, request=name, why=why)


def _length(step: int, name: str, expected: int, actual: int, why: str) -> Violation:
    return Violation(Code.LEN, step, None, "scheduler", expected, actual, request=name, why=why)
