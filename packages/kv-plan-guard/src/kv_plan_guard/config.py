"""The `kv_guard_config` key: what it may hold, and errors that name what it must not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from vllm_pairs.settings import FieldReader

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


_READ: Final = FieldReader(KEY, ConfigError)


def _sample(name: str, value: object) -> int:
    if not isinstance(value, Mapping) or set(value) != {"every"}:
        raise _READ.refusal(name, '{"every": N}', value)
    return _READ.whole(f"{name}.every", value["every"], 1, 1 << 30)


_READERS: Final[dict[str, tuple[str, Callable[[str, object], Any]]]] = {
    "enabled": ("enabled", _READ.boolean),
    "action": ("action", partial(_READ.one_of, known=ACTIONS)),
    "sample": ("every", _sample),
    "report": ("report", partial(_READ.one_of, known=FORMATS)),
    "replay_dir": ("replay_dir", _READ.path),
    "replay_files": ("replay_files", partial(_READ.whole, low=0, high=10_000)),
    "replay_bytes": ("replay_bytes", partial(_READ.whole, low=1 << 16, high=1 << 30)),
    "stats_dir": ("stats_dir", _READ.path),
    "tail": ("tail", _READ.boolean),
}


def parse(value: object) -> Config:
    """Read the key's value (a mapping, or JSON text as the environment variable has it); raises ConfigError."""
    parsed: dict[str, Any] = {}
    for name, item in _READ.fields(value, _READERS).items():
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
