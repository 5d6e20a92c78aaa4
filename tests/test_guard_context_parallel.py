"""Decode context parallel in two gloo processes, a guard on each rank, over vLLM's real local slots and lengths."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SCRIPT = Path(__file__).with_name("guard_context_parallel_run.py")
# Prefills, decodes, and steps in which one rank owns no token at all.
STEPS = [{"a": 40}, {"a": 1, "b": 33}, *({"a": 1, "b": 1} for _ in range(12)), *({"a": 1} for _ in range(9))]


def run(folder: Path, **job) -> list[dict]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = folder / "job.json"
    path.write_text(json.dumps({"steps": STEPS, **job}))
    processes = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), "2", str(port), str(path), str(folder / f"{rank}.json")],
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    logs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "".join(logs)[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("block_size", "interleave"), [(16, 1), (16, 4), (8, 8)])
def test_both_ranks_are_silent_and_hold_every_token_once(tmp_path, block_size, interleave):
    ranks = run(tmp_path, block_size=block_size, interleave=interleave)
    for rank in ranks:
        assert rank["found"] == []
        assert rank["audits"] == len(STEPS)
        assert rank["empty"] >= 1, "a rank without a local token is legal"
        assert all(owners == [1] for owners in rank["owners"])
    sums = [
        [a + b for a, b in zip(one, other, strict=True)]
        for one, other in zip(ranks[0]["local"], ranks[1]["local"], strict=True)
    ]
    assert sums[0] == [40]
    assert sums[1] == [41, 33]


def test_a_lost_token_is_found_by_the_rank_that_lost_it_alone(tmp_path):
    ranks = run(tmp_path, block_size=16, interleave=1, fault=1, fault_rank=1)
    assert ranks[0]["found"] == []
    assert ["SLOT", 1] in ranks[1]["found"]
