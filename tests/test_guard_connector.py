"""The guard with a KV connector: real loads stay silent, a wrong table and an early reuse under a transfer do not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_guard_engine import NOT_HERE, PLUGIN

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    NOT_HERE,
    pytest.mark.skipif(not PLUGIN, reason="the connector is vllm-ascend's"),
]

SCRIPT = Path(__file__).with_name("guard_connector_run.py")
WHOLE = {"use_layerwise": False}
RUNS = [
    {"name": "layerwise", "pool": "memory"},
    {"name": "layerwise-async", "pool": "memory", "engine": {"async_scheduling": True}},
    {"name": "wrong-table", "pool": "memory", "fault": "wrong table", "action": "raise"},
    {"name": "no-fence", "pool": "memory", "fault": "no fence", "engine": {"num_gpu_blocks_override": 12}},
]
MOONCAKE = [{"name": "mooncake", "pool": "mooncake", "extra": WHOLE}]


def run(folder: Path, runs: list[dict], script: Path = SCRIPT) -> None:
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "runs": runs}))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parent), environment.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(script), str(job)],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    (folder / "log.txt").write_text(done.stdout + done.stderr)


def read(folder: Path, name: str) -> dict:
    path = folder / f"{name}.json"
    assert path.exists(), (folder / "log.txt").read_text()[-3000:]
    result = json.loads(path.read_text())
    assert "failed" not in result, result.get("trace")
    return result


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("connector")
    run(folder, RUNS)
    return folder


def silent_with_loads(result: dict) -> None:
    assert "error" not in result, result["error"]
    assert result["signatures"] == []
    assert result["counts"]["counts"]["audits"] > 10
    assert result["tokens_1"] == result["tokens_2"]
    connector = result["connector"]
    assert connector["loads"] >= 3
    assert connector["load_tokens"] == result["external_tokens"] > 256
    assert connector["over"] >= connector["loads"]
    assert result["checks"] == ["LIFETIME", "CONN"]
    assert {"LIFETIME", "CONN"} <= {code for code, active, _ in result["coverage"] if active}


@pytest.mark.parametrize("name", ["layerwise", "layerwise-async"])
def test_loads_and_saves_are_silent(results, name):
    silent_with_loads(read(results, name))


def test_a_connector_table_that_is_not_the_requests_is_found(results):
    result = read(results, "wrong-table")
    assert result["planted"] == 1
    assert "CONN" in result.get("error", "it went on")


def test_blocks_given_away_under_an_unfenced_save_are_found(results):
    result = read(results, "no-fence")
    assert result["planted"] > 0
    assert any(code == "LIFETIME" for code, *_ in result["signatures"]), result["signatures"]


REJECTED = [
    {"name": "none"},
    {"name": "before", "load": "async"},
    {"name": "before-async", "load": "async", "async_scheduling": True},
    {"name": "inside", "load": "sync"},
    {"name": "inside-async", "load": "sync", "async_scheduling": True},
    {"name": "inside-raise", "load": "sync", "action": "raise"},
    {"name": "inside-async-raise", "load": "sync", "async_scheduling": True, "action": "raise"},
]


@pytest.fixture(scope="module")
def rejected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rejected")
    run(folder, REJECTED, SCRIPT.with_name("guard_rejected_load.py"))
    return folder


@pytest.mark.parametrize("name", ["before", "before-async"])
def test_loads_that_fail_before_their_request_runs_are_silent(rejected, name):
    result = read(rejected, name)
    assert result["tokens"] == read(rejected, "none")["tokens"]
    assert result["signatures"] == []
    assert result["audits"] > 5
    assert result["claimed"] == result["rejected"] == 2


@pytest.mark.parametrize("name", ["inside", "inside-async"])
def test_a_load_that_fails_in_the_step_that_uses_it_is_found(rejected, name):
    """Upstream's own fault (repro/kv-load-rejected.py): the request is taken back, the device's count is not."""
    result, right = read(rejected, name), read(rejected, "none")["tokens"]
    codes = {code for code, *_ in result["signatures"]}
    assert result["claimed"] == result["rejected"] == 2
    if result["tokens"] == right:
        assert codes == set(), "upstream has repaired it"
        pytest.skip("this pair takes the device's count back")
    assert {"POS", "LEN", "SLOT"} <= codes
    assert [result["tokens"][0], result["tokens"][2]] == [right[0], right[2]], "requests without a load are untouched"


@pytest.mark.parametrize(("name", "step"), [("inside", 1), ("inside-async", 2)])
def test_no_token_behind_a_load_that_failed_in_its_step_is_released(rejected, name, step):
    """Under asynchronous scheduling the step behind it is on its way by then; the next one is the first wrong one."""
    if read(rejected, name)["tokens"] == read(rejected, "none")["tokens"]:
        pytest.skip("this pair takes the device's count back")
    result = read(rejected, f"{name}-raise")
    assert "tokens" not in result
    assert re.search(rf"POS in positions of request '[^']+', step {step},", result["error"])


def test_a_real_mooncake_load(tmp_path):
    from layerwise_mooncake import missing
    from test_layerwise_mooncake import wheel

    os.environ["KIT_MOONCAKE"] = wheel()
    if (reason := missing()) is not None:
        pytest.skip(reason)
    run(tmp_path, MOONCAKE)
    result = read(tmp_path, "mooncake")
    print({"external_tokens": result["external_tokens"], **result["connector"], **result["counts"]["counts"]})
    silent_with_loads(result)
