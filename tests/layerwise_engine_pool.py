"""The in-memory pool where vLLM's engine looks for a backend: one pool a process, for scheduler and worker."""

from __future__ import annotations

from typing import Any

from layerwise_pool import MemoryPool

POOL = MemoryPool()


class EnginePool:
    """What the connector instantiates, in the place of MemCache's, Mooncake's or Yuanrong's class."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Any:
        return POOL

    @classmethod
    def create_scheduler_client(cls, *_args: Any, **_kwargs: Any) -> Any:
        """The scheduler asks the same pool."""
        return POOL


def fresh() -> MemoryPool:
    """An empty pool for the next engine of this process."""
    global POOL
    POOL = MemoryPool()
    return POOL
