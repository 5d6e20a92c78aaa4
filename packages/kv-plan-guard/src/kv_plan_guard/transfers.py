"""LIFETIME and CONN: transfers in flight, and the connector's own plan, against the mirror.

Handing a block on within one compute stream is safe, because the stream orders the old use before the new one. A
transfer is ordered after nothing: it may only touch blocks that no unsettled step and no other transfer uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kv_plan_guard import rules
from kv_plan_guard.violation import Code, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kv_plan_guard.facts import ConnectorFacts, Transfer
    from kv_plan_guard.layout import GroupLayout, Layout
    from kv_plan_guard.mirror import Mirror
    from kv_plan_guard.requests import StepRecord
    from kv_plan_guard.violation import Value


@dataclass(frozen=True, slots=True)
class OpenTransfer:
    """A transfer that was started and not reported done."""

    transfer: Transfer
    life: int
    step: int
    blocks: frozenset[int]


class Transfers:
    """The transfers in flight of one worker."""

    def __init__(self, layout: Layout, mirror: Mirror) -> None:
        self.layout = layout
        self.mirror = mirror
        self.open: dict[str, OpenTransfer] = {}

    def observe(self, facts: ConnectorFacts | None) -> list[Violation]:
        """Judge the newest step of the mirror, and take its transfers in."""
        record = self.mirror.current
        assert record is not None
        wrong: list[Violation] = []
        checks = self.layout.connector_checks
        if facts is not None:
            for job in facts.finished:
                self.open.pop(job, None)
        if "LIFETIME" in checks:
            wrong += self._given_while_transferred(record)
            wrong += self._transferred_while_used(record, facts)
        elif self.layout.tokens_per_write > 1:
            wrong += self._given_while_written(record)
        if facts is not None:
            if "CONN" in checks:
                wrong += self._tables(record.step, facts)
                for transfer in facts.started:
                    wrong += self._plan(record.step, transfer)
            for transfer in facts.started:
                slot = self.mirror.index.get(transfer.req_id)
                life = int(self.mirror.life[slot]) if slot is not None else 0
                self.open[transfer.job] = OpenTransfer(transfer, life, record.step, frozenset(transfer.block_ids))
        return wrong

    # -- LIFETIME --------------------------------------------------------------------------------------------------

    def _given_while_transferred(self, record: StepRecord) -> Iterator[Violation]:
        """Blocks that this step gives to someone while a transfer still reads or fills them."""
        for given in self.mirror.given:
            for job in self.open.values():
                if job.transfer.group != given.group or job.life == given.life:
                    continue
                if job.life == 0 and job.transfer.req_id == given.request:
                    continue  # a load for a request that waits: its blocks come to it when it is admitted
                for block in sorted(job.blocks.intersection(given.blocks)):
                    why = f"{job.transfer.kind} {job.transfer.job!r} of {job.transfer.req_id!r} is not reported done"
                    yield _lifetime(record.step, given.group, given.request, block, why)
                    break

    def _transferred_while_used(self, record: StepRecord, facts: ConnectorFacts | None) -> Iterator[Violation]:
        """Blocks that a load will overwrite while an unsettled step still uses them."""
        if facts is None:
            return
        targets = [(t.req_id, t.group, list(t.block_ids)) for t in facts.started if t.kind == "load"]
        for name, rows in facts.waiting.items():
            targets += [(name, group, list(ids)) for group, ids in enumerate(rows)]
        for name, group, blocks in targets:
            wanted = {b for b in blocks if b != self.layout.groups[group].null_block}
            for user, step, used in self._in_use(record, group):
                if user == name:
                    continue
                for block in sorted(wanted.intersection(used)):
                    why = f"step {step} of {user!r}, not settled, uses it"
                    yield _lifetime(record.step, group, name, block, why)
                    break

    def _given_while_written(self, record: StepRecord) -> Iterator[Violation]:
        """One scheduled step runs several iterations: what it may still write must not be given away."""
        for given in self.mirror.given:
            for user, step, used in self._in_use(record, given.group):
                if user == given.request:
                    continue
                for block in sorted(used.intersection(given.blocks)):
                    why = f"step {step} of {user!r}, not settled, still writes up to it"
                    yield _lifetime(record.step, given.group, given.request, block, why)
                    break

    def _in_use(self, record: StepRecord, group: int) -> Iterator[tuple[str, int, set[int]]]:
        """(request, step, blocks) that each unsettled earlier step reads or writes in one group."""
        mirror = self.mirror
        layout = self.layout.groups[group]
        gone = {limbo.life: limbo for limbo in mirror.limbo}
        for old in mirror.records:
            if old.step <= record.settled or old.step >= record.step:
                continue
            stop = old.high + np.maximum(old.scheduled, self.layout.tokens_per_write)
            first, last = rules.needed_columns(layout, old.low, stop)
            for at, name in enumerate(old.req_ids):
                slot, life = int(old.slots[at]), int(old.lives[at])
                if mirror.life[slot] == life:
                    row = mirror.groups[group].manager_row(slot)
                elif life in gone:
                    row = gone[life].rows[group]
                else:
                    continue
                used = set(row[0 if first is None else int(first[at]) : int(last[at])].tolist())
                used.discard(-1 if layout.null_block is None else layout.null_block)
                yield name, old.step, used

    # -- CONN ------------------------------------------------------------------------------------------------------

    def _tables(self, step: int, facts: ConnectorFacts) -> Iterator[Violation]:
        """The connector's own block lists."""
        for (name, group), ids in facts.tables.items():
            slot = self.mirror.index.get(name)
            if slot is None:
                continue
            expected = self.mirror.groups[group].manager_row(slot).tolist()
            actual = list(ids)
            if actual != expected:
                column = next((k for k, (a, b) in enumerate(zip(actual, expected, strict=False)) if a != b), None)
                if column is None:
                    column = min(len(actual), len(expected))
                why = "the connector's block list is not the request's"
                yield _conn(step, group, name, _around(expected, column), _around(actual, column), why, column=column)
            covered = len(actual) * self.layout.groups[group].span
            tokens = facts.token_counts.get((name, group))
            if tokens is not None and tokens > covered:
                why = "the connector's block list covers fewer tokens than it is asked to move"
                yield _conn(step, group, name, tokens, covered, why)

    def _plan(self, step: int, transfer: Transfer) -> Iterator[Violation]:
        """One started transfer."""
        group = self.layout.groups[transfer.group]
        yield from _local_rows(step, transfer, group)
        first, ids = transfer.first_block, list(transfer.block_ids)
        if transfer.source_blocks is not None and first is not None:
            wanted = list(range(first, first + len(ids)))
            if (given := list(transfer.source_blocks)) != wanted:
                at = _first_difference(wanted, given)
                why = "blocks of the far side are paired with blocks of another place in the sequence"
                yield _conn(step, transfer.group, transfer.req_id, wanted, given, why, column=first + at)
        low, start = transfer.computed_before, transfer.first_token
        if transfer.kind == "load" and low is not None and start is not None and start < low:
            why = "the load overwrites tokens that are computed already"
            yield _conn(step, transfer.group, transfer.req_id, low, start, why)
        slot = self.mirror.index.get(transfer.req_id)
        if slot is None:
            return
        row = self.mirror.groups[transfer.group].manager_row(slot).tolist()
        if first is not None:
            wanted = row[first : first + len(ids)]
            if ids != wanted:
                at = _first_difference(wanted, ids)
                why = "the transfer's blocks are not the request's at this place"
                yield _conn(step, transfer.group, transfer.req_id, wanted, ids, why, column=first + at)
        elif foreign := [block for block in ids if block not in row]:
            why = "the transfer names blocks that are not the request's"
            yield _conn(step, transfer.group, transfer.req_id, "blocks of the request", foreign, why)
        yield from self._slots(step, transfer, row)

    def _slots(self, step: int, transfer: Transfer, row: list[int]) -> Iterator[Violation]:
        """Slots by token of a transfer, against the group's own rule."""
        if transfer.slots is None or transfer.num_tokens is None:
            return
        slots, count = list(transfer.slots), transfer.num_tokens
        if len(slots) != count:
            why = "one slot per token is needed: shorter lists shift every later slot"
            yield _conn(step, transfer.group, transfer.req_id, count, len(slots), why)
            return
        group = self.layout.groups[transfer.group]
        positions = np.arange(count, dtype=np.int64) + (transfer.first_token or 0)
        mine, columns, offsets = rules.kernel_column_and_offset(group, positions)
        blocks = np.array([*row, -1], np.int64)[np.minimum(columns // group.ratio, len(row))]
        wanted = (blocks * group.ratio + columns % group.ratio) * group.kernel_size + offsets
        expected = np.where(mine & (blocks >= 0), wanted, -1).tolist()
        if slots != expected:
            at = _first_difference(expected, slots)
            why = "the transfer's slot is not the request's at this token"
            yield _conn(step, transfer.group, transfer.req_id, expected[at], slots[at], why, token=at)


def _local_rows(step: int, transfer: Transfer, group: GroupLayout) -> Iterator[Violation]:
    """A plan by token rows: indices over all ranks must become this rank's rows, and the others' are left out."""
    if transfer.logical_rows is None or transfer.local_rows is None:
        return
    logical, actual = np.asarray(transfer.logical_rows, np.int64), [int(row) for row in transfer.local_rows]
    mine, local = rules.owner_and_local(group, logical)
    expected = local[mine].tolist()
    beyond = [row for row in actual if transfer.pool_rows is not None and not 0 <= row < transfer.pool_rows]
    if beyond:
        why = f"the rank's buffer has {transfer.pool_rows} rows"
        yield Violation(
            Code.RANGE,
            step,
            transfer.group,
            "connector",
            transfer.pool_rows,
            beyond[0],
            request=transfer.req_id,
            why=why,
        )
    if actual != expected:
        why = "rows over all ranks are used where this rank's rows are meant"
        yield _conn(step, transfer.group, transfer.req_id, expected[:8], actual[:8], why)


def _first_difference(expected: list[int], actual: list[int]) -> int:
    pairs = zip(expected, actual, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(expected), len(actual)))


def _around(ids: list[int], column: int) -> list[int]:
    return ids[max(0, column - 3) : column + 4]


def _lifetime(step: int, group: int, name: str, block: int, why: str) -> Violation:
    expected = "a block that nothing in flight uses"
    return Violation(Code.LIFETIME, step, group, "scheduler", expected, block, request=name, block=block, why=why)


def _conn(
    step: int,
    group: int,
    name: str,
    expected: Value,
    actual: Value,
    why: str,
    *,
    column: int | None = None,
    token: int | None = None,
) -> Violation:
    return Violation(
        Code.CONN, step, group, "connector", expected, actual, request=name, column=column, token=token, why=why
    )
