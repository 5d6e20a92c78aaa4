"""Checked access to fields of somebody else's JSON: wrong types are named, unknown keys are kept."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ResultError

if TYPE_CHECKING:
    from ..stats._special import FloatArray, IntArray


def mapping(value: Any, name: str) -> dict[str, Any]:
    """The value as a JSON object."""
    if not isinstance(value, dict):
        raise ResultError(f"{name}: expected a JSON object, found {type(value).__name__}")
    return value


def items(value: Any, name: str) -> list[Any]:
    """The value as a JSON array; null is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise ResultError(f"{name}: expected an array, found {type(value).__name__}")
    return value


def number(value: Any, name: str) -> float:
    """The value as a finite number (bool is none)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResultError(f"{name}: expected a number, found {str(value)[:40]!r}")
    return float(value)


def count(value: Any, name: str) -> int:
    """The value as a whole number >= 0."""
    found = number(value, name)
    if found < 0 or found != int(found):
        raise ResultError(f"{name}: expected a count, found {value!r}")
    return int(found)


def numbers(value: Any, name: str) -> FloatArray:
    """A JSON array of numbers as float64; null becomes NaN."""
    if not isinstance(value, list):
        raise ResultError(f"{name}: expected an array, found {type(value).__name__}")
    if any(isinstance(x, bool) or not isinstance(x, int | float | None) for x in value):
        raise ResultError(f"{name}: expected an array of numbers")
    return np.array([np.nan if x is None else x for x in value], dtype=np.float64)


def ragged(value: Any, name: str) -> tuple[FloatArray, IntArray]:
    """A JSON array of arrays of numbers, flat, with the length of each."""
    if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
        raise ResultError(f"{name}: expected an array of arrays")
    flat = [x for row in value for x in row]
    return numbers(flat, name), np.array([len(row) for row in value], dtype=np.int64)


def fingerprint(lengths: FloatArray) -> str:
    """Hex SHA-256 of request lengths in any order: these tools list requests as they end, not as they were planned."""
    return hashlib.sha256(np.sort(lengths).tobytes()).hexdigest()


def scalars(raw: dict[str, Any]) -> dict[str, float]:
    """Every top-level number, by name; other tools' and newer versions' keys included."""
    return {
        key: float(value)
        for key, value in raw.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and len(key) <= 80
    }
