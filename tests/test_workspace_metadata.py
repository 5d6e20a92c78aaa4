"""The tables of mrv2-metadata's README and docs page are the recorded runs', not typed by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "docs" / "figures"
PAGES = ("packages/mrv2-metadata/README.md", "docs/metadata.md")


def table(name: str) -> str:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--markdown", str(RECORDED / f"{name}.json")]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", ["metadata_steps", "metadata_host"])
@pytest.mark.parametrize("page", PAGES)
def test_the_table_is_the_recorded_run(name: str, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"<!-- figures: {name} -->\n{table(name)}<!-- end: {name} -->" in text


def test_the_recorded_runs_passed() -> None:
    for name in ("metadata_steps", "metadata_host"):
        assert json.loads((RECORDED / f"{name}.json").read_text())["passed"] is True
