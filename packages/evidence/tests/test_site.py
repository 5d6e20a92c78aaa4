"""Ledger and pages: a page that says something else than its packet is found, and so is a packet that was changed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from make import make_packet
from serving_evidence import ledger, published
from serving_evidence.cli import app
from serving_evidence.errors import PacketError, ProtocolError
from serving_evidence.packet.read import MANIFEST, write_manifest
from serving_evidence.pages import site
from typer.testing import CliRunner

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "<script>alert(1)</script>\n\n# heading\n\n[red](javascript:alert(1))\x1b[2J\u202e"
PUBLISHED = """
name = "five"
title = "A change"
date = "2026-08-01"
who = "its authors"
conditions = "one card"
pairs = 5
requests = 960
failed = 0
method = "percentile bootstrap over pairs, 95 %"
their_verdict = "NOT_REPRODUCED"
their_rule = "the gain is stable"
their_decision = "off by default"
mechanism = "reproduced: one copy fewer a step"
[[figures]]
metric = "throughput"
scenario = "c8"
change_percent = -0.41
positive_pairs = 2
"""


@pytest.fixture
def packets(tmp_path: Path) -> Path:
    folder = tmp_path / "packets"
    for name, speed in (("faster", 1.1), ("slower", 0.9)):
        make_packet(tmp_path / "made" / name, speed=speed)
        shutil.copytree(tmp_path / "made" / name, folder / name)
        ledger.add(folder, name)
    return folder


def call(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def change(packet: Path, file: str, old: str, new: str) -> None:
    """Change a file of a packet and write its manifest anew, as its owner could."""
    path = packet / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    write_manifest(packet)


def test_the_ledger_lists_what_there_is_and_only_that(packets: Path, tmp_path: Path) -> None:
    assert [(entry.packet, entry.status) for entry, _ in ledger.check(packets)] == [
        ("faster", "REPRODUCED"),
        ("slower", "NOT_REPRODUCED"),
    ]
    with pytest.raises(PacketError, match="in the ledger already"):
        ledger.add(packets, "faster")
    with pytest.raises(PacketError, match="plain name"):
        ledger.add(packets, "../made/faster")
    shutil.copytree(packets / "faster", packets / "third")
    with pytest.raises(PacketError, match="'third' is a folder beside the packets"):
        ledger.check(packets)


def test_a_replaced_or_missing_packet_is_found(packets: Path) -> None:
    change(packets / "faster", "packet.json", '"who_ran":""', '"who_ran":"nobody"')
    with pytest.raises(PacketError, match="its manifest differs"):
        ledger.check(packets)
    shutil.rmtree(packets / "faster")
    with pytest.raises(PacketError):
        ledger.check(packets)


@pytest.mark.parametrize("line", ["{}", "not json", '{"packet": "../x"}', "[]", '{"packet": NaN}'])
def test_a_broken_ledger_is_refused(packets: Path, line: str) -> None:
    with (packets / ledger.LEDGER).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(PacketError, match="line 3"):
        ledger.check(packets)


def test_pages_say_what_the_packets_say(packets: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    made = site.pages(packets)
    assert sorted(made) == ["evidence.css", "faster.md", "index.md", "slower.md"]
    assert sorted(site.write(out, made)) == sorted(made)
    assert site.write(out, made) == []
    assert site.check(out, made) is None
    front = (out / "index.md").read_text()
    assert "No packet here was measured on an NPU" in front
    assert front.index("faster.html") < front.index("slower.html")  # the ledger's order, whatever the verdict
    assert "NOT_REPRODUCED" in front
    page = (out / "faster.md").read_text()
    for title in ("Every pair of starts", "Order of starts", "ITL of every start", "What differs", "Recompute"):
        assert title in page
    assert page.count("<circle") == 19  # pairs, the estimate, a p99 for each of 12 starts


@pytest.mark.parametrize("plant", ["a number", "a missing page", "a page of no packet", "a line more"])
def test_a_page_that_differs_is_named(packets: Path, tmp_path: Path, plant: str) -> None:
    out = tmp_path / "site"
    assert call("site", packets, "--out", out).exit_code == 0
    assert call("site", packets, "--out", out, "--check").exit_code == 0
    page = out / "faster.md"
    if plant == "a number":
        text = page.read_text()
        assert "+10.08 %" in text
        page.write_text(text.replace("+10.08 %", "+11.08 %", 1))
    elif plant == "a missing page":
        page.unlink()
    elif plant == "a page of no packet":
        (out / "third.md").write_text("x")
    else:
        page.write_text(page.read_text() + "more\n")
    done = call("site", packets, "--out", out, "--check")
    assert done.exit_code == 2
    assert ("third.md" if plant == "a page of no packet" else "faster.md") in done.stderr


def test_a_page_goes_with_its_packet(packets: Path, tmp_path: Path) -> None:
    out = tmp_path / "site"
    site.write(out, site.pages(packets))
    (out / "own.md").write_text("written by hand")
    shutil.rmtree(packets / "slower")
    book = packets / ledger.LEDGER
    book.write_text(book.read_text().splitlines()[0] + "\n")
    assert set(site.write(out, site.pages(packets))) == {"index.md", "slower.md"}
    assert (out / "own.md").exists()


def test_text_of_a_packet_neither_runs_nor_ends_the_html_around_it(packets: Path) -> None:
    path = packets / "faster" / "packet.json"
    value = json.loads(path.read_text())
    value.update(who_ran=EVIL, deviations=[{"at": 1.0, "text": EVIL}])
    path.write_text(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    write_manifest(packets / "faster")
    book = packets / ledger.LEDGER
    book.write_text("")
    for name in ("faster", "slower"):
        ledger.add(packets, name, note=EVIL)
    for text in site.pages(packets).values():
        assert "<script" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\n# heading" not in text


def test_five_published_pairs_are_inconclusive_here(tmp_path: Path, packets: Path) -> None:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "five.toml").write_text(PUBLISHED)
    found = published.load(folder / "five.toml")
    status, reason = published.our_verdict(found)
    assert status == "INCONCLUSIVE"
    assert "0.0625" in reason
    assert "82% (normal)" in reason  # simulated coverage of their kind of interval
    text = site.pages(packets, folder)["published-five.md"]
    assert "NOT_REPRODUCED" in text
    assert "INCONCLUSIVE" in text
    assert "-0.41 %" in text
    (folder / "five.toml").write_text(PUBLISHED.replace("pairs = 5\n", "pairs = -5\n", 1))
    with pytest.raises(ProtocolError, match="`pairs` = '-5'"):
        site.pages(packets, folder)


def test_ledger_command(packets: Path, tmp_path: Path) -> None:
    done = call("ledger", packets, "--json")
    assert [entry["packet"] for entry in json.loads(done.stdout)] == ["faster", "slower"]
    assert "every number recomputed" in call("ledger", packets).stdout
    assert call("ledger", packets, "--add", "faster").exit_code == 2
    (packets / "faster" / MANIFEST).unlink()
    assert call("ledger", packets).exit_code == 2
