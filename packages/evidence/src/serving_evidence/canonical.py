"""Canonical JSON: one text for one value, so that a hash of it means something; and strict reading of others' JSON."""

from __future__ import annotations

import hashlib
import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from .errors import ResultError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_JSON_BYTES = 256 * 1024 * 1024
# Anything a benchmark writes is far below; an exponent like 1e300 is a broken or a hostile file.
MAX_NUMBER = 1e18
# Times in nanoseconds since the epoch (AIPerf's) are above that, and below this.
MAX_INTEGER = 2**63 - 1


def dumps(value: Any) -> str:
    """Canonical text: sorted keys, no spaces, UTF-8, no NaN; ends without a newline."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def pretty(value: Any) -> str:
    """The same value for people: sorted keys, one item a line, newline at the end."""
    return json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def sha256(data: bytes) -> str:
    """Hex SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of a value's canonical text."""
    return sha256(dumps(value).encode("utf-8"))


def loads(
    data: bytes, name: str, error: Callable[[str], Exception] = ResultError, *, limit: int = MAX_JSON_BYTES
) -> Any:
    """Parse JSON as data: no NaN, no huge number, no key twice, no lone surrogate, bounded depth and size.

    Raises `error` with one sentence that names `name`.
    """
    if len(data) > limit:
        raise error(f"{name}: {len(data)} bytes of JSON, more than the {limit} allowed")
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_float,
            parse_int=_int,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise error(f"{name}: JSON nested too deeply") from None
    except ValueError as problem:
        raise error(f"{name}: not usable JSON: {str(problem)[:200]}") from None
    return value


def read(path: Path, error: Callable[[str], Exception] = ResultError, *, limit: int = MAX_JSON_BYTES) -> Any:
    """`loads` of a file, refused by size before it is read."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise error(f"{path.name}: {size} bytes of JSON, more than the {limit} allowed")
        data = path.read_bytes()
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}") from None
    return loads(data, path.name, error, limit=limit)


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON or a statistic knows")


def _float(text: str) -> float:
    value = float(text)
    if not isfinite(value) or abs(value) > MAX_NUMBER:
        raise ValueError(f"number {text[:40]} is out of range")
    return value


def _int(text: str) -> int:
    if len(text) > 20 or abs(value := int(text)) > MAX_INTEGER:
        raise ValueError(f"number {text[:40]} is out of range")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result
