"""The command as a user runs it: tables, JSON, and one clear line with status 2 for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from make import PROTOCOL, make_packet, write_folder
from serving_evidence.cli import app
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pathlib import Path


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_module_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "serving_evidence", "verify", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("serving-evidence: ")
    assert len(done.stderr.splitlines()) == 1


def test_analyze(tmp_path: Path) -> None:
    a, b = write_folder(tmp_path / "a", 6), write_folder(tmp_path / "b", 6, speed=1.05, first=1)
    done = call("analyze", a, b, "--metric", "output_throughput", "--json")
    data = json.loads(done.stdout)
    assert (done.exit_code, data["version"], data["rows"][0]["verdict"]["status"]) == (0, 1, "REPRODUCED")
    table = call("analyze", a, b, "--metric", "output_throughput")
    assert table.exit_code == 0
    assert "REPRODUCED" in table.stdout
    assert "exploratory" in table.stdout


def test_power(tmp_path: Path) -> None:
    data = json.loads(call("power", "--sd", 0.02, "--effect", 0.02, "--json").stdout)
    # An effect of 2 % is 0.0198 in logs, a little less than the spread of 0.02: one pair more than for 1.0 (10).
    assert data["pairs_needed"] == 11
    assert data["rows"][0]["at_80"] == pytest.approx(0.0290, abs=2e-4)
    a, b = write_folder(tmp_path / "a", 6), write_folder(tmp_path / "b", 6, first=1)
    assert call("power", a, b).exit_code == 0
    packet = make_packet(tmp_path / "packet")
    planned = json.loads(call("power", "--packet", packet, "--json").stdout)
    row = json.loads((packet / "verdict.json").read_text())["rows"][0]
    assert planned["sd"] > row["sd"]  # an upper bound of the spread, not the spread
    assert call("power", "--packet", packet, "--metric", "rtfx").exit_code == 2
    assert call("power", "--packet", packet, "--sd", 0.1).exit_code == 2


def test_init_run_dry_and_verify_and_report(tmp_path: Path) -> None:
    target = tmp_path / "p.toml"
    assert call("init", target, "--template", "kv-plan-guard").exit_code == 0
    assert call("init", target).exit_code == 2
    dry = json.loads(call("run", target, "--out", tmp_path / "run", "--dry-run", "--json").stdout)
    assert len(dry["order"]) == 20
    assert not (tmp_path / "run").exists()
    packet = make_packet(tmp_path / "packet")
    assert json.loads(call("verify", packet, "--json").stdout)["verdict"]["status"] == "REPRODUCED"
    assert call("report", packet, "--out", tmp_path / "r.html").exit_code == 0
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_bad_input_is_one_line_and_status_2(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(PROTOCOL.replace("pairs = 6", 'pairs = "six"'))
    for words in (
        ("analyze", tmp_path / "none", tmp_path),
        ("analyze", tmp_path, tmp_path, "--rule", "nicer"),
        ("analyze", tmp_path, tmp_path, "--margin", "7"),
        ("power",),
        ("power", "--sd", "-1"),
        ("verify", tmp_path),
        ("report", tmp_path, "--out", tmp_path / "r.html"),
        ("run", tmp_path / "bad.toml", "--out", tmp_path / "run"),
        ("run", tmp_path / "none.toml", "--out", tmp_path / "run"),
        ("init", tmp_path / "x.toml", "--template", "none"),
    ):
        done = call(*words)
        assert done.exit_code == 2, (words, done.stdout, done.stderr)
        assert done.stdout == ""
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.toml"]
