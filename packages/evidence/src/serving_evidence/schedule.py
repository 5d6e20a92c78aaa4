"""Order of the starts: ABBA or BAAB blocks drawn from a seed, so that drift of the box falls on both arms alike."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .protocol import Design


@dataclass(frozen=True)
class Slot:
    """One planned start: position in time, arm, and the pair it belongs to (both zero-based)."""

    index: int
    arm: Literal["A", "B"]
    pair: int

    @property
    def name(self) -> str:
        """Folder name of the start, sorted as in time."""
        return f"{self.index:03d}-{self.arm}"


def plan(design: Design) -> list[Slot]:
    """The slots of a design: two pairs a block, one AB or BA pair at the end when the number is odd."""
    rng = random.Random(design.seed)
    slots: list[Slot] = []
    for pair in range(0, design.pairs, 2):
        block = "ABBA" if rng.random() < 0.5 else "BAAB"
        for offset, arm in enumerate(block[: 2 * min(2, design.pairs - pair)]):
            slots.append(Slot(len(slots), "A" if arm == "A" else "B", pair + offset // 2))
    return slots
