"""The Python interpreters of this machine: found, never downloaded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import envs

SUPPORTED = ("3.11", "3.12")


def _answers(python: Path, version: str) -> bool:
    """Whether this file really is a working interpreter of that version (a pyenv shim may not be)."""
    try:
        done = subprocess.run(
            [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def _pyenv(version: str) -> list[Path]:
    """Interpreters that pyenv keeps but does not put on PATH, newest first."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = root.glob(f"versions/{version}.*/bin/python{version}")
    return sorted(found, key=lambda path: [int(part) for part in path.parts[-3].split(".") if part.isdigit()])[::-1]


def find(version: str) -> Path | None:
    """The interpreter of `version` ("3.12") on this machine, or None. Asks `uv python find`, then pyenv's folder."""
    done = subprocess.run(
        [envs.find_uv(), "python", "find", "--no-python-downloads", "--no-project", version],
        capture_output=True,
        text=True,
        check=False,
    )
    candidates = [Path(done.stdout.strip())] if done.returncode == 0 else []
    return next((path for path in [*candidates, *_pyenv(version)] if _answers(path, version)), None)
