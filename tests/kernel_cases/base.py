"""What every case of the fast kernels is made of: one launch, its random arguments, the table of cases."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from ascend_sim.kernels.swap import FastKernel

torch = pytest.importorskip("torch", reason="needs a pair's environment")

MAX_REQS, MAX_LEN, VOCAB, STEPS = 8, 64, 48, 3
SEEDS = range(12)


@dataclass
class Case:
    """One launch: the arguments by name (of every version), and the tensors whose memory counts afterwards."""

    grid: tuple[int, ...]
    named: dict[str, Any]
    memory: list[torch.Tensor] = field(default_factory=list)

    def tensors(self) -> list[torch.Tensor]:
        return [value for value in self.named.values() if isinstance(value, torch.Tensor)] + self.memory


Build = Callable[[np.random.Generator], Case]
CASES: dict[str, list[Build]] = {}


def case(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        CASES.setdefault(name, []).append(build)
        return build

    return register


def i32(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int32))


def i64(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.int64))


def f32(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float32))


def cumulative(lengths: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def some_rows(rng: np.random.Generator, low: int = 1) -> np.ndarray:
    return rng.permutation(MAX_REQS)[: rng.integers(low, MAX_REQS + 1)]


def index(rng: np.random.Generator, rows: np.ndarray) -> torch.Tensor:
    return i64(rows) if rng.integers(2) else i32(rows)


def logits_layout(rng: np.random.Generator, count: int, new_tokens: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(logits, query lengths) of each request: between one and 1 + STEPS logits, at the end of the query."""
    num_logits = rng.integers(0, STEPS + 1, count) + new_tokens
    return num_logits, num_logits + rng.integers(0, 3, count)


def pointers(tables: list[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([table.data_ptr() for table in tables], dtype=torch.uint64)


# The kernel under test is looked up by its builders through this: a version may have fewer parameters.
current: list[FastKernel] = []


def parameters() -> tuple[str, ...]:
    return current[-1].parameters
