"""What exactly is wrong with a plan's lengths: the device's, the host's copy, and one rank's part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_plan_guard import rules
from kv_plan_guard.violation import Code

if TYPE_CHECKING:
    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.findings import Findings
    from kv_plan_guard.lines import Lines
    from kv_plan_guard.mirror import Mirror

I64: TypeAlias = NDArray[np.int64]


def judge_lengths(plan: PlanFacts, lines: Lines, mirror: Mirror, found: Findings) -> None:
    """Each row's length is its request's; the host's copy agrees as far as its builder declares; padding has none."""
    size = len(lines.slots)
    padded = size if plan.num_reqs is None else plan.num_reqs
    if mirror.groups[plan.group].layout.kind == "cross":
        low = high = mirror.encoder[lines.slots]
        why = "tokens that the encoder produced for this request"
    else:
        low, high = lines.start + lines.counts, lines.high + lines.counts
        if lines.fixed:
            high = low
        why = ""
    if lines.empty:
        low = high = np.zeros(size, np.int64)
    device = plan.seq_lens
    if plan.draft:
        device = None  # a drafter's lengths follow its own schedule
    if device is not None and len(device) >= size:
        wrong = np.flatnonzero((device[:size] < low) | (device[:size] > high))
        for row in wrong.tolist():
            found.add(Code.LEN, "seq_lens", int(low[row]), int(device[row]), row=row, why=why)
    host = plan.seq_lens_host
    if host is not None and len(host) >= size and not plan.draft:
        true = low if device is None or len(device) < size else np.clip(device[:size].astype(np.int64), low, high)
        slack = np.zeros(size, np.int64) if plan.host_exact else _in_flight(mirror, lines)
        for row in np.flatnonzero((host[:size] < true) | (host[:size] > true + slack)).tolist():
            code = Code.LEN if device is None else Code.LEN_HOST_DEV
            reason = "declared exact" if plan.host_exact else f"may run ahead by {int(slack[row])}"
            found.add(code, "seq_lens_host", int(true[row]), int(host[row]), row=row, why=reason)
    for what in ("seq_lens", "seq_lens_host"):
        part = getattr(plan, what)
        if part is not None:
            for at in np.flatnonzero(part[size:padded]).tolist():
                found.add(Code.PAD, what, 0, int(part[size + at]), why="a padded row has a length", column=size + at)


def _in_flight(mirror: Mirror, lines: Lines) -> I64:
    """Drafts per row that a host length may count although they can still be rejected."""
    drafts = np.zeros(len(mirror.names), np.int64)
    for record in list(mirror.records):
        if record.drafts is not None:
            alive = mirror.life[record.slots] == record.lives
            drafts[record.slots[alive]] += record.drafts[alive]
    return drafts[lines.slots]


def judge_local_lengths(plan: PlanFacts, lines: Lines, mirror: Mirror, found: Findings) -> None:
    """A rank of a sharded group holds its own part of each length."""
    part = plan.local_seq_lens
    if part is None:
        return
    size = len(lines.slots)
    layout = mirror.groups[plan.group].layout
    ends = lines.start + lines.counts
    if layout.shards > 1:
        expected = rules.local_length(ends, layout.shards, layout.shard_rank, layout.interleave)
        found.compare(Code.LEN, "local_seq_lens", expected, part[:size].astype(np.int64), "this rank's part")
    elif (part[:size] < 0).any():
        row = int(np.flatnonzero(part[:size] < 0)[0])
        found.add(Code.LEN, "local_seq_lens", 0, int(part[row]), row=row, why="negative")
    for at in np.flatnonzero(part[size:]).tolist():
        actual: Any = int(part[size + at])
        found.add(Code.PAD, "local_seq_lens", 0, actual, why="a padded row has a length", column=size + at)
