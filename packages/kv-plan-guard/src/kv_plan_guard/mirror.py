"""The mirror: what every request and block of the engine must be, from the scheduler's decisions alone.

Everything is keyed by request id. A life is one stay of a request in the worker: an id that comes back is a new life.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from kv_plan_guard import counts, rules
from kv_plan_guard.blocks import GroupBlocks
from kv_plan_guard.errors import FactsError
from kv_plan_guard.facts import NewRequest
from kv_plan_guard.requests import UNBOUNDED, Limbo, RequestTable, StepRecord
from kv_plan_guard.violation import Code, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kv_plan_guard.facts import CachedRequests, Ids, OutputFacts, StepFacts
    from kv_plan_guard.layout import Layout


@dataclass(slots=True)
class Given:
    """Blocks that changed hands in this step, for the lifetime check."""

    group: int
    request: str
    life: int
    blocks: list[int]


class Mirror(RequestTable):
    """See the module. `current` is the record of the newest step; `records` those that may not be settled yet."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.groups = [GroupBlocks(group) for group in layout.groups]
        self.speculates = layout.num_speculative_tokens > 0
        self.records: deque[StepRecord] = deque()
        self.current: StepRecord | None = None
        self.preempted: dict[str, int] = {}  # requests that may be resumed, with their known tokens
        self.limbo: list[Limbo] = []
        self.given: list[Given] = []
        self._tracks_given = bool(layout.connector_checks) or layout.tokens_per_write > 1
        self._order: tuple[int, Sequence[str], NDArray[np.intp]] | None = None
        self._ephemeral = [group for group in self.groups if group.layout.ephemeral]
        self.resize(16)

    def resize(self, size: int) -> None:
        """Make room for `size` slots, in the groups too."""
        super().resize(size)
        for group in self.groups:
            group.ensure_slots(size)

    # -- one step --------------------------------------------------------------------------------------------------

    def observe(self, facts: StepFacts) -> list[Violation]:
        """Take in one decision; returns the impossible in it (CYCLE, LEN)."""
        before = self.current
        step = facts.step
        if before is not None and step <= before.step:
            raise FactsError(f"StepFacts.step must grow: got {step!r} after {before.step!r}")
        wrong: list[Violation] = []
        settled = step - 1 - self.layout.steps_in_flight if facts.settled is None else facts.settled
        self.given = []
        for group in self.groups:
            group.begin_step()
        self._forget_settled(settled)
        for name in facts.finished:
            self.preempted.pop(name, None)
            self._drop(name, step)
        broken = self._preempt(facts, wrong) if facts.preempted else frozenset()
        for request in facts.new:
            self._add(request, step)
        slots, req_ids, computed = self._cached(facts, broken, wrong)
        if facts.new:
            slots, req_ids, computed = self._with_new(facts, slots, req_ids, computed)
        scheduled, total, single = counts.scheduled(self, facts, req_ids, wrong)
        drafts = counts.drafts(self, facts, req_ids, before, wrong) if facts.spec_tokens else None
        low, high, sampled = counts.advance(self, step, settled, req_ids, slots, computed, scheduled, drafts, wrong)
        for group in self._ephemeral:
            group.release_before(slots, rules.first_needed_token(group.layout, high) // group.layout.span)
        lives = self.life[slots]
        self.current = StepRecord(
            step, settled, req_ids, slots, lives, low, high, scheduled, drafts, sampled, facts, total, single
        )
        self.records.append(self.current)
        if any(facts.num_common_prefix_blocks):
            wrong += self._common_prefix(facts, slots)
        return wrong

    def settle(self, facts: OutputFacts) -> None:
        """Take in what the sampler returned for a step in flight; other steps and lost requests are passed over."""
        for record in self.records:
            if record.step == facts.step:
                counts.settle(self, facts, record)

    # -- requests --------------------------------------------------------------------------------------------------

    def _with_new(
        self, facts: StepFacts, slots: NDArray[np.intp], req_ids: list[str], computed: NDArray[np.int64]
    ) -> tuple[NDArray[np.intp], list[str], NDArray[np.int64]]:
        names = [request.req_id for request in facts.new]
        fresh = np.array([self.index[name] for name in names], np.intp)
        start = np.array([request.num_computed_tokens for request in facts.new], np.int64)
        if not req_ids:
            return fresh, names, start
        return np.concatenate([slots, fresh]), [*req_ids, *names], np.concatenate([computed, start])

    def _add(self, request: NewRequest, step: int) -> None:
        name = request.req_id
        if name in self.index:  # an input that is streamed in pieces: the worker starts the request anew
            self._drop(name, step)
        if len(request.block_ids) != len(self.groups):
            raise FactsError(f"{name!r} has blocks of {len(request.block_ids)} groups, the layout {len(self.groups)}")
        self.preempted.pop(name, None)
        if not self.free_slots:
            self.resize(2 * len(self.names))
        slot = self.free_slots.pop()
        self.num_lives += 1
        self.index[name], self.names[slot], self.life[slot] = slot, name, self.num_lives
        self.version += 1
        known, computed = request.num_known_tokens, request.num_computed_tokens
        self.known[slot] = UNBOUNDED if known is None else known
        self.encoder[slot] = request.num_encoder_tokens
        self.end[slot] = self.frontier[slot] = computed
        self.exact[slot], self.kept[slot], self.stamp[slot] = True, 0, -1
        self._give(slot, self.num_lives, name, request.block_ids, computed, step)

    def _give(self, slot: int, life: int, name: str, block_ids: Sequence[Ids], computed: int, step: int) -> None:
        """Append blocks to a request's rows; columns whose tokens are computed already may be shared."""
        for number, group in enumerate(self.groups):
            hits = computed // group.layout.span if group.layout.kind not in ("ring", "cross") else 0
            ids = block_ids[number]
            group.append(slot, life, name, ids, hits, step)
            if self._tracks_given and len(ids):
                self.given.append(Given(number, name, life, list(ids[hits:])))  # hits are only read

    def _drop(self, name: str, step: int) -> None:
        slot = self.index.pop(name, None)
        if slot is None:
            return
        life = int(self.life[slot])
        self._keep_in_limbo(slot, name, life)
        for group in self.groups:
            group.drop(slot, life, name, step)
        self.names[slot], self.life[slot] = None, 0
        self.free_slots.append(slot)
        self.version += 1

    def _keep_in_limbo(self, slot: int, name: str, life: int) -> None:
        if self._tracks_given and self.stamp[slot] >= 0:
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
        renewed = {request.req_id for request in facts.new} | facts.cached.resumed
        for name in facts.preempted:
            if name in self.index:
                self.preempted[name] = int(self.known[self.index[name]])
            if name in facts.num_scheduled_tokens and name not in renewed:
                both.append(name)
                why = "preempted and scheduled in one step"
                wrong.append(counts.cycle(facts.step, name, "preempted", "scheduled", why))
            self._drop(name, facts.step)
        return frozenset(both)

    def _common_prefix(self, facts: StepFacts, slots: NDArray[np.intp]) -> Iterator[Violation]:
        """The scheduler declares leading blocks common: all scheduled requests must hold the same ones there."""
        for number, count in enumerate(facts.num_common_prefix_blocks[: len(self.groups)]):
            if not count:
                continue
            rows = [self.groups[number].manager_row(slot)[:count].tolist() for slot in slots.tolist()]
            for slot, row in zip(slots.tolist(), rows, strict=True):
                if row != rows[0] or len(row) < count:
                    where = next((at for at, (a, b) in enumerate(zip(row, rows[0], strict=False)) if a != b), len(row))
                    why = f"{count} blocks are declared common to the whole batch"
                    name = self.names[slot]
                    yield Violation(
                        Code.ROW, facts.step, number, "common_prefix", rows[0], row, name, column=where, why=why
                    )
                    break

    # -- requests the worker knows ---------------------------------------------------------------------------------

    def _cached(
        self, facts: StepFacts, broken: frozenset[str], wrong: list[Violation]
    ) -> tuple[NDArray[np.intp], list[str], NDArray[np.int64]]:
        cached, step = facts.cached, facts.step
        if cached.resumed:
            self._resume(cached, step, broken)
        names, new_ids = cached.req_ids, cached.new_block_ids
        if len(new_ids) != len(names) or len(cached.num_computed_tokens) != len(names):
            raise FactsError(
                f"CachedRequests has {len(names)} req_ids, {len(new_ids)} new_block_ids and "
                f"{len(cached.num_computed_tokens)} num_computed_tokens"
            )
        slots, keep = self._slots(names, step, broken, wrong)
        replaced = facts.block_replacements
        for at in compress(range(len(names)), new_ids):
            name, ids = names[at], new_ids[at]
            slot = self.index.get(name)
            if slot is not None and ids is not None and name not in cached.resumed and name not in replaced:
                self._give(slot, int(self.life[slot]), name, ids, 0, step)
        for name, rows in replaced.items():
            if name in self.index:
                self._renew(self.index[name], name, rows, step)
        computed = np.array(cached.num_computed_tokens, np.int64)
        if keep is not None:
            return slots, [names[at] for at in keep], computed[keep]
        return slots, names if isinstance(names, list) else list(names), computed

    def _slots(
        self, names: Sequence[str], step: int, broken: frozenset[str], wrong: list[Violation]
    ) -> tuple[NDArray[np.intp], list[int] | None]:
        """Slots of the requests; where some are unknown, also which ones are known."""
        order = self._order
        if order is not None and order[0] == self.version and order[1] == names:
            return order[2], None
        found = list(map(self.index.get, names))
        if None not in found:
            slots = np.array(found, np.intp)
            self._order = (self.version, list(names), slots)  # a copy: the caller's list may be used again
            return slots, None
        for name, place in zip(names, found, strict=True):
            if place is None and name not in broken:
                why = "the worker does not know this request"
                wrong.append(counts.cycle(step, name, "known to the worker", "cached", why))
        keep = [at for at, place in enumerate(found) if place is not None]
        return np.array([place for place in found if place is not None], np.intp), keep

    def _renew(self, slot: int, name: str, ids: Sequence[Ids], step: int) -> None:
        """A whole new row for a live request; columns that are computed already may be shared."""
        life = int(self.life[slot])
        self._keep_in_limbo(slot, name, life)
        for group in self.groups:
            group.drop(slot, life, name, step)
        self._give(slot, life, name, ids, int(self.end[slot]), step)

    def _resume(self, cached: CachedRequests, step: int, broken: frozenset[str]) -> None:
        """Requests of `resumed`: a new life, whose block list replaces whatever was there."""
        for at, name in enumerate(cached.req_ids):
            if name not in cached.resumed or name in broken:
                continue
            known = self.preempted.get(name)
            if name in self.index:
                known = int(self.known[self.index[name]])
            elif known is None:
                continue  # never seen: reported with the unknown ones
            ids = cached.new_block_ids[at] or tuple(() for _ in self.groups)
            self._add(NewRequest(name, ids, cached.num_computed_tokens[at], known), step)
