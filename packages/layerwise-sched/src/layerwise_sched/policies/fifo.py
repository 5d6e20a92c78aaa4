"""Upstream's order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task


class Fifo:
    """The head, always. `reorders` is False: with it the queue's own `get` runs and nothing here is called."""

    name = "fifo"
    reorders = False

    def __init__(self, **_options: Any) -> None:
        pass

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:  # the protocol's
        """Index 0."""
        return 0
