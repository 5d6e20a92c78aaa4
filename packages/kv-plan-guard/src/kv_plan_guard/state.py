"""The mirror's state: a cheap copy now and then, written out only when something is wrong, read by a replay."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard import serial, values
from kv_plan_guard.blocks import Event
from kv_plan_guard.requests import NUMBERS, Limbo, StepRecord
from kv_plan_guard.transfers import OpenTransfer, Transfers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kv_plan_guard.layout import Layout
    from kv_plan_guard.mirror import Mirror

EVENTS: Final = 512


@dataclass(slots=True)
class GroupState:
    """Copies of one group's arrays; rows as (width, row, count) and the tables they lie in."""

    tables: dict[int, NDArray[np.int32]]
    width: NDArray[Any]
    row: NDArray[Any]
    count: NDArray[Any]
    released: NDArray[Any]
    refs: NDArray[Any]
    writer: NDArray[Any]
    generation: NDArray[Any]
    flagged: set[int]
    nulls: set[int]
    conflicts: dict[int, tuple[int, int]]
    history: list[Event]


@dataclass(slots=True)
class State:
    """Copies of everything that decides later verdicts."""

    index: dict[str, int]
    numbers: dict[str, NDArray[Any]]
    exact: NDArray[np.bool_]
    speculates: bool
    preempted: dict[str, int]
    records: list[StepRecord]
    limbo: list[Limbo]
    lives: int
    open: dict[str, OpenTransfer]
    groups: list[GroupState]


def capture(mirror: Mirror, transfers: Transfers) -> State:
    """Copy the state; tens of microseconds, no JSON yet."""
    groups = []
    for group in mirror.groups:
        tables = {width: table.rows.copy() for width, table in group.tables.items()}
        groups.append(
            GroupState(
                tables,
                group.width.copy(),
                group.row.copy(),
                group.count.copy(),
                group.released.copy(),
                group.refs.copy(),
                group.writer.copy(),
                group.generation.copy(),
                set(group.flagged),
                set(group.nulls),
                dict(group.conflicts),
                list(islice(group.history, max(0, len(group.history) - EVENTS), None)),
            )
        )
    numbers = {name: getattr(mirror, name).copy() for name in NUMBERS}
    return State(
        dict(mirror.index),
        numbers,
        mirror.exact.copy(),
        mirror.speculates,
        dict(mirror.preempted),
        list(mirror.records),
        list(mirror.limbo),
        mirror.num_lives,
        dict(transfers.open),
        groups,
    )


def to_json(state: State, layout: Layout) -> dict[str, Any]:
    """The copy as plain data, by request."""
    requests = []
    for name, slot in state.index.items():
        rows = []
        for number, group in enumerate(state.groups):
            width = int(group.width[slot])
            used = int(group.count[slot]) * layout.groups[number].ratio
            line = group.tables[width][group.row[slot], :used].tolist() if width else []
            rows.append([line, int(group.released[slot]), slot in group.flagged, slot in group.nulls])
        numbers = [int(state.numbers[key][slot]) for key in NUMBERS]
        requests.append([name, numbers, bool(state.exact[slot]), rows])
    return {
        "requests": requests,
        "speculates": state.speculates,
        "preempted": state.preempted,
        "records": [_record_to_json(record) for record in state.records],
        "limbo": [
            [gone.request, gone.life, gone.last_step, [row.tolist() for row in gone.rows]] for gone in state.limbo
        ],
        "lives": state.lives,
        "open": [[serial.transfer_to_json(o.transfer), o.life, o.step] for o in state.open.values()],
        "pools": [
            {
                "refs": group.refs.tolist(),
                "writer": group.writer.tolist(),
                "generation": group.generation.tolist(),
                "conflicts": [[block, *lives] for block, lives in group.conflicts.items()],
                "history": [[e.step, e.what, e.request, e.life, [int(b) for b in e.blocks]] for e in group.history],
            }
            for group in state.groups
        ],
    }


def _record_to_json(record: StepRecord) -> dict[str, Any]:
    return {
        "settled": record.settled,
        "req_ids": list(record.req_ids),
        "lives": record.lives.tolist(),
        "low": record.low.tolist(),
        "high": record.high.tolist(),
        "scheduled": record.scheduled.tolist(),
        "drafts": None if record.drafts is None else record.drafts.tolist(),
        "sampled": record.sampled.tolist(),
        "facts": serial.step_to_json(record.summary),
    }


def restore(value: object, mirror: Mirror, transfers: Transfers) -> None:
    """Fill a fresh mirror with what `to_json` wrote; ReplayError for anything that does not fit."""
    plain = values.table("state", value)
    groups = len(mirror.groups)
    requests = values.items("requests", plain["requests"])
    mirror.resize(max(16, len(requests)))
    for entry in requests:
        _restore_request(values.items("request", entry), mirror)
    if not isinstance(plain["speculates"], bool):
        raise values.refuse("speculates", "true or false", plain["speculates"])
    mirror.speculates = plain["speculates"]
    for name, known in values.table("preempted", plain["preempted"]).items():
        mirror.preempted[values.text("request", name)] = values.whole("known", known, -(1 << 62), 1 << 62)
    mirror.num_lives = values.whole("lives", plain["lives"], 0, 1 << 60)
    slots = {int(mirror.life[slot]): slot for slot in mirror.index.values()}
    for record in values.items("records", plain["records"]):
        mirror.records.append(_record_from_json(record, slots, groups))
    mirror.current = mirror.records[-1] if mirror.records else None
    for gone in values.items("limbo", plain["limbo"]):
        name, life, last, rows = _exactly(4, gone)
        lines = [np.array(values.ids("limbo row", row), np.int32) for row in values.items("limbo rows", rows)]
        if len(lines) != groups:
            raise values.refuse("limbo rows", f"{groups} lists", len(lines))
        mirror.limbo.append(
            Limbo(values.text("request", name), _life(life), values.whole("step", last, 0, 1 << 60), lines)
        )
    for entry in values.items("open", plain["open"]):
        transfer, life, step = _exactly(3, entry)
        read = serial.transfer_from_json(transfer, groups)
        number = values.whole("step", step, 0, 1 << 60)
        transfers.open[read.job] = OpenTransfer(read, _life(life), number, frozenset(read.block_ids))
    pools = values.items("pools", plain["pools"])
    if len(pools) != groups:
        raise values.refuse("pools", f"{groups} entries", len(pools))
    for pool, group in zip(pools, mirror.groups, strict=True):
        _restore_pool(values.table("pool", pool), group)


def _exactly(size: int, value: object) -> list[Any]:
    parts = values.items("entry", value)
    if len(parts) != size:
        raise values.refuse("entry", f"{size} values", value)
    return parts


def _life(value: object) -> int:
    return values.whole("life", value, 0, 1 << 60)


def _restore_request(entry: list[Any], mirror: Mirror) -> None:
    name, numbers, exact, rows = _exactly(4, entry)
    name = values.text("request", name)
    found = values.numbers("request's numbers", numbers, -(1 << 62), 1 << 62)
    lines = values.items("request's rows", rows)
    if len(found) != len(NUMBERS) or len(lines) != len(mirror.groups) or name in mirror.index:
        raise values.refuse("request", f"{len(NUMBERS)} numbers and {len(mirror.groups)} rows, once", name)
    by_name = dict(zip(NUMBERS, found, strict=True))
    for key in ("scheduled", "low", "high", "end", "frontier", "encoder", "drafts", "kept"):
        values.whole(key, by_name[key], -values.MAX_LENGTH, values.MAX_LENGTH)
    for key in ("scheduled", "encoder"):
        values.whole(key, by_name[key], 0, values.MAX_TOKENS)
    slot = mirror.free_slots.pop()
    for key, number in by_name.items():
        getattr(mirror, key)[slot] = number
    mirror.exact[slot] = exact is True
    mirror.index[name], mirror.names[slot] = slot, name
    for line, group in zip(lines, mirror.groups, strict=True):
        kernel, released, flagged, null = _exactly(4, line)
        ids = values.ids("row", kernel)
        if len(ids) % group.layout.ratio:
            raise values.refuse("row", f"a multiple of {group.layout.ratio} kernel blocks", len(ids))
        count = len(ids) // group.layout.ratio
        group.restore_row(slot, ids, values.whole("released", released, 0, count))
        if flagged is True:
            group.flagged.add(slot)
        if null is True:
            group.nulls.add(slot)


def _record_from_json(value: object, slots: dict[int, int], groups: int) -> StepRecord:
    plain = values.table("record", value)
    facts = serial.step_from_json(plain["facts"], groups)
    req_ids = values.names("req_ids", plain["req_ids"])
    size = len(req_ids)

    def column(name: str, high: int = values.MAX_LENGTH, low: int = 0) -> NDArray[np.int64]:
        found = values.numbers(name, plain[name], low, high)
        if len(found) != size:
            raise values.refuse(name, f"{size} values", len(found))
        return np.array(found, np.int64)

    lives = column("lives", 1 << 60)
    where = np.array([slots.get(life, 0) for life in lives.tolist()], np.intp)
    return StepRecord(
        facts.step,
        values.whole("settled", plain["settled"], -(1 << 60), 1 << 60),
        req_ids,
        where,
        lives,
        column("low", low=-values.MAX_LENGTH),
        column("high", low=-values.MAX_LENGTH),
        column("scheduled", values.MAX_TOKENS),
        None if plain["drafts"] is None else column("drafts", values.MAX_TOKENS),
        column("sampled", values.MAX_TOKENS),
        facts,
        sum(facts.num_scheduled_tokens.values()),
        False,
    )


def _restore_pool(pool: dict[str, Any], group: Any) -> None:
    refs = values.numbers("refs", pool["refs"], -(1 << 31), values.MAX_ID)
    writer = values.numbers("writer", pool["writer"], -1, 1 << 60)
    generation = values.numbers("generation", pool["generation"], 0, values.MAX_ID)
    if not len(refs) == len(writer) == len(generation) <= group.layout.pool_blocks:
        raise values.refuse("pool", f"three lists of one length <= {group.layout.pool_blocks}", len(refs))
    group.refs = np.array(refs, np.int32)
    group.writer = np.array(writer, np.int64)
    group.generation = np.array(generation, np.int32)
    group.set_plain()
    for entry in values.items("conflicts", pool["conflicts"]):
        block, old, new = _exactly(3, entry)
        group.conflicts[values.whole("block", block, 0, max(len(refs) - 1, 0))] = (
            values.whole("life", old, -1, 1 << 60),
            _life(new),
        )
    for entry in values.items("history", pool["history"])[-EVENTS:]:
        step, what, request, life, blocks = _exactly(5, entry)
        if what not in ("given", "freed"):
            raise values.refuse("event", "given or freed", what)
        group.history.append(
            Event(
                values.whole("step", step, 0, 1 << 60),
                what,
                values.text("request", request),
                _life(life),
                values.ids("blocks", blocks),
            )
        )
