"""Errors of this package: each says what was wrong, the value, and what to do next."""

from __future__ import annotations


class EvidenceError(Exception):
    """Base of every error that this package raises on purpose."""


class StatsError(EvidenceError, ValueError):
    """Numbers that no statistic can be computed from."""


class ProtocolError(EvidenceError, ValueError):
    """A protocol file that cannot be used as written."""


class ResultError(EvidenceError, ValueError):
    """A benchmark tool's result file that cannot be read as one."""


class PacketError(EvidenceError, ValueError):
    """A packet that is refused: broken, unsafe, or not saying what its data say."""


class RunError(EvidenceError, RuntimeError):
    """A run that cannot begin or cannot go on."""
