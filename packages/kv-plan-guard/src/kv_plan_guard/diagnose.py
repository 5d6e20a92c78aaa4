"""What exactly is wrong with a plan: every invariant of the vocabulary, one after the other.

Runs only on plans that the quick comparison did not call clean, and on the kinds of plans that it does not know (draft,
rank-local, cross attention). Lengths, rows and slots of one group are judged in `diagnose_lengths`, `diagnose_table`
and `diagnose_slots`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard import rules
from kv_plan_guard.diagnose_lengths import judge_lengths, judge_local_lengths
from kv_plan_guard.diagnose_slots import judge_slots, judge_state
from kv_plan_guard.diagnose_table import judge_table
from kv_plan_guard.findings import Findings
from kv_plan_guard.lines import Lines
from kv_plan_guard.violation import Code, Violation

if TYPE_CHECKING:
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.layout import Layout
    from kv_plan_guard.mirror import Mirror

I64: TypeAlias = NDArray[np.int64]


def diagnose(plan: PlanFacts, mirror: Mirror, layout: Layout, tail: bool) -> tuple[Violation, ...]:
    """Every finding of one plan, TAIL notes among them."""
    found = Findings(plan)
    if not _row_counts(plan, found):
        return found.violations()
    lines = _lines(plan, mirror, layout, found)
    if lines is None:
        return found.violations()
    group = mirror.groups[plan.group]
    cross = group.layout.kind == "cross"
    if not _offsets(plan, lines, found):
        return found.violations()
    if not cross:
        _positions(plan, lines, layout, found)
        lines.settle_start(plan, found)
    judge_lengths(plan, lines, mirror, found)
    judge_local_lengths(plan, lines, mirror, found)
    judge_table(plan, lines, mirror, found, tail)
    judge_slots(plan, lines, mirror, layout, found)
    judge_state(plan, lines, mirror, found)
    return found.violations()


def _row_counts(plan: PlanFacts, found: Findings) -> bool:
    """Row counts of the parts agree with each other; False where nothing more can be said."""
    size = len(plan.req_ids)
    padded = size if plan.num_reqs is None else plan.num_reqs
    fine = True
    if padded < size:
        found.add(Code.CAPACITY, "rows", size, padded, why="more requests than the dispatched batch has rows")
        fine = False
    places = None
    if plan.query_start_loc is not None:
        places = len(plan.query_start_loc) - 1
        if places < size:
            found.add(Code.ROWMAP, "query_start_loc", size, places, why="fewer rows than requests", batch_wide=True)
            fine = False
    table = plan.block_table
    if table is not None:
        if len(table) < size:
            found.add(Code.ROWMAP, "block_table", size, len(table), why="fewer rows than requests")
            fine = False
        elif plan.draft and places is not None and len(table) != places:
            why = "query_start_loc and block table of one plan have different row counts"
            found.add(Code.ROWMAP, "block_table", places, len(table), why=why)
            fine = False
    for what in ("seq_lens", "seq_lens_host", "local_seq_lens"):
        part = getattr(plan, what)
        if part is not None and len(part) < padded:
            why = "fewer values than the dispatched batch has rows"
            found.add(Code.CAPACITY, what, padded, len(part), why=why)
            fine = fine and len(part) >= size
    planned = plan.num_slots
    if planned is None and plan.slot_mapping is not None:
        planned = len(plan.slot_mapping) if plan.num_tokens is None else plan.num_tokens
    if plan.slot_capacity is not None and planned is not None and planned > plan.slot_capacity:
        why = "more slots are planned than their buffer holds"
        found.add(Code.CAPACITY, "slot_mapping", plan.slot_capacity, planned, why=why)
    return fine


def _lines(plan: PlanFacts, mirror: Mirror, layout: Layout, found: Findings) -> Lines | None:
    """What each batch row must be: its request, first position and number of tokens."""
    record = mirror.current
    assert record is not None
    slots: list[int] = []
    for row, name in enumerate(plan.req_ids):
        slot = mirror.index.get(name)
        if slot is None or mirror.stamp[slot] != record.step:
            state = "unknown to the scheduler" if slot is None else "not scheduled in this step"
            found.add(Code.ROWMAP, "rows", "a scheduled request", name, row=row, why=state, batch_wide=True)
            return None
        slots.append(slot)
    if plan.local and layout.pcp_size > 1:
        return _local_lines(plan, slots, mirror, layout, found)
    if len(set(slots)) != len(slots):
        row = next(at for at, slot in enumerate(slots) if slot in slots[:at])
        found.add(
            Code.ROWMAP, "rows", "each request once", plan.req_ids[row], row=row, why="comes twice", batch_wide=True
        )
        return None
    if not plan.draft and len(slots) != len(record.req_ids):
        missing = sorted(set(record.req_ids) - set(plan.req_ids))
        why = "scheduled requests have no row"
        found.add(Code.ROWMAP, "rows", len(record.req_ids), len(slots), why=f"{why}: {missing[:4]}", batch_wide=True)
        return None
    where = np.array(slots, np.intp)
    if plan.draft:
        return _draft_lines(plan, where, mirror, found)
    return Lines(where, mirror.low[where], mirror.high[where], mirror.scheduled[where])


def _draft_lines(plan: PlanFacts, slots: NDArray[np.intp], mirror: Mirror, found: Findings) -> Lines | None:
    """A drafter's rows: as many tokens as its own query_start_loc says, from where its positions start."""
    offsets = plan.query_start_loc
    size = len(slots)
    if offsets is None:
        return None
    whole = offsets[: size + 1].astype(np.int64)
    counts: I64 = whole[1:] - whole[:-1]
    if (counts < 0).any():
        row = int(np.flatnonzero(counts < 0)[0])
        found.add(Code.QSL, "query_start_loc", 0, int(counts[row]), row=row, why="falls", batch_wide=True)
        return None
    low = mirror.low[slots]
    start = low.copy()
    if plan.positions is not None and int(offsets[size]) <= len(plan.positions):
        begins = np.minimum(offsets[:size].astype(np.int64), max(len(plan.positions) - 1, 0))
        seen = plan.positions[begins].astype(np.int64)
        behind = (counts > 0) & (seen < low)
        for row in np.flatnonzero(behind).tolist():
            why = "a draft starts before the request's computed tokens"
            found.add(Code.POS, "positions", int(low[row]), int(seen[row]), row=row, why=why)
        start = np.where(counts > 0, np.maximum(seen, low), low)
    return Lines(slots, start, start, counts)


def _local_lines(plan: PlanFacts, slots: list[int], mirror: Mirror, layout: Layout, found: Findings) -> Lines | None:
    """Rows of one rank of a prefill context parallel batch."""
    offsets = plan.query_start_loc
    empty = offsets is not None and int(offsets[len(slots)]) == 0
    pieces: dict[int, list[tuple[int, int]]] = {}
    record = mirror.current
    assert record is not None
    optional = set()
    spread = any(group.shards > 1 for group in layout.groups)  # then prompts too short for all pieces are not cut
    for at, slot in enumerate(record.slots.tolist()):
        tokens = int(mirror.scheduled[slot])
        decode = bool(mirror.high[slot] >= mirror.known[slot] - record.sampled[at] - 1) and tokens > 0
        if decode and layout.pcp_decode != "replicated":
            optional.add(slot)
        whole = decode or (spread and rules.pcp_too_short(tokens, layout.pcp_size))
        pieces[slot] = rules.pcp_segments(tokens, layout.pcp_size, layout.pcp_rank, whole)
    starts, counts, seen = [], [], dict.fromkeys(pieces, 0)
    for row, slot in enumerate(slots):
        if empty:
            starts.append(0)
            counts.append(0)
            continue
        nth = seen[slot]
        if nth >= len(pieces[slot]):
            why = "more rows than this rank has pieces of the request"
            found.add(Code.ROWMAP, "rows", len(pieces[slot]), nth + 1, row=row, why=why, batch_wide=True)
            return None
        offset, length = pieces[slot][nth]
        seen[slot] = nth + 1
        starts.append(int(mirror.low[slot]) + offset)
        counts.append(length)
    if not empty or any(pieces[slot] for slot in pieces if slot not in optional):
        for slot, number in seen.items():
            if number < len(pieces[slot]) and slot not in optional:
                why = f"this rank's pieces of {mirror.names[slot]!r} have no row"
                found.add(Code.ROWMAP, "rows", len(pieces[slot]), number, why=why, batch_wide=True)
                return None
    start = np.array(starts, np.int64)
    return Lines(np.array(slots, np.intp), start, start, np.array(counts, np.int64), empty=empty)


def _offsets(plan: PlanFacts, lines: Lines, found: Findings) -> bool:
    offsets = plan.query_start_loc
    total = int(lines.counts.sum())
    tokens = total if plan.num_tokens is None else plan.num_tokens
    if total > tokens:
        why = "the dispatched batch has fewer tokens than are scheduled"
        found.add(Code.QSL, "query_start_loc", total, tokens, why=why, batch_wide=True)
        return False
    if offsets is None:
        return True
    size = len(lines.slots)
    expected = lines.offsets()
    wrong = np.flatnonzero(offsets[: size + 1] != expected)
    if len(wrong):
        at = int(wrong[0])
        why = "not the running sum of the scheduled tokens in row order"
        found.add(
            Code.QSL,
            "query_start_loc",
            int(expected[at]),
            int(offsets[at]),
            row=min(at, size - 1),
            why=why,
            batch_wide=True,
            count=len(wrong),
        )
        return False
    padded = size if plan.num_reqs is None else min(plan.num_reqs, len(offsets) - 1)
    tail = offsets[size : padded + 1].astype(np.int64)
    if (np.diff(tail) < 0).any() or int(tail[-1]) > tokens:
        why = "padded rows reach behind the dispatched tokens, or fall"
        found.add(Code.QSL, "query_start_loc", tokens, int(tail.max()), why=why, batch_wide=True)
        return False
    return True


def _positions(plan: PlanFacts, lines: Lines, layout: Layout, found: Findings) -> None:
    positions = plan.positions
    total = int(lines.counts.sum())
    if positions is None or not total:
        return
    if len(positions) < total:
        why = "fewer positions than tokens"
        found.add(Code.CAPACITY, "positions", total, len(positions), why=why, batch_wide=True)
        return
    actual = positions[:total].astype(np.int64)
    row = lines.row_of_token()
    offset = actual - lines.within()
    low, high = lines.low[row], lines.high[row]
    wrong = np.flatnonzero((offset < low) | (offset > high) | (offset != offset[lines.offsets()[:-1]][row]))
    seen: set[int] = set()
    for token in wrong.tolist():
        at = int(row[token])
        if at in seen:
            continue
        seen.add(at)
        expected = int(lines.low[at] + lines.within()[token])
        why = "" if lines.low[at] == lines.high[at] else f"{int(lines.high[at] - lines.low[at])} drafts are in flight"
        found.add(
            Code.POS,
            "positions",
            expected,
            int(actual[token]),
            row=at,
            token=token,
            why=why,
            batch_wide=True,
            count=int((row[wrong] == at).sum()),
        )
