"""An in-memory KV pool that checks what it is asked to do.

It stands where MemCache's client stands, which needs an Ascend driver. Bytes are really moved, by address, and every
address must lie in memory that was registered or that the pool owns. Each transfer can be made to take a time, to
straggle or to fail, and is shown to an observer before it moves a byte.
"""

from __future__ import annotations

import ctypes
import threading
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.backend.base import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAVE, LOAD = 0, 1  # the directions of MemCache's batch_copy


class PoolError(AssertionError):
    """The pool was asked for something that no correct client asks for."""


class Memory:
    """The ranges that a transfer may touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, array: np.ndarray) -> None:
        """Allow a contiguous array's bytes."""
        self.add_range(array.ctypes.data, array.nbytes)

    def add_range(self, start: int, size: int) -> None:
        """Allow [start, start + size); of two ranges that start at one place the longer one counts."""
        index = bisect_right(self._starts, start)
        if index and self._starts[index - 1] == start:
            self._ends[index - 1] = max(self._ends[index - 1], start + size)
            return
        self._starts.insert(index, start)
        self._ends.insert(index, start + size)

    def check(self, address: int, size: int) -> None:
        """PoolError unless [address, address + size) is allowed."""
        index = bisect_right(self._starts, address) - 1
        if index < 0 or address + size > self._ends[index]:
            raise PoolError(f"transfer touches {address:#x}+{size}, which no registered memory holds")


class _Copies:
    """What MemCache calls the store: synchronous copies between addresses."""

    def __init__(self, pool: MemoryPool) -> None:
        self._pool = pool

    def batch_copy(self, gvas: Sequence[int], addrs: Sequence[int], sizes: Sequence[int], direction: int) -> int:
        """Copy device to pool (0) or pool to device (1); 0, or -1 where a failure is planted."""
        pairs = list(zip(addrs, gvas, sizes, strict=True))
        return self._pool.transfer(direction, pairs)


class KeyInfo:
    """MemCache's answer about one key."""

    def __init__(self, part: np.ndarray | None) -> None:
        self._part = part

    def size(self) -> int:
        return 0 if self._part is None else self._part.nbytes

    def gva_list(self) -> list[int]:
        return [0 if self._part is None else self._part.ctypes.data]

    def type_list(self) -> list[int]:
        return [1]  # in memory, not on a disk


class MemoryPool(Backend):
    """The rig says how long a transfer of a layer takes, which layer an object's bytes belong to, and looks on."""

    def __init__(self) -> None:
        self.seconds: Callable[[int, int], float] = lambda direction, layer: 0.0
        self.layer_of: Callable[[str, int], int] = lambda key, offset: 0
        self.observe: Callable[[int, int], None] = lambda direction, layer: None
        self.store: Any = _Copies(self)
        self.device, self.memory = Memory(), Memory()
        self.objects: dict[str, list[np.ndarray]] = {}
        self.leases: dict[str, int] = {}
        self.finished: set[str] = set()
        self.count = {SAVE: 0, LOAD: 0}
        self.in_flight = {SAVE: 0, LOAD: 0}
        self.most_in_flight = {SAVE: 0, LOAD: 0}
        self.before_failure: Callable[[int, int], None] = lambda direction, layer: None
        self.fail_at: dict[int, Any] = {}  # direction -> (number, "raise" | return code)
        self.errors: list[str] = []
        self._lock = threading.Lock()

    # -- transfers ------------------------------------------------------------------------------------------------
    def transfer(self, direction: int, pairs: list[tuple[int, int, int]]) -> int:
        """Move (device address, pool address, size) triples one way, after the time that it takes."""
        with self._lock:
            number = self.count[direction]
            self.count[direction] += 1
            self.in_flight[direction] += 1
            self.most_in_flight[direction] = max(self.most_in_flight[direction], self.in_flight[direction])
        try:
            for device, pool, size in pairs:
                self.device.check(device, size)
                self.memory.check(pool, size)
            layer = self._layer_at(pairs[0][1])
            self.observe(direction, layer)
            at, how = self.fail_at.get(direction, (None, None))
            if at == number:
                self.before_failure(direction, layer)
                if how == "raise":
                    raise ConnectionError("planted failure of the backend")
                return int(how)
            # First the time and then the bytes: a reader that does not wait for the end finds the old ones.
            time.sleep(self.seconds(direction, layer))
            for device, pool, size in pairs:
                ctypes.memmove(*((pool, device, size) if direction == SAVE else (device, pool, size)))
            return 0
        except PoolError as error:
            self.errors.append(str(error))
            raise
        finally:
            with self._lock:
                self.in_flight[direction] -= 1

    def put(self, keys: list[str], addrs: list[list[int]], sizes: list[list[int]]) -> list[int]:
        """Key-based save."""
        pairs = []
        for key, addresses, lengths in zip(keys, addrs, sizes, strict=True):
            parts = self.allocate(key, lengths)
            pairs += [(a, part.ctypes.data, n) for a, part, n in zip(addresses, parts, lengths, strict=True)]
        code = self.transfer(SAVE, pairs)
        if code == 0:
            self.finished.update(keys)  # here a put publishes; the other planes have a call of their own for that
        return [code] * len(keys)

    def get(self, keys: list[str], addrs: list[list[int]], sizes: list[list[int]]) -> list[int]:
        """Key-based load."""
        pairs = [
            (address, part.ctypes.data, length)
            for key, addresses, lengths in zip(keys, addrs, sizes, strict=True)
            for address, part, length in zip(addresses, self.objects[key], lengths, strict=True)
        ]
        return [self.transfer(LOAD, pairs)] * len(keys)

    def batch_copy_get(
        self, keys: list[str], buffers: list[list[int]], sizes: list[list[int]], offsets: list[list[int]]
    ) -> list[int]:
        """Range load: parts of one object a key."""
        pairs = [
            (address, self.objects[key][0].ctypes.data + offset, length)
            for key, addresses, lengths, starts in zip(keys, buffers, sizes, offsets, strict=True)
            for address, length, offset in zip(addresses, lengths, starts, strict=True)
        ]
        code = self.transfer(LOAD, pairs)
        return [code] * len(keys)

    def batch_copy_put(
        self, keys: list[str], buffers: list[list[int]], sizes: list[list[int]], offsets: list[list[int]]
    ) -> list[int]:
        """Range save: parts of one object a key, which `batch_put_start` allocated."""
        pairs = [
            (address, self.objects[key][0].ctypes.data + offset, length)
            for key, addresses, lengths, starts in zip(keys, buffers, sizes, offsets, strict=True)
            for address, length, offset in zip(addresses, lengths, starts, strict=True)
        ]
        code = self.transfer(SAVE, pairs)
        return [code] * len(keys)

    def _layer_at(self, address: int) -> int:
        for key, parts in list(self.objects.items()):
            start = parts[0].ctypes.data
            if start <= address < start + parts[0].nbytes:
                return self.layer_of(key, address - start)
        raise PoolError(f"no object at {address:#x}")

    # -- objects and leases ---------------------------------------------------------------------------------------
    def store_objects(self, contents: dict[str, np.ndarray]) -> list[int]:
        """Publish objects; their addresses."""
        found = []
        for key, content in contents.items():
            (part,) = self.allocate(key, [content.nbytes])
            part[:] = content
            self.finished.add(key)
            found.append(int(part.ctypes.data))
        return found

    def read_objects(self, sizes: dict[str, int]) -> dict[str, np.ndarray]:
        """Objects' bytes."""
        return {key: self.objects[key][0][:size] for key, size in sizes.items()}

    def forget(self) -> None:
        """Begin a step without objects."""
        self.objects.clear()
        self.finished.clear()

    def allocate(self, key: str, lengths: Sequence[int]) -> list[np.ndarray]:
        """Memory of the pool under `key`, one array a length."""
        parts = [np.zeros(length, dtype=np.uint8) for length in lengths]
        for part in parts:
            self.memory.add(part)
        self.objects[key] = parts
        return parts

    def batch_add_lease(self, keys: list[str], lease_ttl_ms: int = 0) -> list[int]:
        """Hold each key once more."""
        with self._lock:
            for key in keys:
                self.leases[key] = self.leases.get(key, 0) + 1
        return [0] * len(keys)

    def batch_remove_lease(self, keys: list[str]) -> int:
        """Let go of each key once; letting go of what is not held is an error."""
        with self._lock:
            for key in keys:
                if self.leases.get(key, 0) <= 0:
                    self.errors.append(f"lease of {key!r} released and not held")
                self.leases[key] = self.leases.get(key, 0) - 1
        return 0

    def open_leases(self) -> list[str]:
        """Keys that are held still, or were let go of too often."""
        return sorted(key for key, count in self.leases.items() if count)

    def batch_write_finish(self, keys: list[str], results: list[int]) -> list[int]:
        """Publish what was saved."""
        self.finished.update(keys)
        return [0] * len(keys)

    def batch_put_start(self, keys: list[str], sizes: list[int]) -> list[int]:
        """Range save: one object a key."""
        for key, size in zip(keys, sizes, strict=True):
            self.allocate(key, [size])
        return [0] * len(keys)

    def batch_commit(self, keys: list[str]) -> list[int]:
        """Range save: publish."""
        return self.batch_write_finish(keys, [0] * len(keys))

    def batch_revoke(self, keys: list[str]) -> list[int]:
        """Range save: give up."""
        for key in keys:
            self.objects.pop(key, None)
        return [0] * len(keys)

    def batch_get_start(self, keys: list[str]) -> list[int]:
        """Range load: a session a key, counted as a lease."""
        return self.batch_add_lease(keys)

    def batch_get_end(self, keys: list[str]) -> int:
        """Range load: end of the sessions."""
        return self.batch_remove_lease(keys)

    def exists(self, keys: list[str]) -> list[int]:
        """1 for each key that is published."""
        return [int(key in self.finished) for key in keys]

    def set_device(self) -> None:
        """There is one device."""

    def register_buffer(self, ptrs: list[int], lengths: list[int]) -> None:
        """Device memory that transfers may touch."""
        for pointer, length in zip(ptrs, lengths, strict=True):
            self.device.add_range(pointer, length)

    # -- what an engine's connector asks besides ---------------------------------------------------------------------
    def ensure_initialized(self) -> None:
        """Nothing is made late here."""

    def validate_layerwise_support(self) -> None:
        """Sessions and ranges are there."""

    def batch_is_readable(self, keys: list[str]) -> list[bool]:
        """Whether each key is published."""
        return [key in self.finished for key in keys]

    def batch_get_key_info(self, keys: list[str], *, for_load: bool = False) -> list[KeyInfo]:
        """Size and address of each published key; zeros for others."""
        return [KeyInfo(self.objects[key][0] if key in self.finished else None) for key in keys]

    def batch_alloc(self, keys: list[str], sizes: list[int], lease_ttl_ms: int = 0) -> list[int]:
        """Addresses of new objects; -1 for a key that is there."""
        return [
            -1 if key in self.objects else self.allocate(key, [size])[0].ctypes.data
            for key, size in zip(keys, sizes, strict=True)
        ]
