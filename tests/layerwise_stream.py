"""An in-order device queue with real durations, and events that complete when the queue reaches them.

The simulator's own streams run work at once, so a wait for an event never waits. Here a thread takes the launched work
in order and lets its time pass, so that a host thread which waits for an event really waits, and one that forgot to
wait sees memory as it was before the work.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class DeviceStream:
    """One in-order queue; `launch` returns the number of the work, `done` the number of the last one finished."""

    def __init__(self) -> None:
        self._queue: deque[tuple[float, Callable[[], None] | None]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.issued = 0
        self.done = 0
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name="device-stream")
        self._thread.start()

    def launch(self, seconds: float = 0.0, work: Callable[[], None] | None = None) -> int:
        """Queue work that takes `seconds`; `work` runs at its end, on the device's thread."""
        with self._changed:
            self.issued += 1
            self._queue.append((seconds, work))
            self._changed.notify_all()
            return self.issued

    def wait(self, number: int) -> None:
        """Block the host until work `number` is finished."""
        with self._changed:
            self._changed.wait_for(lambda: self.done >= number or self._closed)

    def synchronize(self) -> None:
        """Block the host until everything launched so far is finished."""
        self.wait(self.issued)

    def close(self) -> None:
        """End the thread; waiters come back."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                seconds, work = self._queue.popleft()
            if seconds:
                time.sleep(seconds)
            if work is not None:
                try:
                    work()
                except BaseException as error:  # a check that died must not pass for one that found nothing
                    self.errors.append(error)
            with self._changed:
                self.done += 1
                self._changed.notify_all()


def event_class(stream: DeviceStream) -> type:
    """A class with the interface of `torch.npu.Event`, whose events lie on `stream`."""

    class DeviceEvent:
        """An event that was never recorded is complete; recording it again moves it, as on the device."""

        def __init__(self, *_: Any, **__: Any) -> None:
            self.number: int | None = None

        def record(self, _stream: Any = None) -> None:
            self.number = stream.launch()

        def query(self) -> bool:
            number = self.number
            return number is None or stream.done >= number

        def synchronize(self) -> None:
            number = self.number
            if number is not None:
                stream.wait(number)

        def wait(self, _stream: Any = None) -> None:
            """Order a stream after this event: there is one stream, in order already."""

    return DeviceEvent


@contextmanager
def device_stream() -> Iterator[DeviceStream]:
    """`torch.npu` with one such stream, until the block ends."""
    import torch

    stream = DeviceStream()
    kept = torch.npu.Event, torch.npu.current_stream
    torch.npu.Event, torch.npu.current_stream = event_class(stream), lambda *_: stream
    try:
        yield stream
    finally:
        torch.npu.Event, torch.npu.current_stream = kept
        stream.close()
