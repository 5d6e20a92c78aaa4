"""One packed copy of a step's plan from the device to the host; torch alone, any device.

The tensors of a plan lie in buffers that the runner reuses in its next step. So they are packed on the device, on the
stream of the step, into one buffer of 32-bit words, and that buffer crosses to the host in one copy. Buffers are kept
in pairs (device, pinned host) and come back once their copy has landed and was read: after a warm-up no step allocates,
whatever shapes follow each other.

No stream and no event is made here. Who issues the copy says what covers it: the output's own event (`gate.Riding`),
or an event that the caller records and asks by `query()`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard.snapshot import Part, Places, views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MIN_WORDS: Final = 4096
_WORD: Final = 4
# torch's name of a type -> numpy's, and how many words a value takes.
_TYPES: Final = {"torch.int32": ("int32", 1), "torch.int64": ("int64", 2)}


@dataclass(slots=True)
class Buffers:
    """A device buffer and its pinned host twin, both `words` 32-bit words long; `array` is the host's memory."""

    device: Any
    host: Any
    words: int
    array: NDArray[np.uint8]


@dataclass(slots=True)
class Snapshot:
    """A packed plan: `places` say where each tensor lies, `buffers` hold it on the device and, once landed, here."""

    places: Places
    buffers: Buffers | None
    issued: bool = False
    _pool: Pool | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes that cross to the host."""
        return self.places.nbytes

    def issue(self, non_blocking: bool = True) -> None:
        """Queue the one copy to the host on the current stream; blocking only after a step that failed anyway."""
        assert self.buffers is not None
        words = self.places.nbytes // _WORD
        self.buffers.host[:words].copy_(self.buffers.device[:words], non_blocking=non_blocking)
        self.issued = True

    def read(self) -> dict[str, NDArray[Any]]:
        """The landed arrays by name, as views of the pinned buffer: valid until `release`."""
        assert self.buffers is not None
        return views(self.buffers.array, self.places)

    def release(self) -> None:
        """Give the buffers back; only after their copy has landed. A second call does nothing."""
        buffers, self.buffers = self.buffers, None
        if buffers is not None and self._pool is not None:
            self._pool.give_back(buffers)


@lru_cache(maxsize=1024)
def _dense(parts: tuple[Part, ...]) -> tuple[tuple[int, ...], Places]:
    """The order in which parts are packed, wide values first so that each is aligned to its type, and their places."""
    order = sorted(range(len(parts)), key=lambda i: parts[i].dtype != "int64")
    packed = tuple(parts[i] for i in order)
    offsets, end = [], 0
    for part in packed:
        offsets.append(end)
        end += prod(part.shape) * (8 if part.dtype == "int64" else 4)
    return tuple(order), Places(packed, tuple(offsets), end, tuple(np.dtype(part.dtype) for part in packed))


class Pool:
    """Buffer pairs of one device, by size class (powers of two).

    `allocated` counts pairs made since the start, `peak_bytes` the largest snapshot. Steps are packed on one thread and
    released on another (the executor's output thread), hence the lock.
    """

    def __init__(self, device: Any, pin: bool) -> None:
        self.device = device
        self.pin = pin
        self.allocated = 0
        self.peak_bytes = 0
        self._free: dict[int, list[Buffers]] = {}
        self._lock = threading.Lock()

    def pack(self, tensors: Sequence[tuple[str, Any]]) -> Snapshot:
        """Pack named int32 or int64 tensors on the current stream; TypeError names a tensor of another type."""
        import torch

        parts = []
        for name, tensor in tensors:
            kind = str(tensor.dtype)
            if kind not in _TYPES:
                raise TypeError(f"plan tensor {name!r} has type {kind}, expected torch.int32 or torch.int64")
            parts.append(Part(name, tuple(tensor.shape), _TYPES[kind][0]))
        order, places = _dense(tuple(parts))
        buffers = self._take(places.nbytes // _WORD)
        if places.nbytes:
            words = []
            for index in order:
                flat = tensors[index][1].reshape(-1)
                words.append(flat if flat.dtype == torch.int32 else flat.view(torch.int32))
            torch.cat(words, out=buffers.device[: places.nbytes // _WORD])
        return Snapshot(places, buffers, _pool=self)

    def give_back(self, buffers: Buffers) -> None:
        """Keep a pair for a later step."""
        with self._lock:
            self._free.setdefault(buffers.words, []).append(buffers)

    def _take(self, words: int) -> Buffers:
        size = max(MIN_WORDS, 1 << max(words - 1, 0).bit_length())
        with self._lock:
            self.peak_bytes = max(self.peak_bytes, words * _WORD)
            free = self._free.get(size)
            if free:
                return free.pop()
            self.allocated += 1
        return self._make(size)

    def _make(self, words: int) -> Buffers:
        import torch

        device = torch.empty(words, dtype=torch.int32, device=self.device)
        host = torch.empty(words, dtype=torch.int32, device="cpu", pin_memory=self.pin)
        return Buffers(device, host, words, host.numpy().view(np.uint8))


def new_event(device: Any) -> Any:
    """An event of the device's own module; on a plain CPU a copy is over when it returns."""
    import torch

    return _Over() if device.type == "cpu" else torch.get_device_module(device).Event()


class _Over:
    """The event of a device that has no queue."""

    def record(self) -> None:
        """Nothing is queued."""

    def query(self) -> bool:
        """Everything is done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""
