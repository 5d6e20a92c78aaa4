"""Small array helpers of the hot path.

A numpy reduction costs several times what an elementwise operation on a small array costs, and a batch is small. So a
mask is searched as bytes, small arrays of one type are compared as bytes, and running numbers are views of one array.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

I64: TypeAlias = NDArray[np.int64]

#: Longest shared array of running numbers (32 MiB); longer ones are added up where they are needed.
MAX_RAMP: Final = 1 << 22
#: Bytes up to which copying two arrays and comparing the copies is quicker than an array of truth values.
AS_BYTES: Final = 1 << 16

_ramps: dict[type[Any], NDArray[Any]] = {np.int64: np.arange(1 << 12), np.int32: np.arange(1 << 12, dtype=np.int32)}
_ones = np.ones(1 << 8, np.int64)
_ones.flags.writeable = False


def ramp(size: int) -> I64:
    """0, 1, 2, ... int64: a view of a shared array; not to be written."""
    return _ramp(np.int64, size)


def ramp32(size: int) -> NDArray[np.int32]:
    """The same in int32, the type of query_start_loc and of Ascend's slots."""
    return _ramp(np.int32, size)


def _ramp(kind: type[Any], size: int) -> NDArray[Any]:
    held = _ramps[kind]
    if size > len(held):
        held = np.arange(max(size, 2 * len(held)), dtype=kind)
        held.flags.writeable = False
        _ramps[kind] = held
    return held[:size]


def ones(size: int) -> I64:
    """1, 1, 1, ...: a view of a shared array; not to be written."""
    global _ones
    if size > len(_ones):
        _ones = np.ones(2 * size, np.int64)
        _ones.flags.writeable = False
    return _ones[:size]


def any_true(mask: NDArray[np.bool_]) -> bool:
    """Whether a truth value is set."""
    return b"\x01" in mask.tobytes()


def equal(actual: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether both hold the same numbers, whatever their types."""
    if actual.dtype == expected.dtype and actual.nbytes <= AS_BYTES:
        return actual.tobytes() == expected.tobytes()
    return not any_true(actual != expected)


def bounds(values: NDArray[np.integer[Any]]) -> tuple[int, int]:
    """Least and greatest of an array that is not empty."""
    if len(values) <= 64:
        plain = values.tolist()
        return min(plain), max(plain)
    return int(values.min()), int(values.max())
