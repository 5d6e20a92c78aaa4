"""What the runtime has put in, so that it can be taken out again."""

from __future__ import annotations

from typing import Any

_ABSENT = object()
_put_in: list[tuple[Any, str, Any]] = []


def put(owner: Any, name: str, value: Any) -> None:
    """Set `owner.name`, and remember what was there; an inherited attribute is remembered as absent."""
    _put_in.append((owner, name, vars(owner).get(name, _ABSENT)))
    setattr(owner, name, value)


def take_out() -> None:
    """Undo every `put`, the last one first."""
    while _put_in:
        owner, name, value = _put_in.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def put_in() -> list[str]:
    """Names of everything that is in place, as "owner.name"."""
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name, _ in _put_in]
