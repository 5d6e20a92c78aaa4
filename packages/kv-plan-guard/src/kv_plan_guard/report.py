"""Reports in the manner of ASan: the first line says class, request, group, step and where; the same form for all.

Then expected against actual with the neighbourhood, the history of the blocks in question, the step as it was
scheduled, the active checks, the pair and the configuration.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard import config as config_module
from kv_plan_guard import rules
from kv_plan_guard.coverage import NOT_VISIBLE
from kv_plan_guard.violation import MEANING

if TYPE_CHECKING:
    from kv_plan_guard.facts import PlanFacts, StepFacts
    from kv_plan_guard.guard import Guard
    from kv_plan_guard.stats import Stats
    from kv_plan_guard.violation import Coverage, Violation

NAME: Final = "kv-plan-guard"
#: Places to the left and right of the fault in the map, findings in full, requests named in the step's summary.
AROUND: Final = 4
FULL: Final = 8
NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Context:
    """What a report may look at besides its findings."""

    guard: Guard
    plan: PlanFacts | None
    replay_file: str | None


def first_line(violation: Violation) -> str:
    """Class, request, group, step and where, in one line."""
    who = f" of request {violation.request!r}" if violation.request is not None else ""
    group = "" if violation.group is None else f", group {violation.group}"
    places = [
        f"{name} {value}"
        for name, value in (("row", violation.row), ("token", violation.token), ("column", violation.column))
        if value is not None
    ]
    where = f", {', '.join(places)}" if places else ""
    return (
        f"{violation.code.value} in {violation.what}{who}{group}, step {violation.step}{where}: "
        f"expected {violation.expected!r}, got {violation.actual!r}"
    )


def as_text(violations: tuple[Violation, ...], context: Context) -> str:
    """The text report."""
    lines: list[str] = []
    for number, violation in enumerate(violations[:FULL]):
        lines.append(f"=={NAME}== ERROR: {first_line(violation)}")
        times = f" ({violation.count} places)" if violation.count > 1 else ""
        lines.append(f"  {MEANING[violation.code]}{times}")
        if violation.why:
            lines.append(f"  {violation.why}")
        if number == 0 or violation.what != violations[number - 1].what:
            lines += [f"  {line}" for line in _map(violation, context)]
        lines += [f"  {line}" for line in _history(violation, context)]
    if len(violations) > FULL:
        lines.append(f"  ... and {len(violations) - FULL} more findings")
    lines += [f"  {line}" for line in _step(context)]
    lines += [f"  {line}" for line in _settings(context)]
    first = violations[0]
    lines.append(f"=={NAME}== SUMMARY: {first.code.value} ({len(violations)} findings in step {first.step})")
    return "\n".join(lines)


def as_json(violations: tuple[Violation, ...], context: Context) -> str:
    """The same as one line of JSON."""
    guard = context.guard
    record = guard.mirror.current
    body: dict[str, Any] = {
        "tool": NAME,
        "version": 1,
        "summary": first_line(violations[0]),
        "violations": [
            v.to_json() | {"meaning": MEANING[v.code], "history": _events(v, context), "map": _map(v, context)}
            for v in violations[:FULL]
        ],
        "findings": len(violations),
        "step": None if record is None else _summary(record.summary, record.settled),
        "active": [line.code.value for line in guard.coverage() if line.active],
        "inactive": {line.code.value: line.why for line in guard.coverage() if not line.active},
        "pair": guard.layout.pair,
        "rank": guard.layout.rank,
        "layout": asdict(guard.layout),
        "config": config_module.to_json(guard.config),
        "replay_file": context.replay_file,
    }
    return json.dumps(body)


# -- the neighbourhood -------------------------------------------------------------------------------------------------


def _map(violation: Violation, context: Context) -> list[str]:
    """A few places around the fault, expected over actual, with a mark below."""
    plan = context.plan
    if plan is None or (violation.group is None and violation.token is None):
        return []
    if violation.token is not None and violation.what in ("slot_mapping", "positions"):
        return _token_map(violation, plan, context)
    if violation.column is not None and violation.row is not None and violation.what == "block_table":
        return _row_map(violation, plan, context)
    if violation.row is not None and violation.what in ("seq_lens", "seq_lens_host"):
        return _length_map(violation, plan, violation.row)
    return []


def _token_map(violation: Violation, plan: PlanFacts, context: Context) -> list[str]:
    """Tokens around the fault: where they are, and where they belong by the request's own blocks."""
    token = violation.token or 0
    low = max(0, token - AROUND)
    lines: dict[str, list[Any]] = {}
    for label, part in (("position", plan.positions), ("slot", plan.slot_mapping)):
        if part is not None:
            lines[label] = [int(value) for value in part[low : token + AROUND + 1]]
    width = max((len(values) for values in lines.values()), default=0)
    if violation.what == "slot_mapping" and isinstance(violation.expected, int) and plan.positions is not None:
        lines["belongs"] = _belongs(violation, plan, context, low, width)
    return _table({"token": list(range(low, low + width)), **lines}, token - low)


def _belongs(violation: Violation, plan: PlanFacts, context: Context, low: int, width: int) -> list[Any]:
    """Slots of the neighbours that are tokens of the same request, by its row in the mirror; "." for the others."""
    mirror = context.guard.mirror
    slot = mirror.index.get(violation.request or "")
    offsets, row = plan.query_start_loc, violation.row
    if slot is None or offsets is None or row is None or row + 1 >= len(offsets) or plan.positions is None:
        return ["."] * width
    group = mirror.groups[plan.group]
    line = group.kernel_row(slot)
    first, end = int(offsets[row]), int(offsets[row + 1])
    inside = [at for at in range(low, low + width) if first <= at < end and at < len(plan.positions)]
    where = int(mirror.low[slot]) + np.array(inside, np.int64) - first
    mine, columns, within = rules.kernel_column_and_offset(group.layout, where)
    known = {
        at: int(line[column]) * group.layout.kernel_size + int(offset) if own else -1
        for at, own, column, offset in zip(inside, mine, columns, within, strict=True)
        if not own or column < len(line)
    }
    return [known.get(at, ".") for at in range(low, low + width)]


def _row_map(violation: Violation, plan: PlanFacts, context: Context) -> list[str]:
    assert plan.block_table is not None
    assert violation.column is not None
    assert violation.row is not None
    mirror = context.guard.mirror
    column, low = violation.column, max(0, violation.column - AROUND)
    slot = mirror.index.get(violation.request or "")
    line = np.zeros(0, np.int32) if slot is None else mirror.groups[plan.group].kernel_row(slot)
    actual = plan.block_table[violation.row, low : column + AROUND + 1].tolist()
    expected: list[Any] = line[low : column + AROUND + 1].tolist()
    expected += ["."] * (len(actual) - len(expected))
    columns = list(range(low, low + len(actual)))
    return _table({"column": columns, "expected": expected, "actual": actual}, column - low)


def _length_map(violation: Violation, plan: PlanFacts, row: int) -> list[str]:
    low = max(0, row - AROUND)
    lines: dict[str, list[Any]] = {"row": list(range(low, min(row + AROUND + 1, len(plan.req_ids))))}
    for what in ("seq_lens", "seq_lens_host"):
        part = getattr(plan, what)
        if part is not None:
            lines[what] = part[low : row + AROUND + 1].tolist()
    return _table(lines, row - low)


def _table(lines: dict[str, list[Any]], mark: int) -> list[str]:
    cells = {label: [str(value) for value in values] for label, values in lines.items()}
    width = max((len(cell) for values in cells.values() for cell in values), default=1)
    head = max(len(label) for label in cells)
    text = [f"{label:<{head}}  " + " ".join(f"{cell:>{width}}" for cell in values) for label, values in cells.items()]
    return [*text, " " * (head + 2 + mark * (width + 1)) + "^" * width]


# -- history and step --------------------------------------------------------------------------------------------------


def _blocks(violation: Violation, context: Context) -> list[int]:
    """Manager blocks in question: the one named, and those that the expected and actual values lie in."""
    if violation.group is None:
        return []
    layout = context.guard.layout.groups[violation.group]
    found = []
    for value in (violation.expected, violation.actual):
        if isinstance(value, int) and value >= 0:
            if violation.what == "slot_mapping" and violation.code.value in ("SLOT", "INT32", "NULL_USE", "PAD"):
                found.append(value // layout.block_size)
            elif violation.what == "block_table" and violation.code.value in ("ROW", "OWN", "NULL_USE", "XWRITE"):
                found.append(value // layout.ratio)
    if violation.block is not None:
        found.append(violation.block // (layout.ratio if violation.block_unit == "kernel" else 1))
    return list(dict.fromkeys(found))[:3]


def _events(violation: Violation, context: Context) -> dict[str, list[str]]:
    if violation.group is None:
        return {}
    group = context.guard.mirror.groups[violation.group]
    found = {}
    for block in _blocks(violation, context):
        times = int(group.generation[block]) if 0 <= block < len(group.generation) else 0
        lines = [
            f"step {e.step}: {e.what} {'to' if e.what == 'given' else 'by'} {e.request!r}" for e in group.events(block)
        ]
        found[f"block {block}, generation {times}"] = lines or ["no record"]
    return found


def _history(violation: Violation, context: Context) -> list[str]:
    return [f"{block}: {'; '.join(events)}" for block, events in _events(violation, context).items()]


def _summary(facts: StepFacts, settled: int) -> dict[str, Any]:
    cached = facts.cached
    named = dict(list(facts.num_scheduled_tokens.items())[:NAMED])
    return {
        "step": facts.step,
        "settled": settled,
        "requests": len(facts.num_scheduled_tokens),
        "tokens": sum(facts.num_scheduled_tokens.values()),
        "new": [request.req_id for request in facts.new][:NAMED],
        "cached": len(cached.req_ids),
        "resumed": sorted(cached.resumed)[:NAMED],
        "finished": sorted(facts.finished)[:NAMED],
        "preempted": sorted(facts.preempted)[:NAMED],
        "drafts": sum(len(tokens) for tokens in facts.spec_tokens.values()),
        "connector": None if facts.connector is None else facts.connector.name,
        "scheduled": named,
    }


def _step(context: Context) -> list[str]:
    record = context.guard.mirror.current
    if record is None:
        return []
    s = _summary(record.summary, record.settled)
    return [
        f"step {s['step']}: {s['requests']} requests, {s['tokens']} tokens ({s['drafts']} drafts); "
        f"new {s['new']}, cached {s['cached']}, resumed {s['resumed']}, finished {s['finished']}, "
        f"preempted {s['preempted']}; settled up to step {s['settled']}; connector {s['connector']}",
        f"scheduled tokens: {s['scheduled']}",
    ]


def _settings(context: Context) -> list[str]:
    guard = context.guard
    lines = guard.coverage()
    active = " ".join(line.code.value for line in lines if line.active)
    inactive = ", ".join(f"{line.code.value} ({line.why})" for line in lines if not line.active)
    text = [f"active checks: {active}", f"inactive: {inactive or 'none'}"]
    layout = guard.layout
    for number, group in enumerate(layout.groups):
        shard = f", shard {group.shard_rank} of {group.shards}" if group.shards > 1 else ""
        text.append(
            f"group {number}: {group.kind}, block {group.block_size} (kernel {group.kernel_size}), "
            f"pool {group.pool_blocks}, slots {group.slots} {group.slot_dtype}{shard}"
        )
    text.append(f"pair {layout.pair or 'unknown'}, rank {layout.rank or 'unknown'}")
    text.append(f"config {json.dumps(config_module.to_json(guard.config))}")
    if context.replay_file:
        text.append(f"replay: kv-plan-guard replay {context.replay_file}")
    return text


def coverage_text(lines: tuple[Coverage, ...], stats: Stats | None = None) -> str:
    """The coverage table."""
    rows = [("check", "active", "ran", "remark")]
    rows += [(line.code.value, "yes" if line.active else "no", str(line.ran), line.why) for line in lines]
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    text.append("not visible at plan level: " + "; ".join(NOT_VISIBLE))
    if stats is not None:
        text.append(
            f"{stats.steps} steps, {stats.audits} audits, {stats.bad_audits} with findings, "
            f"{stats.slow_audits} judged in full"
        )
    return "\n".join(text)
