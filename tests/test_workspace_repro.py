"""Reproductions: what counts as shown, that each has its text, and that the page says what the recorded runs say."""

from __future__ import annotations

import importlib.util
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import engines  # noqa: E402
import envs  # noqa: E402
import findings  # noqa: E402

SCRIPTS = sorted(path for path in ROOT.glob("repro/*.py") if not path.stem.startswith("_"))


def show() -> Any:
    spec = importlib.util.spec_from_file_location("repro_show", ROOT / "repro" / "_show.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


FAULT = {"what": "x", "expected": 0, "seen": 3, "faulty": True}
CONTROL = {"what": "y", "expected": 0, "seen": 0}


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([FAULT, CONTROL], True),
        ([FAULT | {"seen": 0}, CONTROL], False),  # a repaired upstream
        ([FAULT, CONTROL | {"seen": 1}], False),  # a control that fails shows nothing
        ([CONTROL], False),
        ([], False),
    ],
)
def test_a_fault_counts_only_where_it_shows_and_the_controls_hold(rows: list[dict[str, Any]], shown: bool) -> None:
    assert show().fault_shown(rows) is shown


def test_every_script_has_its_text_and_its_pairs() -> None:
    told = tomllib.loads((ROOT / "repro" / "findings.toml").read_text(encoding="utf-8"))["finding"]
    assert sorted(one["name"] for one in told) == [path.stem for path in SCRIPTS]
    known = {row["id"] for row in envs.buildable_rows()}
    for path in SCRIPTS:
        pairs = engines.repro_pairs(path)
        assert set(pairs) <= known, path.name
        assert f'"{path.stem}"' in path.read_text(encoding="utf-8"), "it reports under its own name"


def test_a_script_without_pairs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text('"""No header."""\n')
    with pytest.raises(SystemExit, match="no header comment"):
        engines.repro_pairs(tmp_path / "x.py")


def test_the_page_is_the_one_of_the_recorded_runs() -> None:
    told = tomllib.loads(findings.SOURCE.read_text(encoding="utf-8"))["finding"]
    assert findings.PAGE.read_text(encoding="utf-8") == findings.page(told), "run `python tools/findings.py`"


def test_a_run_that_shows_nothing_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"pair": "9.9", "versions": {"vllm": "9.9"}, "passed": False, "rows": [{**FAULT, "seen": "a|b <c>"}]}
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "9.9.json").write_text(json.dumps(run))
    monkeypatch.setattr(findings, "RECORDED", tmp_path)
    text = findings.page([{"name": "x", "title": "T", "why": "w", "kit": "k", "thread": "a/b#1"}])
    assert "not on 9.9" in text
    assert "fault **not shown**" in text
    assert "a\\|b &lt;c>" in text
    assert "https://github.com/a/b/issues/1" in text
