"""Replay files: they reproduce, and damaged or hostile ones end in one clear error."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kv_make import CONNECTED, codes, connector, full, guard, new, plan, step
from kv_plan_guard import Config, GroupLayout, OutputFacts, ReplayError, Transfer, replay
from kv_plan_guard.cli import main

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = (full(16, pool=200, kernel_block_size=8, row_width=40), GroupLayout("sliding", 16, 200, window=40))
ROUNDS = int(os.environ.get("KV_PLAN_GUARD_FUZZ", "400"))


def write(folder: Path, steps: int = 70, kind: str = "plan") -> Path:
    """A run with prefix hits, preemption, drafts and a transfer, and a fault at its end; the file it leaves."""
    config = Config(enabled=True, action="log", replay_dir=str(folder))
    g = guard(*GROUPS, config=config, num_speculative_tokens=2, **CONNECTED)
    g.observe(step(1, {"A": 40}, [new("A", [[1, 2, 3], [4, 5, 6]], 0, 40)], connector=connector()))
    g.settle(OutputFacts(1, ["A"], [1]))
    computed = 40
    for number in range(2, steps):
        row = -(-(computed + 3) // 16)
        ids = [[6 + row], [60 + row]] if row > -(-computed // 16) else None
        load = Transfer("L", "B", 0, "load", [150]) if number == 3 else None
        facts = connector(started=[load] if load else [])
        spec = {"A": [5, 6]} if number % 3 == 0 else {}
        count = 3 if spec else 1
        g.observe(step(number, {"A": count}, cached=[("A", computed, ids)], spec_tokens=spec, connector=facts))
        g.settle(OutputFacts(number, ["A"], [1], [count - 1]))
        computed += 1
        assert g.stats.bad_audits == 0
    facts = connector()
    if kind == "scheduler":
        assert codes(g.observe(step(steps, {"X": 1}, cached=[("X", 5, None)], connector=facts))) == {"CYCLE"}
    else:
        g.observe(step(steps, {"A": 1, "B": 8}, [new("B", [[150], [151]])], [("A", computed, None)], connector=facts))
        slot = g.mirror.index["A"]
        kernel = g.mirror.groups[0].kernel_row(slot).tolist()
        right = plan(steps, [("A", kernel, computed, 1), ("B", [300, 301], 0, 8)], GROUPS[0], pad_rows=1)
        assert right.slot_mapping is not None
        slots = right.slot_mapping.copy()
        slots[4] += 1
        assert "SLOT" in codes(g.audit(replace(right, slot_mapping=slots)))
    return max(folder.iterdir())


@pytest.mark.parametrize("steps", [5, 70, 129])
@pytest.mark.parametrize("kind", ["plan", "scheduler"])
def test_a_file_reproduces_its_finding(tmp_path: Path, steps: int, kind: str) -> None:
    done = replay.run(replay.read(write(tmp_path, steps, kind)))
    assert done.recorded
    assert done.reproduced, done.text


def test_the_command_reproduces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path)
    assert main(["replay", str(path)]) == 0
    assert "reproduced" in capsys.readouterr().out
    document = json.loads(path.read_text())
    document["violations"][0]["actual"] = 12345
    path.write_text(json.dumps(document))
    assert main(["replay", "--json", str(path)]) == 1
    assert json.loads(capsys.readouterr().out)["reproduced"] is False


def test_files_are_bounded(tmp_path: Path) -> None:
    g = guard(GROUPS[0], config=Config(enabled=True, action="log", replay_dir=str(tmp_path), replay_files=2))
    for number in range(1, 9):
        g.observe(step(number, {f"x{number}": 1}, cached=[(f"x{number}", 0, None)]))
        g._signatures.clear()
    assert len(list(tmp_path.iterdir())) == 2
    g = guard(GROUPS[0], config=Config(enabled=True, action="log", replay_dir=str(tmp_path), replay_bytes=1 << 16))
    names = [f"r{at}" for at in range(5000)]
    g.observe(step(1, dict.fromkeys(names, 1), cached=[(n, 0, None) for n in names]))
    assert len(list(tmp_path.iterdir())) == 2  # too large: no file


def test_no_file_where_none_is_wanted(tmp_path: Path) -> None:
    config = Config(enabled=True, action="log", replay_dir=str(tmp_path / "none"), replay_files=0)
    g = guard(GROUPS[0], config=config)
    assert not g.observe(step(1, {"x": 1}, cached=[("x", 0, None)])).ok
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"null",
        b"{}",
        b'{"format": "kv-plan-guard replay"}',
        b'{"format": "kv-plan-guard replay", "version": 1}',
        b'{"format": "kv-plan-guard replay", "version": 99}',
        b"\xff\xfe\x00",
        b"9" * 10_000,
        b'{"format": "kv-plan-guard replay", "version": 1, "config": "../../etc/passwd"}',
    ],
)
def test_what_is_no_replay_file_is_refused(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("kv-plan-guard: ")
    assert "Traceback" not in captured.err


def test_no_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert main(["replay", str(tmp_path)]) == 2
    assert main(["replay", str(tmp_path / "missing.json")]) == 2
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(replay.MAX_BYTES + 1)
    with pytest.raises(ReplayError, match="at most"):
        replay.read(huge)


HOSTILE: list[Any] = [
    None,
    True,
    -1,
    0,
    1 << 31,
    1 << 62,
    1 << 70,
    -(1 << 70),
    1.5,
    float("nan"),
    "",
    "../../x",
    "A" * 5000,
    [],
    {},
    [[]],
    [-1, 1 << 40],
    {"dtype": "object", "shape": [1 << 40], "data": []},
    {"dtype": "int64", "shape": [0, 1 << 40], "data": []},
]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += _places(value[key], (*path, key))
    elif isinstance(value, list):
        for at in range(min(len(value), 6)):
            found += _places(value[at], (*path, at))
    return found


def _mutated(document: dict[str, Any], draw: random.Random, places: list[tuple[Any, ...]]) -> bytes:
    copy = json.loads(json.dumps(document))
    for _ in range(draw.randrange(1, 3)):
        *path, last = draw.choice(places)
        holder = copy
        try:
            for key in path:
                holder = holder[key]
            if draw.random() < 0.2:
                del holder[last]
            elif isinstance(holder[last], int) and draw.random() < 0.8:
                holder[last] += draw.choice([-1, 1, 7, 1 << 20])
            else:
                holder[last] = draw.choice(HOSTILE)
        except (KeyError, IndexError, TypeError):
            continue
    data = json.dumps(copy).encode()
    if draw.random() < 0.15:
        cut = draw.randrange(len(data))
        data = (
            data[:cut] + bytes(draw.randrange(256) for _ in range(draw.randrange(4))) + data[cut + draw.randrange(9) :]
        )
    return data


def _outcome(data: bytes) -> str:
    try:
        done = replay.run(replay.parse(data))
    except ReplayError as error:
        return f"refused:{error}"
    return "same" if done.reproduced else "differs"


def test_fuzzed_files_give_a_result_or_one_clear_error(tmp_path: Path) -> None:
    """`KV_PLAN_GUARD_FUZZ=10000` for the long run; nothing is ever written anywhere."""
    base = tmp_path / "base"
    documents = [replay.read(write(base, 5)), replay.read(write(base, 9, "scheduler"))]
    places = [_places(document) for document in documents]
    draw = random.Random(int(os.environ.get("KV_PLAN_GUARD_FUZZ_SEED", "20261130")))
    before = sorted(tmp_path.rglob("*"))
    outcomes = {"same": 0, "differs": 0, "refused": 0}
    longest = 0
    for number in range(ROUNDS):
        which = number % 2
        data = _mutated(documents[which], draw, places[which])
        outcome = _outcome(data)
        longest = max(longest, len(outcome.partition(":")[2]))
        outcomes[outcome.partition(":")[0]] += 1
    assert longest < 1000
    assert sorted(tmp_path.rglob("*")) == before
    assert outcomes["refused"] > ROUNDS // 4
    print(f"fuzzed {ROUNDS}: {outcomes}")


def test_a_replay_writes_nothing_whatever_its_config_says(tmp_path: Path) -> None:
    document = replay.read(write(tmp_path / "base", 5))
    document["config"] |= {"stats_dir": str(tmp_path / "s"), "replay_dir": str(tmp_path / "r"), "action": "raise"}
    replay.run(document)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]


def test_arrays_of_a_plan_survive_the_file(tmp_path: Path) -> None:
    document = replay.read(write(tmp_path, 5))
    assert document["plan"]["slot_mapping"]["dtype"] == "int64"
    assert np.array(document["plan"]["block_table"]["data"]).max() > 0
