"""The plain engine's tokens, kept between runs where KIT_REFERENCES_DIR says so: on a small host they cost minutes.

They depend on the pair, the tiny models and the scenarios alone; without the variable every run makes its own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def _kept(pair: str) -> Path | None:
    base = os.environ.get("KIT_REFERENCES_DIR")
    return Path(base) / pair if base else None


def take(folder: Path, pair: str, names: set[str]) -> bool:
    """Copy the kept files of those names into `folder`; whether all of them were there."""
    kept = _kept(pair)
    if kept is None or not all((kept / name).exists() for name in names):
        return False
    for name in names:
        shutil.copy(kept / name, folder / name)
    return True


def keep(folder: Path, pair: str, names: set[str]) -> None:
    """Keep those files of `folder` that are there for later runs."""
    kept = _kept(pair)
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        for name in names:
            if (folder / name).exists():
                shutil.copy(folder / name, kept / name)
