"""The `mrv2_metadata` key: strict, so that a misspelt switch is an error and not a default."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, cast

from vllm_pairs.settings import FieldReader

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


_READ: Final = FieldReader(KEY, ConfigError)


def _proposers(value: object) -> frozenset[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise _READ.refusal("speculative_sync", "a list of proposer names", value)
    for item in value:
        if item not in PROVEN_PROPOSERS:
            raise ConfigError(
                f"{KEY}.speculative_sync names {item!r}, for which there is no proof; "
                f"proven: {', '.join(PROVEN_PROPOSERS)}. Remove it."
            )
    return frozenset(value)


def parse(value: object) -> Config:
    """Read the key's value (a mapping, or JSON text as the environment variable has it); raises ConfigError."""
    parsed: dict[str, Any] = {}
    for name, item in _READ.fields(value, [f.name for f in fields(Config)]).items():
        match name:
            case "verify":
                parsed[name] = cast("Verify", _READ.one_of(name, item, VERIFY))
            case "verify_period":
                parsed[name] = _READ.whole(name, item, 1, unit="steps")
            case "speculative_sync":
                parsed[name] = _proposers(item)
            case "stats_dir":
                parsed[name] = _READ.path(name, item)
            case _:
                parsed[name] = _READ.boolean(name, item)
    config = Config(**parsed)
    if "verify_period" in parsed and config.verify != "sample":
        raise ConfigError(
            f'{KEY}.verify_period is read with verify "sample" only, got verify {config.verify!r}; remove it'
        )
    return config
