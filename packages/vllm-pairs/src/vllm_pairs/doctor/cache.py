"""Reports kept by content: the hash of both trees, of the doctor's own source, and of the Python that read them.

A file holds one report as JSON. What cannot be read back is made again; a cache that cannot be written is done without.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
import tempfile
from functools import cache as once
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_pairs.doctor.findings import Report, report_from_dict

if TYPE_CHECKING:
    from vllm_pairs.doctor.sources import Tree

logger = logging.getLogger(__name__)
MOST_FILES = 512


def default_folder() -> Path:
    """Where reports are kept: $XDG_CACHE_HOME/vllm-pairs/doctor, else ~/.cache/vllm-pairs/doctor."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vllm-pairs" / "doctor"


@once
def doctor_sha256() -> str:
    """A hash of the doctor's own source: another doctor may find other things."""
    total = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def path_of(folder: Path, *trees: Tree, also: str = "") -> Path:
    """The file of one cell; `also` is what else it depends on."""
    key = hashlib.sha256("\0".join((doctor_sha256(), also, *(tree.sha256 for tree in trees))).encode())
    return folder / f"{key.hexdigest()}.json"


def read(path: Path) -> Report | None:
    """A kept report, None where there is none that can be read."""
    try:
        return report_from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(path: Path, report: Report) -> None:
    """Keep a report: whole or not at all. The oldest go where there are many."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(report.as_dict(), file)
        os.replace(name, path)
        kept = sorted(path.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)
        for old in kept[:-MOST_FILES]:
            with contextlib.suppress(FileNotFoundError):
                old.unlink()
    except OSError as error:
        logger.warning("the doctor's cache %s cannot be written: %s", path.parent, error)
