"""Results of one scenario on one engine, as they cross from the engine's process: plain JSON, one file a scenario."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True)
class Result:
    """What one engine did with one scenario.

    `tokens` are output token ids by request, in prompt order. `steps` counts engine steps. `per_decode_step` holds the
    counters' averages over ordinary decode steps (empty on the plain engine). `seconds` is generation alone,
    `ms_per_decode_step` its share.
    """

    scenario: str
    engine: str
    tokens: list[list[int]]
    steps: int
    preemptions: int
    prefix_hits: int
    seconds: float
    ms_per_decode_step: float
    drafted: int = 0
    accepted: int = 0
    decode_steps: int = 0
    runner: str = ""
    attention: str = ""
    per_decode_step: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    def write(self, folder: Path) -> Path:
        """Write atomically as ``<engine>-<scenario>.json``."""
        path = folder / f"{self.engine}-{self.scenario}.json"
        write_json(path, asdict(self))
        return path

    @staticmethod
    def read(path: Path) -> Result:
        """Read what `write` wrote."""
        return Result(**json.loads(path.read_text()))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON through a temporary file, so that a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error


@dataclass(frozen=True)
class Difference:
    """The first place where two engines disagree."""

    request: int
    position: int
    expected: int | None
    actual: int | None

    def __str__(self) -> str:
        return f"request {self.request}, output token {self.position}: expected {self.expected}, got {self.actual}"


@dataclass(frozen=True)
class Comparison:
    """Tokens of the engine under test against the reference, position by position."""

    equal: int
    total: int
    first: Difference | None

    @property
    def same(self) -> bool:
        """Whether every token is equal and there is at least one."""
        return self.first is None and self.total > 0


def compare(expected: list[list[int]], actual: list[list[int]]) -> Comparison:
    """Compare two lists of token lists; a missing or surplus token or request counts as a difference."""
    equal = total = 0
    first: Difference | None = None
    for request in range(max(len(expected), len(actual))):
        want = expected[request] if request < len(expected) else []
        have = actual[request] if request < len(actual) else []
        for position in range(max(len(want), len(have))):
            left = want[position] if position < len(want) else None
            right = have[position] if position < len(have) else None
            total += 1
            if left == right:
                equal += 1
            elif first is None:
                first = Difference(request, position, left, right)
    return Comparison(equal, total, first)
