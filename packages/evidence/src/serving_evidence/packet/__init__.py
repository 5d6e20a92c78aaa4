"""Packets: a plain folder that carries protocol, raw data, verdict and hashes, and can be recomputed offline."""

from __future__ import annotations

from .build import build
from .verify import Verified, verify

__all__ = ["Verified", "build", "verify"]
