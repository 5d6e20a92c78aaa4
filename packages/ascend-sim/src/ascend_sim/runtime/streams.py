"""Stand-in streams and events.

Operators run at once, in host order. What a stream holds is the work that may be *late*: copies of the lazy mode
(pushed by `lazy.py`) and the orders between streams. A host wait performs the work it covers, through every stream that
the waited stream was ordered after, and nothing else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from ascend_sim import counters

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

# A rank whose output is never read (tensor parallel, rank > 0) never waits; on a device its work ends all the same.
MAX_PENDING = 1024

_lock = threading.RLock()  # the output thread lands copies while the step thread issues them
_local = threading.local()
_streams: Any = None  # weak set of the streams that ever held work, for `synchronize()`


class Stream:
    """A device queue: `seq` numbers what was put on it, `pending` holds (seq, work) not performed yet."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        import torch

        self.device = torch.device("cpu")
        self.priority = priority
        self.seq = 0
        self.pending: deque[tuple[int, Callable[[bool], None]]] = deque()
        self._previous: list[Stream] = []

    # -- work -----------------------------------------------------------------------------------------------------
    def push(self, work: Callable[[bool], None]) -> None:
        """Queue `work(checked)`; `checked` is False when it is performed without any wait, to bound the queue."""
        with _lock:
            self.seq += 1
            self.pending.append((self.seq, work))
            if len(self.pending) > MAX_PENDING:
                self.pending.popleft()[1](False)
        _remember(self)

    def perform(self, upto: int) -> None:
        """Do all work up to and including number `upto`, in order."""
        with _lock:
            while self.pending and self.pending[0][0] <= upto:
                self.pending.popleft()[1](True)

    def _after(self, other: Stream, upto: int) -> None:
        if other is not self and other.pending and other.pending[0][0] <= upto:
            self.push(lambda checked: other.perform(upto) if checked else None)

    # -- the interface of torch.npu.Stream ------------------------------------------------------------------------
    def wait_stream(self, stream: Stream) -> None:
        """Order everything queued here from now on after what `stream` holds now."""
        _count(counters.STREAM_WAIT)
        self._after(stream, stream.seq)

    def wait_event(self, event: Event) -> None:
        """Order everything queued here from now on after what `event` covers."""
        _count(counters.STREAM_WAIT)
        event._order(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, on this stream."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Block the host until everything queued here is done."""
        _count(counters.EVENT_WAIT)
        self.perform(self.seq)

    def query(self) -> bool:
        """Whether nothing is pending; asking performs the work, so that a polling loop ends at its second turn."""
        done = not self.pending
        self.perform(self.seq)
        return done

    def __enter__(self) -> Stream:
        self._previous.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        set_stream(self._previous.pop())

    @property
    def npu_stream(self) -> int:
        """A number that tells this stream from others, as the real one's handle."""
        return id(self)

    cuda_stream = npu_stream
    stream_id = npu_stream


class Event:
    """A point on a stream: it covers what was queued there when it was recorded."""

    def __init__(self, enable_timing: Any = False, blocking: bool = False, *_: Any, **__: Any) -> None:
        # `torch.Event` takes a device first, the others take `enable_timing` first.
        self.enable_timing = enable_timing is True
        self._stream: Stream | None = None
        self._seq = 0
        self._time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Mark the present end of `stream`, by default the current one."""
        self._stream = stream if stream is not None else current_stream()
        self._seq = self._stream.seq
        if self.enable_timing:
            self._time = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Order `stream`, by default the current one, after this event; the host goes on."""
        _count(counters.STREAM_WAIT)
        self._order(stream if stream is not None else current_stream())

    def _order(self, stream: Stream) -> None:
        if self._stream is not None:
            stream._after(self._stream, self._seq)

    def synchronize(self) -> None:
        """Block the host until what the event covers is done; an event never recorded covers nothing."""
        _count(counters.EVENT_WAIT)
        if self._stream is not None:
            self._stream.perform(self._seq)

    def query(self) -> bool:
        """Whether what the event covers is done; asking performs it, so that a polling loop ends at its second turn."""
        if self._stream is None:
            return True
        done = not self._stream.pending or self._stream.pending[0][0] > self._seq
        self._stream.perform(self._seq)
        return done

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds of host time between the two records; both need `enable_timing`."""
        if not (self.enable_timing and end.enable_timing):
            raise RuntimeError("elapsed_time needs both events made with enable_timing=True")
        if self._stream is None or end._stream is None:
            raise RuntimeError("elapsed_time needs both events recorded")
        return (end._time - self._time) * 1e3

    def reset(self, stream: Stream | None = None) -> None:
        """Make the event cover nothing again."""
        self._stream = None


class ExternalEvent(Event):
    """An event that a graph would wait for; outside a graph it is a plain event."""


_default: Stream | None = None


def default_stream(device: Any = None) -> Stream:
    """The main stream of the process."""
    global _default
    if _default is None:
        _default = Stream()
    return _default


def current_stream(device: Any = None) -> Stream:
    """The stream of the calling thread."""
    stream = getattr(_local, "stream", None)
    return stream if stream is not None else default_stream()


def set_stream(stream: Stream | None) -> None:
    """Make `stream` the calling thread's stream; None and foreign placeholders mean the main stream."""
    _local.stream = stream if isinstance(stream, Stream) else None


class _StreamContext:
    """`with torch.npu.stream(s)`: a None stream changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self._previous: Stream | None = None

    def __enter__(self) -> Stream | None:
        self._previous = current_stream()
        if self.stream is not None:
            set_stream(self.stream)
        return self.stream

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        set_stream(self._previous)


def stream(stream: Stream | None) -> _StreamContext:
    """Context in which `stream` is the calling thread's stream."""
    return _StreamContext(stream)


def synchronize(device: Any = None) -> None:
    """Block the host until every stream is done."""
    _count(counters.EVENT_WAIT)
    for held in list(_remembered()):
        held.perform(held.seq)


def _remembered() -> Any:
    global _streams
    if _streams is None:
        import weakref

        _streams = weakref.WeakSet()
    return _streams


def _remember(held: Stream) -> None:
    _remembered().add(held)


def _count(kind: str) -> None:
    site = counters.call_site(3)
    if site is not None:
        counters.record(kind, site)
