"""Facts as plain JSON data and back. Reading trusts nothing: every value has a type and a bound.

The bounds keep a hostile file from asking for much memory: what a file can make the guard allocate is proportional to
the file's own size and to `MAX_POOL`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard import facts as f
from kv_plan_guard.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_TOKENS: Final = 1 << 22  # one request, and one step
MAX_LENGTH: Final = 1 << 27  # positions and lengths
MAX_POOL: Final = 1 << 22  # blocks of a group
MAX_ID: Final = (1 << 31) - 1
MAX_LIST: Final = 1 << 24
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


def refuse(what: str, wanted: str, got: object) -> ReplayError:
    """The error for one bad value; the value is shown in at most 60 characters."""
    shown = repr(got)
    return ReplayError(f"{what} must be {wanted}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


def whole(what: str, value: object, low: int = 0, high: int = MAX_LENGTH) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refuse(what, f"a whole number from {low} to {high}", value)
    return value


def text(what: str, value: object) -> str:
    """A text of at most 4096 characters."""
    if not isinstance(value, str) or len(value) > 4096:
        raise refuse(what, "a text of at most 4096 characters", value)
    return value


def items(what: str, value: object) -> list[Any]:
    """A list of bounded length."""
    if not isinstance(value, list) or len(value) > MAX_LIST:
        raise refuse(what, f"a list of at most {MAX_LIST} values", value)
    return value


def table(what: str, value: object) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise refuse(what, "an object", value)
    return value


def numbers(what: str, value: object, low: int = -1, high: int = MAX_ID) -> list[int]:
    """A list of whole numbers within bounds."""
    found = items(what, value)
    for number in found:
        whole(what, number, low, high)
    return found


def ids(what: str, value: object) -> list[int]:
    """Block ids; the guard itself judges those that are out of range."""
    return numbers(what, value, -(1 << 31), MAX_ID)


def names(what: str, value: object) -> list[str]:
    """A list of texts."""
    return [text(what, name) for name in items(what, value)]


def _rows(what: str, value: object, groups: int) -> list[list[int]]:
    rows = items(what, value)
    if len(rows) != groups:
        raise refuse(what, f"one list for each of {groups} groups", value)
    return [ids(what, row) for row in rows]


def _maybe(read: Callable[[str, object], Any], what: str, value: object) -> Any:
    return None if value is None else read(what, value)


def step_from_json(value: object, groups: int) -> f.StepFacts:
    """Read what `step_to_json` wrote; ReplayError names what is not as it must be."""
    plain = table("step facts", value)
    cached = table("cached", plain["cached"])
    scheduled = {
        text("request", n): whole("tokens", v, 0, MAX_TOKENS) for n, v in _pairs(plain["num_scheduled_tokens"])
    }
    if sum(scheduled.values()) > MAX_TOKENS:
        raise refuse("num_scheduled_tokens", f"at most {MAX_TOKENS} in all", sum(scheduled.values()))
    return f.StepFacts(
        step=whole("step", plain["step"], 0, 1 << 60),
        num_scheduled_tokens=scheduled,
        new=[_new(request, groups) for request in items("new", plain["new"])],
        cached=f.CachedRequests(
            names("cached.req_ids", cached["req_ids"]),
            [
                None if rows is None else _rows("new_block_ids", rows, groups)
                for rows in items("new_block_ids", cached["new_block_ids"])
            ],
            numbers("num_computed_tokens", cached["num_computed_tokens"], 0, MAX_LENGTH),
            frozenset(names("resumed", cached["resumed"])),
        ),
        finished=frozenset(names("finished", plain["finished"])),
        preempted=frozenset(names("preempted", plain["preempted"])),
        spec_tokens={text("request", n): ids("spec_tokens", v) for n, v in _pairs(plain["spec_tokens"])},
        encoder_tokens={
            text("request", n): whole("encoder_tokens", v, 0, MAX_TOKENS) for n, v in _pairs(plain["encoder_tokens"])
        },
        num_common_prefix_blocks=numbers("num_common_prefix_blocks", plain["num_common_prefix_blocks"], 0),
        block_replacements={
            text("request", n): _rows("block_replacements", v, groups) for n, v in _pairs(plain["block_replacements"])
        },
        connector=None if plain["connector"] is None else _connector(plain["connector"], groups),
        settled=None if plain["settled"] is None else whole("settled", plain["settled"], -(1 << 60), 1 << 60),
    )


def _pairs(value: object) -> list[tuple[str, Any]]:
    return list(table("a map by request", value).items())


def _new(value: object, groups: int) -> f.NewRequest:
    parts = items("new request", value)
    if len(parts) != 5:
        raise refuse("new request", "five values", value)
    known = None if parts[3] is None else whole("known tokens", parts[3])
    return f.NewRequest(
        text("request", parts[0]),
        _rows("block_ids", parts[1], groups),
        whole("num_computed_tokens", parts[2]),
        known,
        whole("encoder tokens", parts[4], 0, MAX_TOKENS),
    )


def _connector(value: object, groups: int) -> f.ConnectorFacts:
    plain = table("connector", value)

    def keyed(name: str, read: Callable[[str, object], Any]) -> dict[tuple[str, int], Any]:
        found = {}
        for entry in items(name, plain[name]):
            parts = items(name, entry)
            if len(parts) != 3:
                raise refuse(name, "entries of request, group and value", entry)
            found[text("request", parts[0]), whole("group", parts[1], 0, groups - 1)] = read(name, parts[2])
        return found

    return f.ConnectorFacts(
        text("connector", plain["name"]),
        [transfer_from_json(transfer, groups) for transfer in items("started", plain["started"])],
        frozenset(names("finished", plain["finished"])),
        keyed("tables", ids),
        keyed("token_counts", whole),
        {text("request", n): _rows("waiting", v, groups) for n, v in _pairs(plain["waiting"])},
    )


def transfer_from_json(value: object, groups: int) -> f.Transfer:
    """Read what `transfer_to_json` wrote."""
    plain = table("transfer", value)
    if plain["kind"] not in ("load", "store"):
        raise refuse("transfer.kind", "load or store", plain["kind"])
    return f.Transfer(
        job=text("job", plain["job"]),
        req_id=text("request", plain["req_id"]),
        group=whole("group", plain["group"], 0, groups - 1),
        kind=plain["kind"],
        block_ids=ids("block_ids", plain["block_ids"]),
        first_block=_maybe(whole, "first_block", plain["first_block"]),
        first_token=_maybe(whole, "first_token", plain["first_token"]),
        num_tokens=None if plain["num_tokens"] is None else whole("num_tokens", plain["num_tokens"], 0, MAX_TOKENS),
        source_blocks=_maybe(ids, "source_blocks", plain["source_blocks"]),
        computed_before=_maybe(whole, "computed_before", plain["computed_before"]),
        slots=_maybe(_wide, "slots", plain["slots"]),
        logical_rows=_maybe(_wide, "logical_rows", plain["logical_rows"]),
        local_rows=_maybe(_wide, "local_rows", plain["local_rows"]),
        pool_rows=_maybe(whole, "pool_rows", plain["pool_rows"]),
    )


def _wide(what: str, value: object) -> list[int]:
    return numbers(what, value, -(1 << 60), 1 << 60)


def output_from_json(value: object) -> f.OutputFacts:
    """Read what `output_to_json` wrote."""
    plain = table("output facts", value)
    req_ids = names("req_ids", plain["req_ids"])
    sampled = numbers("num_sampled", plain["num_sampled"], 0, MAX_TOKENS)
    rejected = None
    if plain["num_rejected"] is not None:
        rejected = numbers("num_rejected", plain["num_rejected"], 0, MAX_TOKENS)
    if len(sampled) != len(req_ids) or (rejected is not None and len(rejected) != len(req_ids)):
        raise refuse("num_sampled", "one value for each request", len(sampled))
    return f.OutputFacts(whole("step", plain["step"], 0, 1 << 60), req_ids, sampled, rejected)


def plan_from_json(value: object, groups: int) -> f.PlanFacts:
    """Read what `plan_to_json` wrote."""
    plain = table("plan", value)
    arrays: dict[str, Any] = {name: None if plain[name] is None else _array(name, plain[name]) for name in _ARRAYS}
    flags: dict[str, Any] = {}
    for name in ("host_exact", "local", "draft"):
        if not isinstance(plain[name], bool):
            raise refuse(name, "true or false", plain[name])
        flags[name] = plain[name]
    counts: dict[str, Any] = {
        name: _maybe(whole, name, plain[name]) for name in ("num_tokens", "num_reqs", "slot_capacity", "num_slots")
    }
    return f.PlanFacts(
        step=whole("plan.step", plain["step"], 0, 1 << 60),
        group=whole("plan.group", plain["group"], 0, groups - 1),
        req_ids=names("plan.req_ids", plain["req_ids"]),
        num_common_prefix_blocks=whole("num_common_prefix_blocks", plain["num_common_prefix_blocks"]),
        **arrays,
        **counts,
        **flags,
    )


def _array(name: str, value: object) -> Any:
    plain = table(name, value)
    if plain["dtype"] not in ("int32", "int64"):
        raise refuse(f"{name}.dtype", "int32 or int64", plain["dtype"])
    bound = 1 << (31 if plain["dtype"] == "int32" else 63)
    data = numbers(f"{name}.data", plain["data"], -bound, bound - 1)
    shape = numbers(f"{name}.shape", plain["shape"], 0, MAX_LIST)
    if len(shape) != (2 if name == "block_table" else 1) or _product(shape) != len(data):
        raise refuse(f"{name}.shape", f"the shape of {len(data)} values", shape)
    return np.array(data, plain["dtype"]).reshape(shape)


def _product(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
