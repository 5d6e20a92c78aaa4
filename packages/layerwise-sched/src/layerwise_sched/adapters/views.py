"""What the receive thread sees in place of the objects it waits in and calls: the same objects, with a span each.

Put in per instance, and only while a timeline is on. Each view hands every other attribute through, returns what the
object returned and raises what it raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerwise_sched.model import DependencyKind
from layerwise_sched.timeline import Code, clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.adapters.marks import GateMark
    from layerwise_sched.adapters.recorder import Recorder, Serving

# Bound once: a member is looked up through its class's metaclass, which costs as much as a row does.
_SAVE_CPU, _SAVE_NPU, _SEND_WAIT = Code.SAVE_CPU, Code.SAVE_NPU, Code.SEND_WAIT
_GATE_CONDITION, _GATE_NPU = Code.GATE_CONDITION, Code.GATE_NPU
_BUILD, _TRANSFER, _SLOT_RELEASE = Code.BUILD, Code.TRANSFER, Code.SLOT_RELEASE
_NEED_SAVE_CPU, _NEED_SAVE_NPU = DependencyKind.SAVE_CPU, DependencyKind.SAVE_NPU
_NEED_GATE_CONDITION, _NEED_GATE_NPU = DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU


class _View:
    """An object's stand-in for one thread."""

    __slots__ = ("_of", "_serving")

    def __init__(self, of: Any, serving: Serving) -> None:
        self._of = of
        self._serving = serving

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


class SaveView(_View):
    """A save's CPU event."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> bool:
        """Upstream's bounded wait; a poll that timed out is a span too, so that the time is explained."""
        serving = self._serving
        begin = clock()
        serving.missing = _NEED_SAVE_CPU
        try:
            return bool(self._of.wait(timeout))
        finally:
            serving.missing = None
            serving.span(_SAVE_CPU, begin, clock())


class _EventAt:
    """One layer's event of a list; looked up at each call, since the list's events may be renewed."""

    __slots__ = ("_events", "_index")

    def __init__(self, events: list[Any], index: int) -> None:
        self._events = events
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._events[self._index], name)


class NpuView(_EventAt):
    """A save's NPU event as the receive thread sees it."""

    __slots__ = ("_serving",)

    def __init__(self, events: list[Any], index: int, serving: Serving) -> None:
        super().__init__(events, index)
        self._serving = serving

    def synchronize(self) -> None:
        """Block the receive thread until the save's place in the compute stream is reached."""
        serving = self._serving
        event = self._events[self._index]
        begin = clock()
        serving.missing = _NEED_SAVE_NPU
        try:
            serving.unmet(event, _NEED_SAVE_NPU)
            event.synchronize()
        finally:
            serving.missing = None
            serving.span(_SAVE_NPU, begin, clock())


class SendView(_EventAt):
    """A save's NPU event as the send thread sees it: where the compute stream is when that thread waits for it."""

    __slots__ = ("_recorder",)

    def __init__(self, events: list[Any], index: int, recorder: Recorder) -> None:
        super().__init__(events, index)
        self._recorder = recorder

    def synchronize(self) -> None:
        """Block the send thread until the save's place in the compute stream is reached."""
        event = self._events[self._index]
        waits = not event.query()  # how long the call takes does not say: a busy core makes it long
        begin = clock()
        try:
            event.synchronize()
        finally:
            self._recorder.event(_SEND_WAIT, self._index, clock() if waits else begin, begin)


class GateView(_View):
    """An attention gate: one call of upstream's, two waits; the stamp of the boundary divides them."""

    __slots__ = ("_mark",)

    def __init__(self, mark: GateMark, serving: Serving) -> None:
        super().__init__(mark.gate, serving)
        self._mark = mark

    def wait(self, timeout: float = 10.0) -> bool:
        """Upstream's wait: first for the host to record the boundary, then for the compute stream to reach it."""
        serving = self._serving
        begin = clock()
        opened_before = self._mark.opened is not None
        serving.missing = _NEED_GATE_NPU if opened_before else _NEED_GATE_CONDITION
        try:
            if opened_before:
                serving.unmet(self._of._event, _NEED_GATE_NPU)
            return bool(self._of.wait(timeout))
        finally:
            end = clock()
            serving.missing = None
            opened = self._mark.opened
            middle = end if opened is None else min(max(opened, begin), end)
            serving.span(_GATE_CONDITION, begin, middle)
            if opened is not None:
                serving.span(_GATE_NPU, middle, end)


_CALLS = ("batch_copy", "batch_copy_get", "get")


class StoreView(_View):
    """The backend, or the client inside it (`store`, made late by some backends, so asked for at each use).

    submitting: called when a backend call begins. leases: called with minus the number of leases let go of.
    parts: the key-based thread builds keys and addresses in its handler, with no function to wrap: there the time from
    the last wait to the call is the building.
    """

    __slots__ = ("_inner", "_leases", "_parts", "_submitting")

    def __init__(
        self,
        of: Any,
        serving: Serving,
        submitting: Callable[[], None],
        leases: Callable[[int], None],
        *,
        parts: bool = False,
    ) -> None:
        super().__init__(of, serving)
        self._submitting = submitting
        self._leases = leases
        self._parts = parts
        self._inner: StoreView | None = None

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._of, name)
        if name == "store" and value is not None:
            if (view := self._inner) is None or view._of is not value:
                view = self._inner = StoreView(value, self._serving, self._submitting, self._leases)
            return view
        if name in _CALLS:
            return self._timed(value)
        if name == "batch_remove_lease":
            return self._released(value)
        return value

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        serving = self._serving

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._submitting()
            begin = clock()
            if self._parts:
                serving.span(_BUILD, serving.last, begin)
            try:
                return call(*args, **kwargs)
            finally:
                serving.span(_TRANSFER, begin, clock())

        return timed

    def _released(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def released(keys: Any, *args: Any, **kwargs: Any) -> Any:
            result = call(keys, *args, **kwargs)
            self._leases(-len(keys))
            return result

        return released


def watch_builder(builder: Any, serving: Serving) -> None:
    """Let one builder of addresses record its spans; `build` calls `build_addrs`, and is one span then."""
    build, build_addrs = builder.build, builder.build_addrs
    inside = False

    def timed_build(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        begin, inside = clock(), True
        try:
            return build(*args, **kwargs)
        finally:
            inside = False
            serving.span(_BUILD, begin, clock())

    def timed_addrs(*args: Any, **kwargs: Any) -> Any:
        if inside:
            return build_addrs(*args, **kwargs)
        begin = clock()
        try:
            return build_addrs(*args, **kwargs)
        finally:
            serving.span(_BUILD, begin, clock())

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
            serving.span(_SLOT_RELEASE, begin, clock())

    waited._layerwise = waiter  # type: ignore[attr-defined]
    return waited
