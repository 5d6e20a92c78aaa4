"""A random checkpoint as data: a configuration and a table of tensors.

Nothing is drawn here. One recipe gives one set of bytes, so its digest names the checkpoint in the cache.
Needs numpy only.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = 1
"""Raised when the same recipe would give other bytes (another generator, another tokenizer)."""

WEIGHT_STD = 0.15
"""Spread of the projections: with vLLM's own dummy weights greedy decoding repeats two tokens and hides faults."""

Kind = Literal["normal", "uniform", "ones", "zeros", "identity_last", "identity_first"]


@dataclass(frozen=True)
class Tensor:
    """One float32 weight: its shape, how it is filled, and for `normal` its spread (for `uniform` its upper end)."""

    shape: tuple[int, ...]
    kind: Kind = "normal"
    std: float = WEIGHT_STD
    low: float = 0.0

    def draw(self, name: str, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the values; a stream of its own per name, so that a new tensor leaves the others as they are."""
        if self.kind == "ones":
            return np.ones(self.shape, np.float32)
        if self.kind == "zeros":
            return np.zeros(self.shape, np.float32)
        if self.kind in ("identity_last", "identity_first"):
            return self._identity()
        words = np.frombuffer(hashlib.sha256(f"{seed}:{name}".encode()).digest(), np.uint32)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([int(word) for word in words])))
        if self.kind == "uniform":
            return generator.uniform(self.low, self.std, self.shape).astype(np.float32)
        return (generator.standard_normal(self.shape) * self.std).astype(np.float32)

    def _identity(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        """[rows, 2 * rows]: lets one half of a concatenated input through, so that a draft follows its target."""
        rows, columns = self.shape
        if columns != 2 * rows:
            raise ValueError(f"an identity half needs shape [n, 2n], got {self.shape!r}")
        out = np.zeros(self.shape, np.float32)
        start = rows if self.kind == "identity_last" else 0
        out[:, start : start + rows] = np.eye(rows, dtype=np.float32)
        return out


@dataclass(frozen=True)
class Recipe:
    """What `config.json` and `model.safetensors` of a checkpoint hold."""

    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def digest(self, name: str, seed: int) -> str:
        """Return 16 hex digits that change with anything that changes the files."""
        table = {key: [list(t.shape), t.kind, t.std, t.low] for key, t in self.tensors.items()}
        text = json.dumps([FORMAT, name, seed, self.config, table], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draw(self, seed: int) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
        """Return every weight by name, float32."""
        return {name: tensor.draw(name, seed) for name, tensor in self.tensors.items()}
