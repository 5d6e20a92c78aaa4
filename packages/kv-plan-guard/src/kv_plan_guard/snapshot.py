"""One packed buffer per step: where each array of the plans of all groups lies in it.

A worker copies the parts of a step's plans into one flat byte buffer (pinned on the host, one device-to-host copy) and
reads them back as numpy views: no array of its own, no second copy. This module only computes places and makes views,
so that it serves any device; `Places` are cached by shapes, because shapes repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ALIGN: Final = 64


@dataclass(frozen=True, slots=True)
class Part:
    """One array: its name (free, unique in a step, such as "0.block_table"), shape, and dtype name ("int32")."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Places:
    """Byte offset of each part, each aligned to `ALIGN`, and the size of the whole in bytes."""

    parts: tuple[Part, ...]
    offsets: tuple[int, ...]
    nbytes: int


@lru_cache(maxsize=256)
def places(parts: tuple[Part, ...]) -> Places:
    """Lay the parts out one behind the other."""
    offsets, end = [], 0
    for part in parts:
        offsets.append(end)
        end += -(-prod(part.shape) * np.dtype(part.dtype).itemsize // ALIGN) * ALIGN
    return Places(parts, tuple(offsets), end)


def views(buffer: NDArray[np.uint8], where: Places) -> dict[str, NDArray[Any]]:
    """The parts as arrays over `buffer` [>= where.nbytes] uint8: valid as long as the buffer is not reused."""
    made: dict[str, NDArray[Any]] = {}
    for part, offset in zip(where.parts, where.offsets, strict=True):
        made[part.name] = np.ndarray(part.shape, part.dtype, buffer=buffer, offset=offset)
    return made


def pack(arrays: Sequence[tuple[str, NDArray[Any]]], buffer: NDArray[np.uint8]) -> Places:
    """Copy host arrays into `buffer` and return where they lie (what a device does with its own copies)."""
    where = places(tuple(Part(name, array.shape, array.dtype.name) for name, array in arrays))
    if where.nbytes > buffer.nbytes:
        raise ValueError(f"the snapshot needs {where.nbytes} bytes, the buffer has {buffer.nbytes}")
    for (_, array), part, offset in zip(arrays, where.parts, where.offsets, strict=True):
        np.copyto(np.ndarray(part.shape, part.dtype, buffer=buffer, offset=offset), array)
    return where
