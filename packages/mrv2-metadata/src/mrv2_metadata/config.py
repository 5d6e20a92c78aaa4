"""The `mrv2_metadata` key: strict, so that a misspelt switch is an error and not a default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from mrv2_metadata.errors import ConfigError

KEY: Final = "mrv2_metadata"
ENV: Final = "VLLM_MRV2_METADATA"
Verify = Literal["off", "sample", "every"]
VERIFY: Final[tuple[Verify, ...]] = ("off", "sample", "every")
# A proposer stands here once its correction-free mode has a proof beside it (README, "What is known, and what is not").
PROVEN_PROPOSERS: Final = ("eagle",)


@dataclass(frozen=True, slots=True)
class Config:
    """What the operator asked for; every field is off or harmless until named.

    `verify_period` is in steps and read with `verify: "sample"` only. `speculative_sync` names proposers whose
    scheduler counts are trusted under synchronous scheduling. `stats_dir` is a folder that each worker writes its
    counters to.
    """

    enabled: bool = False
    verify: Verify = "off"
    verify_period: int = 64
    strict: bool = False
    speculative_sync: frozenset[str] = field(default_factory=frozenset)
    stats_dir: str | None = None


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{KEY}.{name} must be true or false, got {value!r}")
    return value


def _verify(value: object) -> Verify:
    for known in VERIFY:
        if value == known:
            return known
    raise ConfigError(f"{KEY}.verify must be one of {', '.join(VERIFY)}, got {value!r}")


def _period(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{KEY}.verify_period must be a whole number of steps >= 1, got {value!r}")
    return value


def _proposers(value: object) -> frozenset[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{KEY}.speculative_sync must be a list of proposer names, got {value!r}")
    for item in value:
        if item not in PROVEN_PROPOSERS:
            raise ConfigError(
                f"{KEY}.speculative_sync names {item!r}, for which there is no proof; "
                f"proven: {', '.join(PROVEN_PROPOSERS)}. Remove it."
            )
    return frozenset(value)


def _folder(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{KEY}.stats_dir must be the path of a folder or null, got {value!r}")
    return value


def parse(value: object) -> Config:
    """Read the key's value (a mapping, or JSON text as the environment variable has it); raises ConfigError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{KEY} is not JSON ({error.msg} at character {error.pos}), got {value!r}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f'{KEY} must be an object such as {{"enabled": true}}, got {value!r}')
    known = [f.name for f in fields(Config)]
    for name in value:
        if name not in known:
            raise ConfigError(f"{KEY} has no key {name!r}; known keys: {', '.join(known)}")
    parsed: dict[str, Any] = {}
    readers = {"verify": _verify, "verify_period": _period, "speculative_sync": _proposers, "stats_dir": _folder}
    for name, item in value.items():
        reader = readers.get(name)
        parsed[name] = reader(item) if reader is not None else _bool(name, item)
    config = Config(**parsed)
    if "verify_period" in parsed and config.verify != "sample":
        raise ConfigError(
            f'{KEY}.verify_period is read with verify "sample" only, got verify {config.verify!r}; remove it'
        )
    return config
