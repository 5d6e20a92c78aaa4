"""What a thread writes into its ring: rows of one event, and packed rows of several that follow each other.

A stamp into a list costs a tenth of a row, so a thread keeps the stamps of what it is doing and writes them together.
The recorder writes packed rows and the spool holds them; `expand` makes the events of them, one `Code` each, when a
file is read. Everything behind that, sealed files too, knows events only.

A row is a tuple of integers: (code, time, subject, value) for one event, else a `Packed` code and its fields, with 0
for what did not happen: the clock is never 0. Times are ns.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from layerwise_sched.model import DependencyKind
from layerwise_sched.timeline import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Event = tuple[int, int, int, int]

WIDTH: Final = 4
"""Integers of a row of one event."""


class Packed(IntEnum):
    """Several events in one row."""

    RECEIVED = 64
    """The receive thread, from a task's dequeue to its `task_done`, or a part of that: the fields below."""
    LAYER = 65
    """The compute thread in one layer: step, layer, begin and end of its stall, gate's id and layer and when it was
    recorded, when the save was recorded."""
    SAVED = 66
    """The send thread: step, layer, begin and end of its wait for the save's NPU event, the save's CPU event set."""


# The fields of RECEIVED. Each span has its begin and its end beside each other.
CID, PLACE, DEQUEUED = 1, 2, 3
SAVE_CPU, SAVE_CPU_END = 4, 5
SAVE_NPU, SAVE_NPU_END = 6, 7
BUILD, BUILD_END = 8, 9
GATE, GATE_OPEN, GATE_END = 10, 11, 12
"""Begin of the gate's wait; from when on it was for the NPU (0: the boundary was not recorded); its end."""
CALL, CALL_END = 13, 14
"""The last backend call."""
DONE, QUEUED = 15, 16
UNMET = 17
"""`UNMET_SAVE` and `UNMET_GATE`: whose NPU event was seen incomplete when the wait began."""
RECEIVED_WIDTH = 18
UNMET_SAVE, UNMET_GATE = 1, 2

WIDTHS: Final[dict[int, int]] = {
    **dict.fromkeys(map(int, Code), WIDTH),
    Packed.RECEIVED: RECEIVED_WIDTH,
    Packed.LAYER: 9,
    Packed.SAVED: 6,
}
"""Integers of a row, its code included."""

# As plain integers: the hot paths put them into rows, and a row holds no objects of a class.
PACKED_RECEIVED, PACKED_LAYER, PACKED_SAVED = (int(code) for code in Packed)


def expand(row: Sequence[int]) -> list[Event]:
    """The events of a row: (time, code, subject, value) each, in the order in which they happened. The code is one
    of `WIDTHS`."""
    code = row[0]
    if code < PACKED_RECEIVED:
        return [(row[1], code, row[2], row[3])]
    return _PACKED[code](row)


def _received(row: Sequence[int]) -> list[Event]:
    cid = row[CID]
    events: list[Event] = []
    if row[DEQUEUED]:
        events.append((row[DEQUEUED], Code.DEQUEUE, cid, row[PLACE]))
    # A span whose end is 0 is one that the thread was still in: what it waits for is not met, so it is no span. One
    # whose begin is 0 was cut in two by the thread that ended the recording.
    if row[SAVE_CPU] and row[SAVE_CPU_END]:
        events.append((row[SAVE_CPU], Code.SAVE_CPU, cid, row[SAVE_CPU_END]))
    if row[SAVE_NPU]:
        if row[UNMET] & UNMET_SAVE:
            events.append((row[SAVE_NPU], Code.UNMET, cid, DependencyKind.SAVE_NPU))
        if row[SAVE_NPU_END]:
            events.append((row[SAVE_NPU], Code.SAVE_NPU, cid, row[SAVE_NPU_END]))
    if row[BUILD] and row[BUILD_END]:
        events.append((row[BUILD], Code.BUILD, cid, row[BUILD_END]))
    if row[GATE]:
        if row[UNMET] & UNMET_GATE:
            events.append((row[GATE], Code.UNMET, cid, DependencyKind.GATE_NPU))
        middle, end = row[GATE_OPEN], row[GATE_END]
        if middle or end:
            events.append((row[GATE], Code.GATE_CONDITION, cid, middle or end))
        if middle and end:
            events.append((middle, Code.GATE_NPU, cid, end))
    if row[CALL] and row[CALL_END]:
        events.append((row[CALL], Code.TRANSFER, cid, row[CALL_END]))
    if row[DONE]:
        events.append((row[DONE], Code.DONE, cid, row[QUEUED]))
    return events


def _layer(row: Sequence[int]) -> list[Event]:
    _, step, layer, begin, end, gate, gate_layer, opened, saved = row
    events: list[Event] = [(begin, Code.STALL, layer, end)]
    if opened:
        events.append((opened, Code.GATE_RECORDED, gate, gate_layer))
    if saved:
        events.append((saved, Code.SAVE_RECORDED, layer, step))
    return events


def _saved(row: Sequence[int]) -> list[Event]:
    _, step, layer, begin, end, at = row
    return [(begin, Code.SEND_WAIT, layer, end), (at, Code.SAVE_SET, layer, step)]


_PACKED: Final[dict[int, Callable[[Sequence[int]], list[Event]]]] = {
    Packed.RECEIVED: _received,
    Packed.LAYER: _layer,
    Packed.SAVED: _saved,
}
