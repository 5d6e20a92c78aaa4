"""Results that others published as numbers only, under their rule and under this one; nothing is recomputed from them.

A TOML file states what was published: pairs, positive pairs, estimate, interval, verdict, rule. Without the values of
each pair no interval of ours can be had, so the only verdict that this package may add is the one that needs none:
below six pairs every verdict is INCONCLUSIVE.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from . import canonical, protocol, stats
from .errors import ProtocolError
from .stats import MIN_PAIRS

if TYPE_CHECKING:
    from pathlib import Path

Text = Annotated[str, Field(min_length=1, max_length=4_000)]
Percent = Annotated[float, Field(ge=-1_000, le=1_000)]


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Figure(_Model):
    """One published number: percent change of B against A, its interval if there was one, pairs better if said."""

    metric: Text
    scenario: Text
    change_percent: Percent
    low_percent: Percent | None = None
    high_percent: Percent | None = None
    positive_pairs: Annotated[int, Field(ge=0)] | None = None


class Published(_Model):
    """One published result."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    title: Text
    date: Text
    who: Text
    conditions: Text
    pairs: Annotated[int, Field(ge=1, le=1_000)]
    requests: Annotated[int, Field(ge=0)]
    failed: Annotated[int, Field(ge=0)]
    method: Text
    figures: Annotated[tuple[Figure, ...], Field(min_length=1)]
    their_verdict: Literal["REPRODUCED", "NOT_REPRODUCED", "INCONCLUSIVE"]
    their_rule: Text
    their_decision: Text
    mechanism: Text
    deviations: tuple[Text, ...] = ()


def load(path: Path) -> Published:
    """Read one file; raises ProtocolError with the field that is wrong."""
    try:
        return Published.model_validate_json(canonical.dumps(tomllib.loads(path.read_text(encoding="utf-8"))))
    except (OSError, tomllib.TOMLDecodeError) as problem:
        raise ProtocolError(f"{path.name}: {problem}") from None
    except ValidationError as problem:
        raise ProtocolError(f"{path.name}: {protocol.explain(problem)}") from None


def our_verdict(found: Published) -> tuple[Literal["INCONCLUSIVE"], str]:
    """Status and reason under this package's rule."""
    smallest = 2.0 ** (1 - found.pairs)
    if found.pairs < MIN_PAIRS:
        reason = (
            f"{found.pairs} pairs of starts: the smallest two-sided p of an exact paired test is {smallest:.4f}, above "
            f"5 %. A verdict needs {MIN_PAIRS}; what six pairs would have said is unknown."
        )
    else:
        reason = "the values of each pair were not published with the numbers, so no interval can be computed here"
    covered = stats.simulated_coverage("percentile", found.pairs)
    if covered is not None:
        reason += (
            f" A nominal 95 % percentile bootstrap over {found.pairs} pairs held the truth in "
            + ", ".join(f"{value:.0%} ({shape})" for shape, value in covered.items())
            + " of simulated experiments."
        )
    return "INCONCLUSIVE", reason
