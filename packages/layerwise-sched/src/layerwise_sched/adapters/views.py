"""What the receive thread sees in place of the objects it waits in and calls: the same objects, with a span each.

Put in per instance, and only while a timeline is on. Each view hands every other attribute through, returns what the
object returned and raises what it raised.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from layerwise_sched import rows
from layerwise_sched.model import DependencyKind
from layerwise_sched.timeline import Code, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.adapters.marks import GateMark
    from layerwise_sched.adapters.recorder import Sending, Serving

# Bound once: a member is looked up through its class's metaclass, which costs as much as a row does.
_SAVE_CPU, _SAVE_CPU_END, _SAVE_NPU, _SAVE_NPU_END = rows.SAVE_CPU, rows.SAVE_CPU_END, rows.SAVE_NPU, rows.SAVE_NPU_END
_GATE, _GATE_OPEN, _GATE_END, _UNMET = rows.GATE, rows.GATE_OPEN, rows.GATE_END, rows.UNMET
_BUILD, _BUILD_END, _CALL, _CALL_END = rows.BUILD, rows.BUILD_END, rows.CALL, rows.CALL_END
_UNMET_SAVE, _UNMET_GATE = rows.UNMET_SAVE, rows.UNMET_GATE
_NEED_SAVE_CPU, _NEED_SAVE_NPU = DependencyKind.SAVE_CPU, DependencyKind.SAVE_NPU
_NEED_GATE_CONDITION, _NEED_GATE_NPU = DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU


class SaveView:
    """A save's CPU event as the receive thread sees it."""

    __slots__ = ("_of", "_serving", "_stamps", "_wait", "clear")

    def __init__(self, of: Any, serving: Serving) -> None:
        self._of = of
        self._serving = serving
        self._stamps = serving.stamps
        self._wait = of.wait
        self.clear = of.clear

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def wait(self, timeout: float | None = None) -> bool:
        """Upstream's bounded wait; a poll that timed out is a span too, so that the time is explained."""
        serving, stamps = self._serving, self._stamps
        if stamps[_SAVE_CPU_END]:
            serving.spill()
        stamps[_SAVE_CPU] = clock()
        serving.missing = _NEED_SAVE_CPU
        try:
            return self._wait(timeout)  # type: ignore[no-any-return]
        finally:
            serving.missing = None
            stamps[_SAVE_CPU_END] = clock()


class _EventAt:
    """One layer's event of a list; looked up at each call, since the list's events may be renewed."""

    __slots__ = ("_events", "_index")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events[self._index], name)


class NpuView(_EventAt):
    """A save's NPU event as the receive thread sees it."""

    __slots__ = ("_serving", "_stamps")

    def __init__(self, events: list[Any], index: int, serving: Serving) -> None:
        self._events = events
        self._index = index
        self._serving = serving
        self._stamps = serving.stamps

    def synchronize(self) -> None:
        """Block the receive thread until the save's place in the compute stream is reached."""
        serving, stamps = self._serving, self._stamps
        event = self._events[self._index]
        if stamps[_SAVE_NPU_END]:
            serving.spill()
        stamps[_SAVE_NPU] = clock()
        serving.missing = _NEED_SAVE_NPU
        try:
            # Only where it is incomplete as the wait begins is the wait's end the event's.
            if not event.query():
                stamps[_UNMET] |= _UNMET_SAVE
            event.synchronize()
        finally:
            serving.missing = None
            stamps[_SAVE_NPU_END] = clock()


class SendView(_EventAt):
    """A save's NPU event as the send thread sees it: where the compute stream is when that thread waits for it."""

    __slots__ = ("_sending",)

    def __init__(self, events: list[Any], index: int, sending: Sending) -> None:
        self._events = events
        self._index = index
        self._sending = sending

    def synchronize(self) -> None:
        """Block the send thread until the save's place in the compute stream is reached."""
        sending, index = self._sending, self._index
        event = self._events[index]
        if sending.layer >= 0:
            sending.write_open()
        waits = not event.query()  # how long the call takes does not say: a busy core makes it long
        sending.begin = begin = clock()
        try:
            event.synchronize()
        finally:
            sending.end = clock() if waits else begin
            sending.thread = get_ident()
            sending.layer = index


class GateView:
    """An attention gate: one call of upstream's, two waits; the stamp of the boundary divides them."""

    __slots__ = ("_mark", "_of", "_serving")

    def __init__(self, of: Any, mark: GateMark, serving: Serving) -> None:
        self._of = of
        self._mark = mark
        self._serving = serving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def wait(self, timeout: float = 10.0) -> bool:
        """Upstream's wait: first for the host to record the boundary, then for the compute stream to reach it."""
        serving, mark, of = self._serving, self._mark, self._of
        stamps = serving.stamps
        if stamps[_GATE_END]:
            serving.spill()
        stamps[_GATE] = begin = clock()
        try:
            if mark.opened is None:
                serving.missing = _NEED_GATE_CONDITION
            else:
                serving.missing = _NEED_GATE_NPU
                if not of._event.query():
                    stamps[_UNMET] |= _UNMET_GATE
            return of.wait(timeout)  # type: ignore[no-any-return]
        finally:
            stamps[_GATE_END] = end = clock()
            serving.missing = None
            if (opened := mark.opened) is not None:
                stamps[_GATE_OPEN] = begin if opened < begin else min(opened, end)


_CALLS = ("batch_copy", "batch_copy_get", "get")


class StoreView:
    """The backend, or the client inside it (`store`, made late by some backends, so asked for at each use).

    leases: called with minus the number of leases let go of. parts: the key-based thread builds keys and addresses in
    its handler, with no function to wrap: there the time from the last wait to the call is the building.
    """

    def __init__(self, of: Any, serving: Serving, leases: Callable[[int], None], *, parts: bool = False) -> None:
        self._of = of
        self._serving = serving
        self._leases = leases
        self._parts = parts
        self._inner: StoreView | None = None

    @property
    def store(self) -> Any:
        """The client inside the backend."""
        value, view = self._of.store, self._inner
        if view is not None and view._of is value:
            return view
        if value is None:
            return None
        view = self._inner = StoreView(value, self._serving, self._leases)
        return view

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        if name in _CALLS:
            self.__dict__[name] = timed = self._timed(name)  # found at once from now on
            return timed
        if name == "batch_remove_lease":
            return self._released(value)
        return value

    def _timed(self, name: str) -> Callable[..., Any]:
        of, serving, parts = self._of, self._serving, self._parts
        stamps, queue = serving.stamps, serving.queue

        def timed(*args: Any, **kwargs: Any) -> Any:
            if parts:
                serving.built(serving.finished(), clock())
            if stamps[_CALL_END]:
                serving.spill()
            queue.waiting = False  # the task waits for nothing more
            stamps[_CALL] = clock()
            try:
                return getattr(of, name)(*args, **kwargs)  # looked up anew: it may have been replaced
            finally:
                stamps[_CALL_END] = clock()

        return timed

    def _released(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def released(keys: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(keys, *args, **kwargs)
            self._leases(-len(keys))
            return result

        return released


def watch_builder(builder: Any, serving: Serving) -> None:
    """Let one builder of addresses record its spans; `build` calls `build_addrs`, and is one span then."""
    build, build_addrs, stamps = builder.build, builder.build_addrs, serving.stamps
    inside = False

    def timed_build(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if stamps[_BUILD_END]:
            serving.spill()
        inside = True
        stamps[_BUILD] = clock()
        try:
            return build(*args, **kwargs)
        finally:
            inside = False
            stamps[_BUILD_END] = clock()

    def timed_addrs(*args: Any, **kwargs: Any) -> Any:
        if inside:
            return build_addrs(*args, **kwargs)
        if stamps[_BUILD_END]:
            serving.spill()
        stamps[_BUILD] = clock()
        try:
            return build_addrs(*args, **kwargs)
        finally:
            stamps[_BUILD_END] = clock()

    builder.build, builder.build_addrs = timed_build, timed_addrs


def slot_waiter(waiter: Callable[[int], None], serving: Serving) -> Callable[[int], None]:
    """Another connector's slot waiter, with its span."""

    def waited(layer: int) -> None:
        begin = clock()
        serving.missing = DependencyKind.SLOT_RELEASE
        try:
            waiter(layer)
        finally:
            serving.missing = None
            serving.span(Code.SLOT_RELEASE, begin, clock())

    waited._layerwise = waiter  # type: ignore[attr-defined]
    return waited
