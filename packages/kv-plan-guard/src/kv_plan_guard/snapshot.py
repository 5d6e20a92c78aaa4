"""One packed buffer per step: where each array of the plans of all groups lies in it.

A worker copies the parts of a step's plans into one flat byte buffer (pinned on the host, one device-to-host copy) and
reads them back as numpy views: no array of its own, no second copy. This module only computes places and makes views,
so that it serves any device; `Places` are cached by shapes, because shapes repeat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """One array: its name (free, unique in a step, such as "0.block_table"), shape, and dtype ("int32", "<i4")."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Byte offset of each part, each aligned to `ALIGN`, and the size of the whole in bytes."""

    parts: tuple[Part, ...]
    offsets: tuple[int, ...]
    nbytes: int
    dtypes: tuple[np.dtype[Any], ...] = field(default=())


@lru_cache(maxsize=256)
def places(parts: tuple[Part, ...]) -> Places:
    """Lay the parts out one behind the other."""
    offsets, end = [], 0
    dtypes = tuple(np.dtype(part.dtype) for part in parts)
    for part, dtype in zip(parts, dtypes, strict=True):
        offsets.append(end)
        end += -(-prod(part.shape) * dtype.itemsize // ALIGN) * ALIGN
    return Places(parts, tuple(offsets), end, dtypes)


@lru_cache(maxsize=256)
def _places_of(names: tuple[str, ...], shapes: tuple[Any, ...], dtypes: tuple[str, ...]) -> Places:
    return places(tuple(Part(*part) for part in zip(names, shapes, dtypes, strict=True)))


def views(buffer: NDArray[np.uint8], where: Places) -> dict[str, NDArray[Any]]:
    """The parts as arrays over `buffer` [>= where.nbytes] uint8: valid as long as the buffer is not written anew."""
    made: dict[str, NDArray[Any]] = {}
    for part, offset, dtype in zip(where.parts, where.offsets, where.dtypes, strict=True):
        made[part.name] = np.ndarray(part.shape, dtype, buffer, offset)
    return made


def pack(arrays: Sequence[tuple[str, NDArray[Any]]], buffer: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Copy host arrays into `buffer`, as a device does with its own, and return the views of the copies."""
    where = _places_of(
        tuple([name for name, _ in arrays]),
        tuple([array.shape for _, array in arrays]),
        tuple([array.dtype.str for _, array in arrays]),
    )
    if where.nbytes > buffer.nbytes:
        raise ValueError(f"the snapshot needs {where.nbytes} bytes, the buffer has {buffer.nbytes}")
    made = views(buffer, where)
    for name, array in arrays:
        made[name][...] = array
    return made
