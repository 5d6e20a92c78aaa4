"""`vllm bench sweep serve` trees: one folder a parameter combination with `run=N.json` files.

The tool starts the server once per combination, so all runs of a folder share one server: one start, not N.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_RUN = re.compile(r"^run=\d+\.json$")


def is_run(path: Path) -> bool:
    """Whether a file is one repeat inside a sweep folder."""
    return _RUN.match(path.name) is not None


def server_of(path: Path) -> str:
    """Name of the server start behind a run file: its parameter combination without the client's part."""
    combination = path.parent.name
    serve = re.match(r"^(SERVE-.*?)(?:-?BENCH-.*)?$", combination)
    return f"{path.parent.parent.name}/{serve.group(1) if serve else 'SERVE'}"
