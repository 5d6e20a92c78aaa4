"""The `layerwise_sched` key: strict, so that a misspelt switch is an error and not a default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from vllm_pairs.settings import FieldReader

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


_READ: Final = FieldReader(KEY, ConfigError, '{"timeline": "folder"}')


def _sample(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not (value == 0 or 50 <= value <= 1_000_000):
        raise _READ.refusal(name, "0 or 50 to 1000000 microseconds", value)
    return value


def _policy(name: str, value: object) -> str:
    from layerwise_sched.policy import policy_names

    return _READ.one_of(name, value, policy_names())


def parse(value: object) -> Config:
    """Read the key's value (a mapping, or JSON text as the environment variable has it); raises ConfigError."""
    parsed: dict[str, Any] = {}
    for name, item in _READ.fields(value, [f.name for f in fields(Config)]).items():
        if name in _RANGES:
            low, high, unit = _RANGES[name]
            parsed[name] = _READ.whole(name, item, low, high, unit)
        elif name == "sample_us":
            parsed[name] = _sample(name, item)
        elif name == "policy":
            parsed[name] = _policy(name, item)
        elif name == "strict":
            parsed[name] = _READ.boolean(name, item)
        else:
            parsed[name] = _READ.path(name, item, "a path")
    return Config(**parsed)
