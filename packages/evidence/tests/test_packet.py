"""Packets: honest ones verify with plain tools, changed ones are refused, strangers' ones do nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from make import PROTOCOL, bench_json, make_packet
from serving_evidence import text
from serving_evidence.errors import PacketError
from serving_evidence.packet import verify
from serving_evidence.packet.read import MANIFEST, safe_name
from serving_evidence.report import page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_packet(tmp_path_factory.mktemp("packets") / "honest")


@pytest.fixture
def packet(honest: Path, tmp_path: Path) -> Path:
    return shutil.copytree(honest, tmp_path / "packet")


def seal(folder: Path) -> None:
    """A fresh manifest, as an attacker would write one."""
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST)
    (folder / MANIFEST).write_text(
        "".join(f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    )


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))


def test_an_honest_packet_verifies_here_and_with_sha256sum(packet: Path) -> None:
    verified = verify(packet)
    assert verified.verdict["status"] == "REPRODUCED"
    assert verified.verdict["decision"]["choice"] == "ADOPT"
    assert verified.verdict["invalid"] == []
    assert [row["role"] for row in verified.verdict["rows"]] == ["primary", "gate", "secondary", "secondary"]
    assert all(row["holm_p"] >= row["sign_flip_p"] for row in verified.verdict["rows"] if row["role"] == "secondary")
    subprocess.run(["sha256sum", "-c", "--quiet", "--strict", MANIFEST], cwd=packet, check=True)


def test_verifying_writes_nothing(packet: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in packet.rglob("*")}
    verify(packet)
    assert {p: p.stat().st_mtime_ns for p in packet.rglob("*")} == before


@pytest.mark.parametrize("name", ["packet.json", "verdict.json", "itls.parquet", "c8.json", "server.log"])
def test_one_flipped_bit_is_refused(packet: Path, name: str) -> None:
    files = sorted(packet.rglob(name))
    data = bytearray(files[0].read_bytes())
    data[len(data) // 2] ^= 1
    files[0].write_bytes(data)
    with pytest.raises(PacketError, match="SHA-256 differs"):
        verify(packet)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("status",), "NOT_REPRODUCED"),
        (("rows", 0, "verdict", "estimate"), 0.5),
        (("rows", 0, "sign_flip_p"), 0.001),
        (("rows", 0, "verdict", "sentence"), "REPRODUCED: trust me."),
        (("decision", "choice"), "REJECT"),
        (("invalid",), ["x"]),
    ],
)
def test_a_sealed_lie_in_the_verdict_is_recomputed_away(packet: Path, path: tuple[Any, ...], value: object) -> None:
    def change(verdict: Any) -> None:
        for key in path[:-1]:
            verdict = verdict[key]
        verdict[path[-1]] = value

    edit(packet / "verdict.json", change)
    seal(packet)
    with pytest.raises(PacketError, match=r"recomputed|not computed"):
        verify(packet)


def test_a_sealed_change_of_raw_data_is_seen(packet: Path) -> None:
    raw = next((packet / "starts").glob("*/c8.json"))
    edit(raw, lambda value: value["ttfts"].__setitem__(0, 0.5))
    seal(packet)
    with pytest.raises(PacketError, match="differs from the raw file"):
        verify(packet)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../b", ".", "a//b", ".hidden", "a\\b", "a b", "", "x" * 200]
)
def test_names_that_leave_the_folder_are_no_names(name: str) -> None:
    assert not safe_name(name)


def test_manifest_with_an_escaping_name_is_refused(packet: Path) -> None:
    with (packet / MANIFEST).open("a") as stream:
        stream.write(f"{'0' * 64}  ../../etc/passwd\n")
    with pytest.raises(PacketError, match="plain relative name"):
        verify(packet)


@pytest.mark.parametrize("target", ["/etc/passwd", "/dev/zero", "packet.json"])
def test_links_are_refused(packet: Path, target: str) -> None:
    (packet / "starts" / "link.json").symlink_to(target)
    with pytest.raises(PacketError, match="a link or a device"):
        verify(packet)


def test_a_pipe_is_refused_and_does_not_block(packet: Path) -> None:
    (packet / "protocol.toml").unlink()
    os.mkfifo(packet / "protocol.toml")
    with pytest.raises(PacketError, match="a link or a device"):
        verify(packet)


def test_missing_and_extra_files_are_named(packet: Path) -> None:
    (packet / "extra.txt").write_text("x")
    with pytest.raises(PacketError, match=r"'extra.txt' is in the packet but not in the manifest"):
        verify(packet)
    (packet / "extra.txt").unlink()
    (packet / "protocol.toml").unlink()
    with pytest.raises(PacketError, match=r"'protocol.toml' is in the manifest but not"):
        verify(packet)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1e300", "9" * 400, "true", "null", '"7"'])
def test_numbers_that_are_none_are_refused(packet: Path, number: str) -> None:
    raw = next((packet / "starts").glob("*/c8.json"))
    edit(raw, lambda value: value.update(duration="MARK"))
    raw.write_text(raw.read_text().replace('"MARK"', number))
    seal(packet)
    with pytest.raises(PacketError):
        verify(packet)


def test_parquet_of_another_form_is_refused_before_it_is_read(packet: Path) -> None:
    pl.DataFrame({"itl_ms": ["x" * 1000] * 10}).write_parquet(packet / "data" / "itls.parquet")
    seal(packet)
    with pytest.raises(PacketError, match="columns are not those"):
        verify(packet)
    pl.select(pl.repeat(0.0, 60_000_000).alias("itl_ms")).write_parquet(packet / "data" / "itls.parquet")
    seal(packet)
    with pytest.raises(PacketError, match="more than the"):
        verify(packet)


def test_all_text_is_escaped_in_page_and_terminal(packet: Path) -> None:
    evil = "<script>alert(1)</script>\x1b[2J\u202e[red]"
    edit(packet / "packet.json", lambda value: value.update(who_ran=evil, deviations=[{"at": 1.0, "text": evil}]))
    seal(packet)
    html = page(verify(packet), evil)
    assert "<script" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "&lt;script&gt;" in html
    assert "\\[red]" in text.for_rich(evil)
    assert "\x1b" not in text.for_rich(evil)


def later(slot: Any, value: float) -> float:
    return value + (10_000 if slot.index == 0 else 0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"began_at": later, "ready_at": later, "ended_at": later}, "planned order"),
        ({"began_at": lambda slot, value: value - 950}, "newer than the first start"),
        ({"ended_at": lambda slot, value: value + 50}, "before start 0 had ended"),
        ({"active": False}, "did not report itself active"),
        ({"active": None}, "did not report itself active"),
        ({"code_hash": lambda slot, value: f"{slot.index:064x}"}, "code of arm A changed"),
        ({"protocol_hash": "0" * 64}, "another protocol"),
    ],
)
def test_breaches_make_a_run_invalid(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    verified = verify(make_packet(tmp_path / "p", **changes))
    assert verified.verdict["status"] == "INVALID"
    assert any(words in reason for reason in verified.verdict["invalid"])
    assert verified.verdict["decision"]["choice"] == "NONE"


def test_differing_texts_are_invalid_where_equality_was_declared_and_reported_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import make

    def other(seed: int, **named: Any) -> dict[str, Any]:
        return bench_json(seed, **named) | {"generated_texts": [f"{seed}"] * 8}

    monkeypatch.setattr(make, "bench_json", other)
    judged = verify(make_packet(tmp_path / "equal"))
    assert any("12 different sets" in reason for reason in judged.verdict["invalid"])
    reported = verify(make_packet(tmp_path / "report", text=PROTOCOL.replace('"equal"', '"report"')))
    assert reported.verdict["invalid"] == []
    assert any("12 distinct sets" in note for note in reported.verdict["outputs"])


def test_another_workload_in_one_start_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import make

    monkeypatch.setattr(
        make, "bench_json", lambda seed, **named: bench_json(seed, **named) | {"input_lens": [12 + (seed == 3)] * 8}
    )
    found = verify(make_packet(tmp_path / "p"))
    assert any("2 different workloads" in reason for reason in found.verdict["invalid"])


def test_page_shows_every_pair_and_the_recompute_command(honest: Path) -> None:
    verified = verify(honest)
    html = page(verified, "honest")
    assert html.count("<title>pair ") == 12  # a dot and a line for each
    assert "serving-evidence verify honest" in html
    assert verified.verdict["sentence"].removeprefix("REPRODUCED: ") in html
    assert page(replace(verified, files=1), "honest") != html


def test_a_protocol_without_gates_decides_nothing(tmp_path: Path) -> None:
    gates = next(line for line in PROTOCOL.splitlines() if line.startswith("gates"))
    verified = verify(make_packet(tmp_path / "p", text=PROTOCOL.replace(gates, "")))
    assert (verified.verdict["status"], verified.verdict["decision"]) == ("REPRODUCED", None)
