"""npu-smoke's flow with the simulator as the device: arms, hooks, refusal of graphs, profile, packet. No NPU."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MARK = "simulated, no NPU"
HOOK = "on-mrv2-metadata"


@pytest.fixture(scope="module")
def packet(tmp_path_factory):
    out = tmp_path_factory.mktemp("npu") / "npu-smoke"
    command = [sys.executable, "-m", "ascend_sim.smoke", "npu", "--simulated", "--scenario", "batch"]
    command += ["--profile-steps", "8", "--out", str(out)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_SIM")}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1800, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out, done.stdout


def summary(packet) -> dict:
    return json.loads((packet[0] / "summary.json").read_text())


def by(rows: list[dict], mode: str) -> dict[str, dict]:
    return {row["arm"]: row for row in rows if row["mode"] == mode}


def test_eager_tokens_are_equal_with_the_hook_really_in_place(packet):
    rows = by(summary(packet)["rows"], "eager")
    assert rows["off"]["status"] == "ran"
    assert rows["off"]["hooks"] == []
    for arm in ("control", HOOK):
        assert (rows[arm]["status"], rows[arm]["tokens_equal"]) == ("equal", 256), rows[arm]["reason"]
    assert rows["control"]["hooks"] == []
    assert any(name.startswith("mrv2_metadata.") for name in rows[HOOK]["hooks"])


def test_the_graph_mode_is_refused_with_its_reason(packet):
    rows = by(summary(packet)["rows"], "graph")
    assert {row["status"] for row in rows.values()} == {"refused"}
    assert "graph" in rows["off"]["reason"]


def test_eight_decode_steps_off_and_on(packet):
    profiles = by(summary(packet)["profiles"], "eager")
    for arm in ("off", "control", HOOK):
        assert (profiles[arm]["status"], profiles[arm]["steps"]) == ("recorded", 8), profiles[arm]["reason"]
        assert MARK in profiles[arm]["source"]
    off, on = profiles["off"]["counts"], profiles[HOOK]["counts"]
    assert off == profiles["control"]["counts"]
    barrier = os.environ.get("KIT_PAIR") == "0.26.0"
    # What upstream's barrier costs is a copy and a host wait a step; without it the hook takes none away here.
    assert off["d2h"] - on["d2h"] == (8 if barrier else 0)
    assert off["host_wait"] - on["host_wait"] == (8 if barrier else 0)
    assert on["d2h"] > 0, "the output's own copies are counted too"


def test_the_start_of_the_engine_is_recorded(packet):
    stages = summary(packet)["stages"]["eager"]
    assert stages["kv_blocks"] > 0
    assert stages["graphs"] == 0
    assert stages["graph_mode"] == "NONE"


def test_the_packet_is_whole_and_marked(packet):
    out, shown = packet
    check = ["sha256sum", "--check", "--strict", "--quiet", "manifest-sha256.txt"]
    done = subprocess.run(check, cwd=out, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for path in [out / "summary.json", out / "environment.json", *out.glob("raw/*/*.json")]:
        assert json.loads(path.read_text())["device"] == MARK, path.name
    assert shown.count(MARK) >= 4
    assert not (out / "job.json").exists()
    assert summary(packet)["name"] == "npu-smoke-simulated"
