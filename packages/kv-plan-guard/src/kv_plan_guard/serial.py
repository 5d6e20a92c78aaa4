"""Facts as plain JSON data and back; what is read is checked value by value (`values`)."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard import facts as f
from kv_plan_guard import values

if TYPE_CHECKING:
    from collections.abc import Callable

_ARRAYS: Final = (
    "query_start_loc",
    "block_table",
    "slot_mapping",
    "seq_lens",
    "seq_lens_host",
    "positions",
    "local_seq_lens",
    "state_columns",
    "state_blocks",
    "num_accepted",
)


# -- writing -----------------------------------------------------------------------------------------------------------


def _list(ids: Any) -> list[int] | None:
    return None if ids is None else [int(value) for value in ids]


def _groups(rows: Any) -> list[list[int]] | None:
    return None if rows is None else [_list(ids) or [] for ids in rows]


def step_to_json(facts: f.StepFacts) -> dict[str, Any]:
    """A scheduler decision as plain data."""
    cached = facts.cached
    return {
        "step": facts.step,
        "num_scheduled_tokens": {name: int(number) for name, number in facts.num_scheduled_tokens.items()},
        "new": [
            [r.req_id, _groups(r.block_ids), int(r.num_computed_tokens), r.num_known_tokens, int(r.num_encoder_tokens)]
            for r in facts.new
        ],
        "cached": {
            "req_ids": list(cached.req_ids),
            "new_block_ids": [_groups(ids) for ids in cached.new_block_ids],
            "num_computed_tokens": _list(cached.num_computed_tokens),
            "resumed": sorted(cached.resumed),
        },
        "finished": sorted(facts.finished),
        "preempted": sorted(facts.preempted),
        "spec_tokens": {name: _list(tokens) for name, tokens in facts.spec_tokens.items()},
        "encoder_tokens": {name: int(number) for name, number in facts.encoder_tokens.items()},
        "num_common_prefix_blocks": _list(facts.num_common_prefix_blocks),
        "block_replacements": {name: _groups(rows) for name, rows in facts.block_replacements.items()},
        "connector": None if facts.connector is None else _connector_to_json(facts.connector),
        "settled": facts.settled,
    }


def _connector_to_json(facts: f.ConnectorFacts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "started": [transfer_to_json(transfer) for transfer in facts.started],
        "finished": sorted(facts.finished),
        "tables": [[name, group, _list(ids)] for (name, group), ids in facts.tables.items()],
        "token_counts": [[name, group, int(number)] for (name, group), number in facts.token_counts.items()],
        "waiting": {name: _groups(rows) for name, rows in facts.waiting.items()},
    }


def transfer_to_json(transfer: f.Transfer) -> dict[str, Any]:
    """A transfer as plain data."""
    plain = {field.name: getattr(transfer, field.name) for field in fields(f.Transfer)}
    lists = ("block_ids", "source_blocks", "slots", "logical_rows", "local_rows")
    return {name: _list(value) if name in lists else value for name, value in plain.items()}


def output_to_json(facts: f.OutputFacts) -> dict[str, Any]:
    """A step's sampled output as plain data."""
    return {
        "step": facts.step,
        "req_ids": list(facts.req_ids),
        "num_sampled": _list(facts.num_sampled),
        "num_rejected": _list(facts.num_rejected),
    }


def plan_to_json(plan: f.PlanFacts) -> dict[str, Any]:
    """A plan as plain data; of the block table only columns that are not all zero behind the last one used."""
    plain: dict[str, Any] = {}
    for field in fields(f.PlanFacts):
        value = getattr(plan, field.name)
        if field.name in _ARRAYS and value is not None:
            array = np.asarray(value)
            plain[field.name] = {"dtype": array.dtype.name, "shape": list(array.shape), "data": array.ravel().tolist()}
        elif field.name == "req_ids":
            plain[field.name] = list(value)
        else:
            plain[field.name] = value
    return plain


# -- reading -----------------------------------------------------------------------------------------------------------


def _rows(what: str, value: object, groups: int) -> list[list[int]]:
    rows = values.items(what, value)
    if len(rows) != groups:
        raise values.refuse(what, f"one list for each of {groups} groups", value)
    return [values.ids(what, row) for row in rows]


def step_from_json(value: object, groups: int) -> f.StepFacts:
    """Read what `step_to_json` wrote; ReplayError names what is not as it must be."""
    plain = values.table("step facts", value)
    cached = values.table("cached", plain["cached"])
    scheduled = {
        values.text("request", n): values.whole("tokens", v, 0, values.MAX_TOKENS)
        for n, v in _pairs(plain["num_scheduled_tokens"])
    }
    if sum(scheduled.values()) > values.MAX_TOKENS:
        raise values.refuse("num_scheduled_tokens", f"at most {values.MAX_TOKENS} in all", sum(scheduled.values()))
    return f.StepFacts(
        step=values.whole("step", plain["step"], 0, 1 << 60),
        num_scheduled_tokens=scheduled,
        new=[_new(request, groups) for request in values.items("new", plain["new"])],
        cached=f.CachedRequests(
            values.names("cached.req_ids", cached["req_ids"]),
            [
                None if rows is None else _rows("new_block_ids", rows, groups)
                for rows in values.items("new_block_ids", cached["new_block_ids"])
            ],
            values.numbers("num_computed_tokens", cached["num_computed_tokens"], 0, values.MAX_LENGTH),
            frozenset(values.names("resumed", cached["resumed"])),
        ),
        finished=frozenset(values.names("finished", plain["finished"])),
        preempted=frozenset(values.names("preempted", plain["preempted"])),
        spec_tokens={values.text("request", n): values.ids("spec_tokens", v) for n, v in _pairs(plain["spec_tokens"])},
        encoder_tokens={
            values.text("request", n): values.whole("encoder_tokens", v, 0, values.MAX_TOKENS)
            for n, v in _pairs(plain["encoder_tokens"])
        },
        num_common_prefix_blocks=values.numbers("num_common_prefix_blocks", plain["num_common_prefix_blocks"], 0),
        block_replacements={
            values.text("request", n): _rows("block_replacements", v, groups)
            for n, v in _pairs(plain["block_replacements"])
        },
        connector=None if plain["connector"] is None else _connector(plain["connector"], groups),
        settled=None if plain["settled"] is None else values.whole("settled", plain["settled"], -(1 << 60), 1 << 60),
    )


def _pairs(value: object) -> list[tuple[str, Any]]:
    return list(values.table("a map by request", value).items())


def _new(value: object, groups: int) -> f.NewRequest:
    parts = values.items("new request", value)
    if len(parts) != 5:
        raise values.refuse("new request", "five values", value)
    known = None if parts[3] is None else values.whole("known tokens", parts[3])
    return f.NewRequest(
        values.text("request", parts[0]),
        _rows("block_ids", parts[1], groups),
        values.whole("num_computed_tokens", parts[2]),
        known,
        values.whole("encoder tokens", parts[4], 0, values.MAX_TOKENS),
    )


def _connector(value: object, groups: int) -> f.ConnectorFacts:
    plain = values.table("connector", value)

    def keyed(name: str, read: Callable[[str, object], Any]) -> dict[tuple[str, int], Any]:
        found = {}
        for entry in values.items(name, plain[name]):
            parts = values.items(name, entry)
            if len(parts) != 3:
                raise values.refuse(name, "entries of request, group and value", entry)
            found[values.text("request", parts[0]), values.whole("group", parts[1], 0, groups - 1)] = read(
                name, parts[2]
            )
        return found

    return f.ConnectorFacts(
        values.text("connector", plain["name"]),
        [transfer_from_json(transfer, groups) for transfer in values.items("started", plain["started"])],
        frozenset(values.names("finished", plain["finished"])),
        keyed("tables", values.ids),
        keyed("token_counts", values.whole),
        {values.text("request", n): _rows("waiting", v, groups) for n, v in _pairs(plain["waiting"])},
    )


def transfer_from_json(value: object, groups: int) -> f.Transfer:
    """Read what `transfer_to_json` wrote."""
    plain = values.table("transfer", value)
    if plain["kind"] not in ("load", "store"):
        raise values.refuse("transfer.kind", "load or store", plain["kind"])
    return f.Transfer(
        job=values.text("job", plain["job"]),
        req_id=values.text("request", plain["req_id"]),
        group=values.whole("group", plain["group"], 0, groups - 1),
        kind=plain["kind"],
        block_ids=values.ids("block_ids", plain["block_ids"]),
        first_block=values.maybe(values.whole, "first_block", plain["first_block"]),
        first_token=values.maybe(values.whole, "first_token", plain["first_token"]),
        num_tokens=None
        if plain["num_tokens"] is None
        else values.whole("num_tokens", plain["num_tokens"], 0, values.MAX_TOKENS),
        source_blocks=values.maybe(values.ids, "source_blocks", plain["source_blocks"]),
        computed_before=values.maybe(values.whole, "computed_before", plain["computed_before"]),
        slots=values.maybe(_wide, "slots", plain["slots"]),
        logical_rows=values.maybe(_wide, "logical_rows", plain["logical_rows"]),
        local_rows=values.maybe(_wide, "local_rows", plain["local_rows"]),
        pool_rows=values.maybe(values.whole, "pool_rows", plain["pool_rows"]),
    )


def _wide(what: str, value: object) -> list[int]:
    return values.numbers(what, value, -(1 << 60), 1 << 60)


def output_from_json(value: object) -> f.OutputFacts:
    """Read what `output_to_json` wrote."""
    plain = values.table("output facts", value)
    req_ids = values.names("req_ids", plain["req_ids"])
    sampled = values.numbers("num_sampled", plain["num_sampled"], 0, values.MAX_TOKENS)
    rejected = None
    if plain["num_rejected"] is not None:
        rejected = values.numbers("num_rejected", plain["num_rejected"], 0, values.MAX_TOKENS)
    if len(sampled) != len(req_ids) or (rejected is not None and len(rejected) != len(req_ids)):
        raise values.refuse("num_sampled", "one value for each request", len(sampled))
    return f.OutputFacts(values.whole("step", plain["step"], 0, 1 << 60), req_ids, sampled, rejected)


def plan_from_json(value: object, groups: int) -> f.PlanFacts:
    """Read what `plan_to_json` wrote."""
    plain = values.table("plan", value)
    arrays: dict[str, Any] = {
        name: None if plain[name] is None else values.array(name, plain[name]) for name in _ARRAYS
    }
    flags: dict[str, Any] = {}
    for name in ("host_exact", "local", "draft"):
        if not isinstance(plain[name], bool):
            raise values.refuse(name, "true or false", plain[name])
        flags[name] = plain[name]
    counts: dict[str, Any] = {
        name: values.maybe(values.whole, name, plain[name])
        for name in ("num_tokens", "num_reqs", "slot_capacity", "num_slots")
    }
    return f.PlanFacts(
        step=values.whole("plan.step", plain["step"], 0, 1 << 60),
        group=values.whole("plan.group", plain["group"], 0, groups - 1),
        req_ids=values.names("plan.req_ids", plain["req_ids"]),
        num_common_prefix_blocks=values.whole("num_common_prefix_blocks", plain["num_common_prefix_blocks"]),
        **arrays,
        **counts,
        **flags,
    )
