"""The whole AscendStoreConnector, layer-wise, in the real engine: tokens, leases, policies, timelines, one fault."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_layerwise_threads import NOT_HERE

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

ENGINE = Path(__file__).with_name("layerwise_engine.py")
PAIR = os.environ.get("KIT_PAIR", "0.30.0")
# MRV2 puts layers into shared buffers from vllm-ascend 0.30.0rc2 on; before that only the V1 runner does.
REUSE = {"layerwise_num_shared_buffers": 3, "layerwise_independent_layers": [0, 5]} if PAIR == "0.30.0" else {}
SHARED = {"backend": "memcache", "extra": REUSE}
LATE = {**SHARED, "late": {"1": 0.15}}
RECORD = {"record": True}
RUNS = [
    {"name": "no connector"},
    {"name": "gva", "backend": "memcache"},
    {"name": "gva fifo recorded", "backend": "memcache", "hook": {"policy": "fifo", **RECORD}},
    {"name": "reuse", **SHARED},
    {"name": "reuse fifo recorded", **SHARED, "hook": {"policy": "fifo", **RECORD}},
    {"name": "reuse ready", **SHARED, "hook": {"policy": "ready"}},
    {"name": "reuse ready recorded", **SHARED, "hook": {"policy": "ready", **RECORD}},
    {"name": "reuse gate recorded", **SHARED, "hook": {"policy": "gate", **RECORD}},
    {"name": "late save fifo", **LATE, "hook": {"policy": "fifo", **RECORD}},
    {"name": "late save ready", **LATE, "hook": {"policy": "ready", **RECORD}},
    {"name": "key ready recorded", "backend": "yuanrong", "hook": {"policy": "ready", **RECORD}},
    {"name": "not answered", "backend": "memcache", "answer": False},
]
if PAIR != "0.27.1":  # there Mooncake is key-based
    RUNS.append({"name": "range ready recorded", "backend": "mooncake", "hook": {"policy": "ready", **RECORD}})
CONNECTED = [spec for spec in RUNS if spec.get("backend")]
RECORDED = [spec for spec in RUNS if spec.get("hook", {}).get("record")]
DEFERRED = PAIR == "0.29.0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    job = folder / "job.json"
    job.write_text(json.dumps({"folder": str(folder), "runs": RUNS}))
    done = subprocess.run(
        [sys.executable, str(ENGINE), str(job)],
        check=False, capture_output=True, text=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    (folder / "log").write_text(done.stdout + done.stderr)
    return folder


def read(folder: Path, name: str) -> dict:
    path = folder / f"{name}.json"
    assert path.exists(), (folder / "log").read_text()[-3000:]
    result = json.loads(path.read_text())
    assert "error" not in result, result["trace"]
    return result


def recorded(folder: Path, name: str):
    from layerwise_sched.timeline_file import find_timelines
    from layerwise_sched.timeline_file import read as read_timeline

    (path,) = find_timelines(folder / f"{name}.timelines")
    return read_timeline(path).run()


@pytest.mark.parametrize("spec", CONNECTED, ids=lambda spec: spec["name"])
def test_tokens_equal_the_engine_without_connector(folder, spec):
    result, plain = read(folder, spec["name"]), read(folder, "no connector")
    assert result["tokens_1"] == plain["tokens_1"] == plain["tokens_2"]
    assert result["tokens_2"] == plain["tokens_2"]
    assert result["transfers_1"]["0"] > 0, "the first round saved"
    assert result["transfers_2"]["1"] > result["transfers_1"]["1"], "the second round loaded"
    assert (result["unfinished"], result["alive"], result["pool_errors"]) == (0, True, [])
    if not (DEFERRED and spec["name"] == "not answered"):
        assert result["open_leases"] == 0


@pytest.mark.parametrize("spec", CONNECTED, ids=lambda spec: spec["name"])
def test_the_hooks_are_there_when_asked_for_and_only_then(folder, spec):
    result = read(folder, spec["name"])
    if spec.get("hook") is None:
        assert (result["queue"], result["handler"]) == ("Queue", "NoneType")
        assert "counts" not in result
    else:
        assert result["queue"] == "TaskQueue"
        assert result["policy"] == spec["hook"]["policy"]
        assert (result["handler"] == "function") is bool(spec["hook"].get("record"))
        assert result["counts"]["faults"] == 0


@pytest.mark.parametrize("spec", RECORDED, ids=lambda spec: spec["name"])
def test_every_nanosecond_of_every_task_is_explained(folder, spec):
    from layerwise_sched import stages

    run = recorded(folder, spec["name"])
    assert len(run.complete) == len(run.tasks) > 0
    assert stages.check(run) == []
    assert (run.dropped, run.orphans) == (0, 0)
    assert any(task.task.requests for task in run.complete)
    assert len(run.steps) >= 10


@pytest.mark.skipif(not REUSE, reason="MRV2 of this release has no shared buffers")
def test_a_late_save_blocks_a_ready_layer_and_the_policy_passes_it(folder):
    from layerwise_sched import hol

    assert read(folder, "late save fifo")["sources"] == {"4": 1, "6": 2, "7": 3}
    events = hol.find(recorded(folder, "late save fifo")).events
    pairs = {(event.layer, later.run.task.layer) for event in events for later in event.later}
    assert (4, 5) in pairs
    assert max(event.duration_ns for event in events) > 10_000_000
    assert read(folder, "late save ready")["counts"]["reordered"] >= 1
    assert read(folder, "late save fifo")["counts"]["reordered"] == 0


def test_without_reuse_nothing_blocks(folder):
    from layerwise_sched import hol

    for name in ("gva fifo recorded", "key ready recorded"):
        assert hol.find(recorded(folder, name)).events == ()


def test_the_timeline_opens_as_a_chrome_trace(folder):
    from layerwise_sched.export.chrome import write_chrome

    written = write_chrome(recorded(folder, "late save fifo"), folder / "trace.json.gz", pid=1)
    with gzip.open(written, "rt", encoding="utf-8") as file:
        trace = json.load(file)
    names = {event.get("name") for event in trace["traceEvents"]}
    assert len(trace["traceEvents"]) > 100
    assert any("save" in str(name).lower() for name in names), sorted(map(str, names))[:20]


def test_upstreams_late_preparation_is_shown_where_it_is(folder):
    """vLLM 0.29 starts loads behind the forward when a step admits none, and vllm-ascend 0.29.0rc1 prepares there."""
    assert read(folder, "gva")["late_steps"] == 0
    late = read(folder, "not answered")["late_steps"]
    assert late > 0 if DEFERRED else late == 0
