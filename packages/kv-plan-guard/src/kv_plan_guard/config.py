"""The `kv_guard_config` key: what it may hold, and errors that name what it must not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from kv_plan_guard.errors import ConfigError

KEY: Final = "kv_guard_config"
ENV: Final = "VLLM_KV_PLAN_GUARD"

Action: TypeAlias = Literal["raise", "log"]
ReportFormat: TypeAlias = Literal["text", "json"]
ACTIONS: Final[tuple[Action, ...]] = ("raise", "log")
FORMATS: Final[tuple[ReportFormat, ...]] = ("text", "json")


@dataclass(frozen=True, slots=True)
class Config:
    """What the user asked for; every field is off or harmless until named.

    `action`: under `raise` the tokens of a bad plan are never released and the failure latches; under `log` it is
    reported once per signature, counted, and serving goes on. `every`: plans of every N-th step are audited (the key
    `sample: {"every": N}`); the mirror follows every step in any case. `report`: form of the logged report.
    `replay_dir`: folder for replay files, None makes one under the system's temporary folder at the first finding; at
    most `replay_files` files (0: none) of at most `replay_bytes` bytes each, per worker. `stats_dir`: folder that each
    worker writes its counters to, None writes none. `tail`: also note live ids behind the used columns of a row
    (information, no error; costs a pass over the unused columns).
    """

    enabled: bool = False
    action: Action = "raise"
    every: int = 1
    report: ReportFormat = "text"
    replay_dir: str | None = None
    replay_files: int = 16
    replay_bytes: int = 8 << 20
    stats_dir: str | None = None
    tail: bool = False


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{KEY}.{name} must be true or false, got {value!r}")
    return value


def _one_of(known: tuple[str, ...]) -> Callable[[str, object], str]:
    def read(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in known:
            raise ConfigError(f"{KEY}.{name} must be one of {', '.join(known)}, got {value!r}")
        return value

    return read


def _count(low: int, high: int) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{KEY}.{name} must be a whole number from {low} to {high}, got {value!r}")
        return value

    return read


def _folder(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{KEY}.{name} must be the path of a folder or null, got {value!r}")
    return value


def _sample(name: str, value: object) -> int:
    if not isinstance(value, Mapping) or set(value) != {"every"}:
        raise ConfigError(f'{KEY}.{name} must be {{"every": N}}, got {value!r}')
    return _count(1, 1 << 30)(f"{name}.every", value["every"])


_READERS: Final[dict[str, tuple[str, Callable[[str, object], Any]]]] = {
    "enabled": ("enabled", _bool),
    "action": ("action", _one_of(ACTIONS)),
    "sample": ("every", _sample),
    "report": ("report", _one_of(FORMATS)),
    "replay_dir": ("replay_dir", _folder),
    "replay_files": ("replay_files", _count(0, 10_000)),
    "replay_bytes": ("replay_bytes", _count(1 << 16, 1 << 30)),
    "stats_dir": ("stats_dir", _folder),
    "tail": ("tail", _bool),
}


def parse(value: object) -> Config:
    """Read the key's value (a mapping, or JSON text as the environment variable has it); raises ConfigError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{KEY} is not JSON ({error.msg} at character {error.pos}), got {value!r}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f'{KEY} must be an object such as {{"enabled": true}}, got {value!r}')
    parsed: dict[str, Any] = {}
    for name, item in value.items():
        if name not in _READERS:
            raise ConfigError(f"{KEY} has no key {name!r}; known keys: {', '.join(_READERS)}")
        field, read = _READERS[name]
        parsed[field] = read(name, item)
    return Config(**parsed)


def to_json(config: Config) -> dict[str, Any]:
    """The config in the form `parse` reads."""
    plain: dict[str, Any] = {}
    for name, (field, _) in _READERS.items():
        value = getattr(config, field)
        plain[name] = {"every": value} if name == "sample" else value
    assert {field for field, _ in _READERS.values()} == {f.name for f in fields(Config)}
    return plain
