"""The `layerwise_sched` key: strict, so that a misspelt switch is an error and not a default."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from layerwise_sched.errors import ConfigError

KEY: Final = "layerwise_sched"
ENV: Final = "VLLM_LAYERWISE_SCHED"


@dataclass(frozen=True, slots=True)
class Config:
    """What the operator asked for. Without `timeline` and with policy "fifo" nothing is put in.

    timeline: folder that each worker writes its timeline to; None: no timeline, and no cost.
    policy: a name of `policy_names()`; "fifo" is upstream's own queue.
    max_hold_ms: how long a policy may leave a not-ready head in the queue before upstream's handler gets it, so that
        upstream's own polls for failed saves run; milliseconds, 1 to 10,000 (upstream polls every 10 s).
    poll_us: time between two looks at a queue in which nothing is ready; microseconds, 10 to 100,000.
    lookahead: tasks that a policy looks at behind the head, 1 to 4,096.
    ring_rows: capacity of each thread's ring, in rows, 1,024 to 2**24.
    sample_us: time between two looks for evidence of head-of-line blocking while a timeline is on; microseconds, 50 to
        1,000,000; 0: never, so that only stamped events are evidence.
    control: file whose first word names the policy in force; read once a step, so that a running engine can be
        switched and rolled back. None: the policy stays.
    strict: refuse to start where this connector or pair cannot be served, instead of one warning.
    """

    timeline: str | None = None
    policy: str = "fifo"
    max_hold_ms: int = 1_000
    poll_us: int = 100
    lookahead: int = 16
    ring_rows: int = 16_384
    sample_us: int = 300
    control: str | None = None
    strict: bool = False

    @property
    def active(self) -> bool:
        """Whether anything is to be put in."""
        return self.timeline is not None or self.policy != "fifo" or self.control is not None


_RANGES: Final[dict[str, tuple[int, int, str]]] = {
    "max_hold_ms": (1, 10_000, "milliseconds"),
    "poll_us": (10, 100_000, "microseconds"),
    "lookahead": (1, 4_096, "tasks"),
    "ring_rows": (1_024, 2**24, "rows"),
}


def _number(name: str, value: object) -> int:
    low, high, unit = _RANGES[name]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{KEY}.{name} must be a whole number of {unit} from {low} to {high}, got {value!r}")
    return value


def _sample(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not (value == 0 or 50 <= value <= 1_000_000):
        raise ConfigError(f"{KEY}.sample_us must be 0 or 50 to 1000000 microseconds, got {value!r}")
    return value


def _path(name: str, value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{KEY}.{name} must be a path or null, got {value!r}")
    return value


def _policy(value: object) -> str:
    from layerwise_sched.policy import policy_names

    names = policy_names()
    if value not in names or not isinstance(value, str):
        raise ConfigError(f"{KEY}.policy must be one of {', '.join(names)}, got {value!r}")
    return value


def _bool(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{KEY}.{name} must be true or false, got {value!r}")
    return value


def parse(value: object) -> Config:
    """Read the key's value (a mapping, or JSON text as the environment variable has it); raises ConfigError."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{KEY} is not JSON ({error.msg} at character {error.pos}), got {value!r}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f'{KEY} must be an object such as {{"timeline": "folder"}}, got {value!r}')
    known = [f.name for f in fields(Config)]
    parsed: dict[str, Any] = {}
    for name, item in value.items():
        if name not in known:
            raise ConfigError(f"{KEY} has no key {name!r}; known keys: {', '.join(known)}")
        if name in _RANGES:
            parsed[name] = _number(name, item)
        elif name == "sample_us":
            parsed[name] = _sample(item)
        elif name == "policy":
            parsed[name] = _policy(item)
        elif name == "strict":
            parsed[name] = _bool(name, item)
        else:
            parsed[name] = _path(name, item)
    return Config(**parsed)
