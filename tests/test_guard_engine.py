"""kv-plan-guard in the real engines: silent on right plans, counted, off where not asked for, refused where it must."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[1] / "benchmarks" / "_guard_engine.py"


def unverified() -> str | None:
    """Why the guard would refuse this pair, or None; KIT_TRY_UNVERIFIED=1 runs the tests that earn a row."""
    from vllm_pairs import load_pairs

    pair = load_pairs().get(os.environ.get("KIT_PAIR", "0.30.0"))
    if pair.checks_of("kv-plan-guard") or os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        return None
    return f"pair {pair.id} has no row of kv-plan-guard in pairs.toml; KIT_TRY_UNVERIFIED=1 runs the tests all the same"


NOT_HERE = pytest.mark.skipif(unverified() is not None, reason=str(unverified()))
pytestmark = [pytest.mark.engine, NOT_HERE]

PLUGIN = not os.environ.get("KIT_PAIR", "0.30.0").startswith("core-")
MODE = "ascend" if PLUGIN else "plain"
LOG = {"enabled": True, "action": "log"}
ASYNC = {"async_scheduling": True, "max_num_batched_tokens": 64}
SHORT = {"seed": 1, "requests": 8, "lengths": [30], "new_tokens": 24}
MIXED = {"seed": 2, "requests": 6, "lengths": [200, 30, 300], "new_tokens": 16}
CROWDED = {"seed": 3, "requests": 8, "lengths": [100], "new_tokens": 60}
SHARED = {"seed": 4, "requests": 8, "lengths": [300], "shared": 256, "new_tokens": 16, "warm_first": True}
FEW = {"seed": 5, "requests": 2, "lengths": [20], "new_tokens": 3}
RUNS = [
    {"name": "off", "model": "dense", "guard": None, "workload": SHORT},
    {"name": "on", "model": "dense", "guard": {"enabled": True}, "workload": SHORT},
    {"name": "async", "model": "dense", "guard": LOG, "workload": MIXED, "engine": ASYNC},
    {
        "name": "preemption",
        "model": "dense",
        "guard": LOG,
        "workload": CROWDED,
        "engine": {"num_gpu_blocks_override": 9},
    },
    {"name": "prefix", "model": "dense", "guard": LOG, "workload": SHARED, "engine": {"enable_prefix_caching": True}},
    {"name": "sliding", "model": "sliding", "guard": LOG, "workload": MIXED},
    {"name": "sliding-async", "model": "sliding", "guard": LOG, "workload": MIXED, "engine": ASYNC},
    {"name": "hybrid", "model": "hybrid", "guard": LOG, "workload": MIXED},
    {"name": "hybrid-async", "model": "hybrid", "guard": LOG, "workload": MIXED, "engine": ASYNC},
    {"name": "sampled", "model": "dense", "guard": {**LOG, "sample": {"every": 5}}, "workload": SHORT},
]
SPEC = [
    {"name": "spec-sync", "model": "dense", "guard": LOG, "workload": SHORT, "speculative": 3, "oracle": "on"},
    {
        "name": "spec-async",
        "model": "dense",
        "guard": LOG,
        "workload": SHORT,
        "speculative": 3,
        "oracle": "on",
        "engine": {"async_scheduling": True},
    },
]
REFUSED = [
    {"name": "unknown-key", "model": "dense", "guard": {"enabled": True, "actoin": "raise"}, "workload": FEW},
    {"name": "unknown-pair", "model": "dense", "guard": LOG, "workload": FEW, "as_pair": "unknown"},
    {"name": "disabled", "model": "dense", "guard": {"enabled": False}, "workload": FEW},
]
# What vllm-ascend up to 0.29.0rc1 says of a hybrid model whose state is larger than its pages can be made.
NO_HYBRID = "Cannot align ssm_page_size and attn_page_size"
NO_HYBRID_PAIRS = ("0.26.0", "0.27.1", "0.28.0", "0.29.0")
CLEAN = RUNS[1:] + (SPEC if PLUGIN else [])


def checkpoints() -> dict[str, str]:
    from ascend_sim import models

    names = {"dense": "dense", "draft": "eagle", "sliding": "sliding", "hybrid": "hybrid"}
    return {name: str(models.build(model)) for name, model in names.items()}


def run_engines(folder: Path, runs: list[dict], mode: str = MODE, **environment: str) -> None:
    job = {"folder": str(folder), "runs": runs, "models": checkpoints(), "mode": mode}
    path = folder / f"job-{mode}.json"
    path.write_text(json.dumps(job))
    done = subprocess.run(
        [sys.executable, str(ENGINE), str(path)],
        check=False, capture_output=True, text=True, timeout=1500, env={**os.environ, **environment},
    )  # fmt: skip
    (folder / f"{mode}.log").write_text(done.stdout + done.stderr)


def read(folder: Path, name: str) -> dict:
    path = folder / f"{name}.json"
    logs = "".join(log.read_text()[-3000:] for log in folder.glob("*.log"))
    assert path.exists(), logs
    result = json.loads(path.read_text())
    if os.environ.get("KIT_PAIR") in NO_HYBRID_PAIRS and name.startswith("hybrid"):
        assert NO_HYBRID in result.get("error", "")  # once it runs, it is to be judged
        pytest.skip(f"this plugin refuses the tiny hybrid model itself: {NO_HYBRID}")
    return result


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guard")
    run_engines(folder, [*RUNS, *(SPEC if PLUGIN else []), *REFUSED])
    return folder


@pytest.mark.parametrize("name", [spec["name"] for spec in CLEAN])
def test_right_plans_raise_no_alarm_and_every_step_is_audited(results, name):
    result = read(results, name)
    assert "error" not in result, result.get("trace")
    guard = result["guard"]
    assert guard["signatures"] == []
    assert guard["counts"]["bad_audits"] == 0
    every = 5 if name == "sampled" else 1
    groups = len(guard["layout"])
    assert guard["counts"]["steps"] == guard["step"] + 1 > 10
    assert guard["counts"]["audits"] >= groups * (guard["figures"]["snapshots"] - 1)  # the last may be on its way
    assert guard["figures"]["snapshots"] >= (guard["step"] - 2) // every
    assert result["notes"] == [] if "notes" in result else True


def test_what_the_scenarios_are_there_for_happened(results):
    assert read(results, "preemption")["metrics"]["preemptions"] > 0
    assert read(results, "prefix")["metrics"]["prefix_hits"] > 0
    assert [group["kind"] for group in read(results, "sliding")["guard"]["layout"]].count("sliding") == 1
    if PLUGIN:
        for name in ("spec-sync", "spec-async"):
            metrics = read(results, name)["metrics"]
            drafted, accepted = metrics["drafted"], metrics["accepted"]
            print(f"{name}: drafted {drafted}, accepted {accepted}, rejected {drafted - accepted}")
            assert 0 < accepted < drafted
    assert "mamba" in [group["kind"] for group in read(results, "hybrid")["guard"]["layout"]]


def test_on_gives_the_tokens_of_off(results):
    assert read(results, "on")["tokens"] == read(results, "off")["tokens"]
    if PLUGIN:
        for name in ("spec-sync", "spec-async"):
            assert read(results, name)["tokens"] == read(results, "off")["tokens"]


def test_off_is_absent(results):
    assert read(results, "off")["hooks"] == []  # the first engine of its process
    assert len(read(results, "on")["hooks"]) == 7, "the check can fail"
    assert read(results, "disabled")["guard"] is None


@pytest.mark.skipif(not PLUGIN, reason="the counters are the simulator's")
def test_a_step_gets_one_copy_and_no_wait(results):
    off, on = read(results, "off")["per_decode_step"], read(results, "on")["per_decode_step"]
    for waits in ("event_waits", "output_event_waits", "stream_waits"):
        assert on[waits] == off[waits]
    assert on["d2h"] - off["d2h"] == 1, "the snapshot's"
    assert on["output_d2h"] == off["output_d2h"], "the output's own copies are still told as such"
    figures = read(results, "on")["guard"]["figures"]
    assert figures["main_copies"] == 0
    assert figures["rides"] == figures["snapshots"]
    assert 0 < figures["snapshot_bytes"] / figures["snapshots"] < 4096


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("unknown-key", "has no key 'actoin'"),
        ("unknown-pair", "refuses to start: pair none was not verified with this package"),
    ],
)
def test_what_must_not_start_does_not(results, name, said):
    result = read(results, name)
    assert said in result.get("error", "it started"), result


def test_model_runner_v1_is_refused(tmp_path):
    spec = {"name": "v1", "model": "dense", "guard": LOG, "workload": FEW}
    run_engines(tmp_path, [spec], "plain", VLLM_USE_V2_MODEL_RUNNER="0")
    assert "this engine uses Model Runner V1" in read(tmp_path, "v1").get("error", "it started")
