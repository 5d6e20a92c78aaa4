"""A package's setting as a JSON object: from the environment or from the additional config."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
