"""The range and the key-based path against a real Mooncake master and store, over TCP on loopback."""

import os
import shutil
import subprocess
from pathlib import Path

import layerwise_mooncake
import pytest
from test_layerwise_threads import NOT_HERE, run_job

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

SMALL = {"pool": "mooncake", "steps": 2, "changes": {"layers": 6}}
KILLED = {**SMALL, "steps": 1, "kill_at": 4}
RANGE = os.environ.get("KIT_PAIR") != "0.27.1"  # there Mooncake is the key-based path's
PATH = "range" if RANGE else "key"
RUNS = [
    {"name": "fifo", "schedule": PATH, **SMALL},
    {"name": "ready", "schedule": PATH, "policy": "ready", **SMALL},
    {"name": "key", "schedule": "key", "policy": "ready", **SMALL},
    {"name": "killed: off", "schedule": PATH, "timeline": False, **KILLED},
    {"name": "killed: recorded", "schedule": PATH, **KILLED},
    {"name": "killed: ready", "schedule": PATH, "policy": "ready", **KILLED},
]


def wheel() -> str:
    """The folder with Mooncake's wheel, filled by uv at the first use."""
    if chosen := os.environ.get("KIT_MOONCAKE"):
        return chosen
    folder = Path(__file__).resolve().parents[1] / ".nox" / "mooncake"
    if not (folder / "mooncake" / "store.so").exists():
        uv = os.environ.get("UV") or shutil.which("uv")
        if uv is None:
            pytest.skip(f"uv is not installed, and KIT_MOONCAKE names no folder with {layerwise_mooncake.WHEEL}")
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(folder), layerwise_mooncake.WHEEL]
        subprocess.run([*command, "--python-version", "3.11"], check=True)
    return str(folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    os.environ["KIT_MOONCAKE"] = wheel()
    if (missing := layerwise_mooncake.missing()) is not None:
        pytest.skip(missing)
    return run_job(tmp_path_factory.mktemp("mooncake"), RUNS)


@pytest.mark.parametrize("name", ["fifo", "ready", "key"])
def test_every_byte_comes_back_from_the_store(results, name):
    result = results[name]
    assert result["errors"] == []
    assert (result["data_errors"], result["open_leases"], result["unfinished"]) == (0, 0, 0)
    assert result["complete"] == result["tasks"] == 12
    assert result["stage_problems"] == []
    assert result["hol"] == 0
    assert result["impossible"] == ("RANGE" if name != "key" and RANGE else "KEY")
    assert result["stage_ms"]["transfer"] > 0
    if RANGE and name != "key":
        assert all(code == 0 for codes in result["commits"] for code in codes), "each save was committed"


def test_a_killed_master_ends_as_without_the_package(results):
    """Loads go on in the sessions that are open, and the commit of the saves fails: that is upstream's."""
    off, recorded, ready = (results[f"killed: {way}"] for way in ("off", "recorded", "ready"))
    for result in (recorded, ready):
        for key in ("raised", "alive", "unfinished", "open_leases", "commits", "data_errors", "invalid_blocks"):
            assert result.get(key) == off.get(key), key
        assert result["complete"] == result["tasks"] == 6
        assert result["stage_problems"] == []
    if RANGE:
        assert off["commits"] == [[-900] * 5]
        assert off["data_errors"] > 0, "the check sees that the saves are lost"
