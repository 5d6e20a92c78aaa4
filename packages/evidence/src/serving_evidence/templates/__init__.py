"""Protocol files to start from, one a question; package data."""

from __future__ import annotations

import tomllib
from importlib import resources

from ..errors import ProtocolError


def names() -> dict[str, str]:
    """Template names with the question that each asks."""
    return {
        item.name.removesuffix(".toml"): str(tomllib.loads(item.read_text(encoding="utf-8"))["question"])
        for item in sorted(resources.files(__name__).iterdir(), key=lambda item: item.name)
        if item.name.endswith(".toml")
    }


def read(name: str) -> str:
    """Text of a template."""
    known = names()
    if name not in known:
        raise ProtocolError(f"no template {name!r}; there are {', '.join(known)}")
    return resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
