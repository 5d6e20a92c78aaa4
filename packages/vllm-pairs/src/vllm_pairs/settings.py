"""A package's setting as a JSON object: from the environment or from the additional config."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_pairs.errors import ConfigError


def from_environment(name: str) -> dict[str, Any] | None:
    """The JSON object in an environment variable; None when it is unset or empty."""
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f'environment variable {name} is not JSON ({error}): {text!r}; give an object such as {{"enabled": true}}'
        ) from error
    return object_setting(value, f"environment variable {name}")


def object_setting(value: object, where: str) -> dict[str, Any]:
    """The value as a plain dict; ConfigError when it is no JSON object."""
    if not isinstance(value, Mapping):
        raise ConfigError(f'{where} must be a JSON object such as {{"enabled": true}}, got {value!r}')
    return dict(value)


@dataclass(frozen=True, slots=True)
class FieldReader:
    """Reads the fields of one package's key; every refusal is `error` and names key, field, value and what is right.

    `example` is a whole value of the key, shown where something that is no object was given.
    """

    key: str
    error: type[Exception]
    example: str = '{"enabled": true}'

    def fields(self, value: object, known: Iterable[str]) -> dict[str, Any]:
        """The key's value (a mapping, or JSON text as the environment variable has it), its field names all known."""
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                where = f"{error.msg} at character {error.pos}"
                raise self.error(f"{self.key} is not JSON ({where}), got {value!r}") from None
        if not isinstance(value, Mapping):
            raise self.error(f"{self.key} must be an object such as {self.example}, got {value!r}")
        names = list(known)
        for name in value:
            if name not in names:
                raise self.error(f"{self.key} has no key {name!r}; known keys: {', '.join(names)}")
        return dict(value)

    def boolean(self, name: str, value: object) -> bool:
        """True or false."""
        if not isinstance(value, bool):
            raise self.refusal(name, "true or false", value)
        return value

    def whole(self, name: str, value: object, low: int, high: int | None = None, unit: str = "") -> int:
        """A whole number in a range, ends included; `high` None: no upper end."""
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            span = f">= {low}" if high is None else f"from {low} to {high}"
            raise self.refusal(name, f"a whole number {f'of {unit} ' if unit else ''}{span}", value)
        return value

    def one_of(self, name: str, value: object, known: Iterable[str]) -> str:
        """One of a list of words."""
        words = list(known)
        if not isinstance(value, str) or value not in words:
            raise self.refusal(name, f"one of {', '.join(words)}", value)
        return value

    def path(self, name: str, value: object, kind: str = "the path of a folder") -> str | None:
        """A path, or None for none."""
        if value is not None and (not isinstance(value, str) or not value):
            raise self.refusal(name, f"{kind} or null", value)
        return value

    def refusal(self, name: str, expected: str, value: object) -> Exception:
        """The error for a field that is not what it must be."""
        return self.error(f"{self.key}.{name} must be {expected}, got {value!r}")
