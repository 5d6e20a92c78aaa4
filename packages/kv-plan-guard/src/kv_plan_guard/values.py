"""Values of a file as what they must be. Reading trusts nothing: every value has a type and a bound.

The bounds keep a hostile file from asking for much memory: what a file can make the guard allocate is proportional to
the file's own size and to `MAX_POOL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard.errors import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_TOKENS: Final = 1 << 22  # one request, and one step
MAX_LENGTH: Final = 1 << 27  # positions and lengths
MAX_POOL: Final = 1 << 22  # blocks of a group
MAX_ID: Final = (1 << 31) - 1
MAX_LIST: Final = 1 << 24


def refuse(what: str, wanted: str, got: object) -> ReplayError:
    """The error for one bad value; the value is shown in at most 60 characters."""
    shown = repr(got)
    return ReplayError(f"{what} must be {wanted}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


def whole(what: str, value: object, low: int = 0, high: int = MAX_LENGTH) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refuse(what, f"a whole number from {low} to {high}", value)
    return value


def text(what: str, value: object) -> str:
    """A text of at most 4096 characters."""
    if not isinstance(value, str) or len(value) > 4096:
        raise refuse(what, "a text of at most 4096 characters", value)
    return value


def items(what: str, value: object) -> list[Any]:
    """A list of bounded length."""
    if not isinstance(value, list) or len(value) > MAX_LIST:
        raise refuse(what, f"a list of at most {MAX_LIST} values", value)
    return value


def table(what: str, value: object) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise refuse(what, "an object", value)
    return value


def numbers(what: str, value: object, low: int = -1, high: int = MAX_ID) -> list[int]:
    """A list of whole numbers within bounds."""
    found = items(what, value)
    for number in found:
        whole(what, number, low, high)
    return found


def ids(what: str, value: object) -> list[int]:
    """Block ids; the guard itself judges those that are out of range."""
    return numbers(what, value, -(1 << 31), MAX_ID)


def names(what: str, value: object) -> list[str]:
    """A list of texts."""
    return [text(what, name) for name in items(what, value)]


def maybe(read: Callable[[str, object], Any], what: str, value: object) -> Any:
    """What `read` makes of the value; None stays None."""
    return None if value is None else read(what, value)


def array(name: str, value: object) -> Any:
    """An array of int32 or int64, two-dimensional where it is a block table."""
    plain = table(name, value)
    if plain["dtype"] not in ("int32", "int64"):
        raise refuse(f"{name}.dtype", "int32 or int64", plain["dtype"])
    bound = 1 << (31 if plain["dtype"] == "int32" else 63)
    data = numbers(f"{name}.data", plain["data"], -bound, bound - 1)
    shape = numbers(f"{name}.shape", plain["shape"], 0, MAX_LIST)
    if len(shape) != (2 if name == "block_table" else 1) or _product(shape) != len(data):
        raise refuse(f"{name}.shape", f"the shape of {len(data)} values", shape)
    return np.array(data, plain["dtype"]).reshape(shape)


def _product(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size
