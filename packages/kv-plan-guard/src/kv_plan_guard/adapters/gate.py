"""How a snapshot crosses with the step's own output copy, and what keeps a bad step's tokens from leaving."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kv_plan_guard.adapters.snapshot import Snapshot

logger = logging.getLogger(__name__)
EXIT_STATUS = 70  # EX_SOFTWARE: an internal error was found


class Riding:
    """Stands for `num_sampled_tokens` while the output copies it; `.to()` issues the snapshot's copy behind it.

    The output calls `.to()` on its copy stream, ordered after the step's stream, and records its event later: so the
    snapshot's copy is covered by the one event that the output waits for anyway. A tensor's other attributes are its
    own.
    """

    __slots__ = ("_snapshot", "_tensor")

    def __init__(self, tensor: Any, snapshot: Snapshot) -> None:
        self._tensor = tensor
        self._snapshot = snapshot

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The tensor's own copy, and once the snapshot's."""
        __tracebackhide__ = True  # the first copy is the output's, also for who counts copies by call site
        copied = self._tensor.to(*args, **kwargs)
        if not self._snapshot.issued:
            self._snapshot.issue()
        return copied

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def take_down_worker(reason: str) -> None:
    """End this worker process at once, so that the engine sees a dead worker and fails instead of hanging.

    An error raised on a rank whose result nobody reads is only logged by vLLM's worker loop, while the other ranks wait
    for it in their next collective.
    """
    logger.critical("kv-plan-guard: ending this worker so that the engine stops: %s", reason)
    logging.shutdown()
    os._exit(EXIT_STATUS)
