"""Real servers, one new process a start, in the planned order; resumable after a kill at any point."""

from __future__ import annotations

from .run import Runner

__all__ = ["Runner"]
