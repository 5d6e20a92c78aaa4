"""The commands, on a spool as a worker leaves it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from layerwise_sched.cli import app
from test_timeline import spooled
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pathlib import Path

SPEC = (
    '{"shared_buffers": 3, "independent": [0, 5, 6, 10], "straggler_us": 6000, "straggler_layers": [1, 4], "steps": 2}'
)


def call(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "timeline"
    target.mkdir()
    spooled(target)
    return target


class Page(HTMLParser):
    """Counts tags; every opened one must be closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)
        for name, value in attrs:
            assert name not in {"src", "onclick"}
            assert "http" not in (value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_in_all_its_forms(folder: Path, tmp_path: Path) -> None:
    text = call("report", folder)
    for word in ("Head-of-line blocking", "save_npu", "gate_condition", "layerwise_num_shared_buffers"):
        assert word in text
    (worker,) = json.loads(call("report", folder, "--json"))["workers"].values()
    assert worker["tasks"]["unfinished"] == worker["explained"]["problems"] == worker["legal"]["violations"] == 0
    assert worker["passes"]["count"] > 0
    page = tmp_path / "page.html"
    call("report", folder, "--html", page)
    parser = Page()
    parser.feed(page.read_text())
    assert parser.open == []
    assert parser.seen.count("svg") == 3
    assert "script" not in parser.seen


def test_compare_replays(folder: Path) -> None:
    (worker,) = json.loads(call("compare", folder, "--json"))["workers"].values()
    assert [row["policy"] for row in worker["rows"]] == ["fifo", "ready", "gate"]
    assert worker["steps"] == 3
    assert worker["skipped_steps"] == 0
    assert worker["rows"][0]["hol_events"] > 0 == worker["rows"][1]["hol_events"]
    assert "Policies on the same workload" in call("compare", folder)


def test_simulate(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text(SPEC)
    rows = json.loads(call("simulate", spec, "--json", "--policies", "fifo,ready"))["rows"]
    assert [row["policy"] for row in rows] == ["fifo", "ready"]
    assert rows[0]["hol_events"] > 0
    assert "impossible here" in call("simulate")
    call("simulate", spec, "--html", tmp_path / "page.html")
    assert "head-of-line: L4 misses save_cpu while L5 ready" in (tmp_path / "page.html").read_text()


def test_export_and_seal(folder: Path, tmp_path: Path) -> None:
    call("export", folder, "--out", tmp_path / "t.json.gz")
    call("export", folder, "--out", tmp_path / "insight", "--format", "insight")
    assert json.loads((tmp_path / "insight" / "chrome_tracing.json").read_text())["traceEvents"]
    assert "wrote" in call("seal", folder)
    assert sorted(path.suffix for path in folder.iterdir()) == [".spool", ".timeline"]
    assert "save_npu" in call("report", folder)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "is not a folder"),
        (["simulate", "nowhere.json"], "cannot be read"),
        (["simulate", "--policies", "lifo"], "--policies names 'lifo'; known: fifo, ready, gate"),
        (["simulate", "--policies", ","], "give at least one"),
        (["export", "{folder}", "--out", "x.json.gz", "--format", "csv"], "--format is 'csv'"),
        (["export", "{folder}", "--out", "x.json"], "ending in .json.gz"),
        (["export", "{folder}", "--out", "{folder}"], "exists already"),
        (["report", "{folder}", "--html", "{folder}"], "exists already"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words: list[str], message: str, folder: Path) -> None:
    done = CliRunner().invoke(app, [word.format(folder=folder) for word in words])
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_text_of_others_is_escaped(tmp_path: Path, folder: Path) -> None:
    tasks = next(folder.glob("*.spool")) / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace('"r0.0"', '"<script>[red]\\u202e"'))
    call("report", folder, "--html", tmp_path / "page.html")
    assert "<script" not in (tmp_path / "page.html").read_text()
    call("report", folder)


def test_version() -> None:
    from layerwise_sched import __version__

    assert call("--version").strip() == __version__
