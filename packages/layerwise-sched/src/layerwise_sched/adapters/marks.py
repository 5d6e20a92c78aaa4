"""Stamps of what happens to upstream's own events: the objects stay, only the class of one instance is refined.

A CPU event and a gate tell nobody when they open. Both are pure Python objects that several threads share, so they are
neither replaced nor wrapped: `event.__class__` becomes a subclass that stamps and then tells. What is told must never
raise into upstream's thread; `Loads` sees to that.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from layerwise_sched.timeline import clock

if TYPE_CHECKING:
    from layerwise_sched.adapters.loads import Loads


_SET = threading.Event.set
_NOTIFY_ALL = threading.Condition.notify_all


class SaveEvent(threading.Event):
    """`layer_save_finished_events[layer]`; told after the flag is set, so that "met" is never said too early."""

    _layerwise: tuple[Loads, int]

    def set(self) -> None:
        """Set the flag, then tell."""
        _SET(self)
        loads, layer = self._layerwise
        loads.save_finished(layer)


def mark_save(event: threading.Event, loads: Loads, layer: int) -> None:
    """Let one save event tell `loads` when it is set."""
    event._layerwise = loads, layer  # type: ignore[attr-defined]
    event.__class__ = SaveEvent


class GateMark:
    """What is known of one attention gate: its id, the layer whose attention it is, when its boundary was recorded.

    It does not know the gate: upstream drops one a layer, which is to go at once and not wait for a collection.
    """

    __slots__ = ("ident", "layer", "loads", "opened")

    def __init__(self, ident: int, layer: int, loads: Loads) -> None:
        self.ident = ident
        self.layer = layer
        self.loads = loads
        self.opened: int | None = None


class GateCondition(threading.Condition):
    """The condition of a gate. Upstream notifies it once, with the event stored and the lock held: no waiter has gone
    on at that moment, so the stamp divides the host's wait from the NPU's exactly.
    """

    _layerwise: GateMark

    def notify_all(self) -> None:
        """Stamp, notify, then tell."""
        mark = self._layerwise
        first = mark.opened is None
        if first:
            mark.opened = clock()
        _NOTIFY_ALL(self)
        if first:
            mark.loads.gate_opened(mark)


def mark_gate(gate: Any, ident: int, layer: int, loads: Loads) -> GateMark:
    """A mark for a gate that has none; made when the first task that carries it is enqueued, before anybody can wait
    for it.
    """
    mark = gate._layerwise = GateMark(ident, layer, loads)
    condition = gate._condition
    condition.acquire()
    try:
        if gate._event is not None:
            mark.opened = clock()
        else:
            condition._layerwise = mark
            condition.__class__ = GateCondition
    finally:
        condition.release()
    if mark.opened is not None:
        loads.gate_opened(mark)
    return mark
