"""The recorded runs of mrv2-metadata's benchmarks; that its pages hold them is test_workspace_readme's to see."""

from __future__ import annotations

import json
from pathlib import Path

RECORDED = Path(__file__).resolve().parent.parent / "docs" / "figures"


def test_the_recorded_runs_passed() -> None:
    for name in ("metadata_steps", "metadata_host"):
        assert json.loads((RECORDED / f"{name}.json").read_text())["passed"] is True
