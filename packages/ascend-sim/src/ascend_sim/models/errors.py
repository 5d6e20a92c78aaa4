"""What can go wrong with a tiny model: each message says what to do."""

from __future__ import annotations


class ModelError(ValueError):
    """A tiny model cannot be made or served."""


class UnknownModelError(ModelError):
    """No recipe of that name."""


class RefusedModelError(ModelError):
    """The recipe exists, but its architecture does not run in the place asked for."""


class CacheError(ModelError):
    """The checkpoint cannot be written (a full disk, no permission) or a library to write it is missing."""
