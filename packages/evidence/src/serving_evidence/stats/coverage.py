"""How often each interval held the truth in simulation: figures of `nox -s bench -- coverage`, shipped to be shown."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def _table() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("coverage.json").read_text(encoding="utf-8")
    return dict(json.loads(text)["methods"])


def simulated_coverage(method: str, pairs: int) -> dict[str, float] | None:
    """Coverage of a nominal 95 % interval by shape of the start effects, worst over 1 to 256 requests a start.

    method: "verdict", "percentile" or "bca". None for a method or a number of pairs that was not simulated.
    """
    found = _table().get(method, {}).get(str(pairs))
    return None if found is None else dict(found)
