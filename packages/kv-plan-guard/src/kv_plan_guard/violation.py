"""Verdict codes, and what an audit found.

The codes are the vocabulary of the public cases; INT32 is added, because a slot that does not fit its type is a fault
of its own on Ascend, whose slot mapping is int32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

#: Quoted names and numbers in a circumstance.
_NAMES: Final = re.compile(r"'[^']*'|\d+")


class Code(StrEnum):
    """The invariant that is broken; `MEANING` has a sentence for each."""

    ROW = "ROW"
    ROW_SHORT = "ROW_SHORT"
    ROW_OVERFLOW = "ROW_OVERFLOW"
    TAIL = "TAIL"
    SLOT = "SLOT"
    POS = "POS"
    LEN = "LEN"
    LEN_HOST_DEV = "LEN_HOST_DEV"
    QSL = "QSL"
    ROWMAP = "ROWMAP"
    RANGE = "RANGE"
    INT32 = "INT32"
    NULL_USE = "NULL_USE"
    OWN = "OWN"
    XWRITE = "XWRITE"
    PAD = "PAD"
    STATE = "STATE"
    LIFETIME = "LIFETIME"
    CONN = "CONN"
    CYCLE = "CYCLE"
    CAPACITY = "CAPACITY"


MEANING: Final[dict[Code, str]] = {
    Code.ROW: "used columns of a block table row differ from the blocks that the scheduler gave this request",
    Code.ROW_SHORT: "a row covers fewer tokens than the request has after this step",
    Code.ROW_OVERFLOW: "a request holds more blocks than a block table row has columns",
    Code.TAIL: "columns behind the used ones hold live block ids (information, unless a consumer reads that far)",
    Code.SLOT: "a slot differs from the rule of its own group",
    Code.POS: "a position, or the count of computed tokens behind it, differs from the request's",
    Code.LEN: "a sequence length is wrong, or more tokens are scheduled than are known",
    Code.LEN_HOST_DEV: "the host's copy of a length and the device's disagree beyond what the builder declares",
    Code.QSL: "query_start_loc is not the running sum of the scheduled tokens, or does not end at the token count",
    Code.ROWMAP: "a batch row stands for the wrong request, or two parts of one plan have different row counts",
    Code.RANGE: "a block id or a column lies outside of its pool or row",
    Code.INT32: "a slot does not fit the type of the slot mapping and wraps",
    Code.NULL_USE: "the null block stands in a needed column, or is written",
    Code.OWN: "a needed column or a write names a block that is not this request's",
    Code.XWRITE: "a block written in this step is held by another live request",
    Code.PAD: "a padded row or token is not inert (slot -1, length 0, null row)",
    Code.STATE: "a recurrent state's column, block or accepted count is another request's or in the wrong unit",
    Code.LIFETIME: "a block is given away while a step or a transfer in flight still uses it",
    Code.CONN: "the connector's own plan disagrees with the scheduler's blocks",
    Code.CYCLE: "a request's new/cached/resumed/finished state is impossible",
    Code.CAPACITY: "a plan is longer than its buffer or its captured graph",
}

Value: TypeAlias = int | str | list[int] | None


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant. Of a fault that breaks one invariant in many places the first place is kept, and `count`.

    step, group
        `group` is None where the fault is not of one group (CYCLE, QSL).
    request, row, token, column
        Request id; batch row; token index in the batch; column of the block table row. None where it has none.
    block
        The kernel or manager block in question, as `block_unit` says; None where there is none.
    what
        The part of the plan: "block_table", "slot_mapping", "seq_lens", ..., or "scheduler" for CYCLE and the like.
    expected, actual
        Plain values; None where there is none.
    why
        One clause that names the circumstance ("owned by 'B' since step 12").
    count
        Places where this code holds in this plan and part.
    """

    code: Code
    step: int
    group: int | None
    what: str
    expected: Value
    actual: Value
    request: str | None = None
    row: int | None = None
    token: int | None = None
    column: int | None = None
    block: int | None = None
    block_unit: Literal["manager", "kernel"] = "manager"
    why: str = ""
    count: int = 1

    @property
    def signature(self) -> tuple[str, int | None, str, str]:
        """What makes two findings "the same" for log mode: code, group, part, and circumstance without its names."""
        return (self.code.value, self.group, self.what, _NAMES.sub("", self.why))

    def to_json(self) -> dict[str, Any]:
        """Every field as plain data."""
        return {name: getattr(self, name) for name in self.__slots__} | {"code": self.code.value}


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of one audit: `violations` (empty when clean), `notes` (TAIL), tokens and rows that were compared.

    `report` is the text report of all violations; empty when clean. Whether the plan's tokens may be released is the
    caller's decision: `Guard.gate` makes it.
    """

    step: int
    group: int | None
    violations: tuple[Violation, ...] = ()
    notes: tuple[Violation, ...] = ()
    rows: int = 0
    tokens: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.violations


@dataclass(frozen=True, slots=True)
class Coverage:
    """One line of the coverage table: a check, whether it was active in this run, how often it ran, and why not."""

    code: Code
    active: bool
    ran: int
    why: str = ""
