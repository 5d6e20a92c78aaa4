"""mrv2-metadata in the real engine: a decode step off and on, tokens, lengths, speculation, planted faults."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import _metadata_references as references  # noqa: E402  # found on the path that was just set

PAIR = os.environ.get("KIT_PAIR", "0.30.0")


def unverified() -> str | None:
    """Why the hook would decline on this pair, or None; KIT_TRY_UNVERIFIED=1 runs the tests that earn a row."""
    from vllm_pairs import load_pairs

    pair = load_pairs().get(PAIR)
    if pair.checks_of("mrv2-metadata") or os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        return None
    return f"pair {pair.id} has no row of mrv2-metadata in pairs.toml; KIT_TRY_UNVERIFIED=1 runs the tests all the same"


NOT_HERE = pytest.mark.skipif(unverified() is not None, reason=str(unverified()))
pytestmark = [pytest.mark.engine, NOT_HERE]

ENGINE = BENCHMARKS / "_metadata_engine.py"
EVERY = {"enabled": True, "verify": "every", "strict": True}
ON = {"enabled": True, "strict": True}
TRUSTED = {**ON, "speculative_sync": ["eagle"]}
ASYNC = {"async_scheduling": True}
RUNS = [
    {"name": "batch-off", "scenario": "batch", "hook": None, "loops": True},
    {"name": "batch-on", "scenario": "batch", "hook": ON, "loops": True},
    {"name": "batch-verified", "scenario": "batch", "hook": EVERY},
    {"name": "batch-async", "scenario": "batch", "hook": EVERY, "engine": ASYNC},
    {"name": "chunked-prefill", "scenario": "chunked-prefill", "hook": EVERY},
    {"name": "preemption", "scenario": "preemption", "hook": EVERY},
    {"name": "prefix-cache", "scenario": "prefix-cache", "hook": EVERY},
    {"name": "with-the-others", "scenario": "batch", "hook": EVERY, "others": True},
    {"name": "spec-sync-off", "scenario": "spec-sync", "hook": None},
    {"name": "spec-sync-on", "scenario": "spec-sync", "hook": ON},
    {"name": "spec-sync-trusted", "scenario": "spec-sync", "hook": {**TRUSTED, "verify": "every"}},
    {"name": "spec-async-off", "scenario": "spec-async", "hook": None},
    {"name": "spec-async-on", "scenario": "spec-async", "hook": EVERY},
]
FAULTS = {
    "spec-async": ["scheduler for every step", "no write-back", "one row too few"],
    "batch": ["host lengths one too long"],
}
FAULTY = [
    {"name": f"fault: {fault}", "scenario": scenario, "hook": EVERY, "mutation": fault}
    for scenario, faults in FAULTS.items()
    for fault in faults
]
# A builder that was not run with the hook, beside one that was; only where the simulator's models were compared.
OTHER_BUILDER = [
    {"name": "hybrid", "scenario": "batch", "model": "hybrid", "hook": {"enabled": True}},
    {"name": "sliding-off", "scenario": "batch", "model": "sliding", "hook": None},
    {"name": "sliding-on", "scenario": "batch", "model": "sliding", "hook": EVERY},
]
OTHER_BUILDER *= PAIR == "0.30.0"
# What no engine here can run: the real methods, on a runner without an engine, after the engines of this process.
PROBES = [{"name": f"probe-{feature}", "probe": feature} for feature in ("diffusion", "tokens_per_step")]


def work_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """A new folder for results; with KIT_WORK_DIR one that stays, so that a second run does what is not there yet."""
    if not (base := os.environ.get("KIT_WORK_DIR")):
        return tmp_path_factory.mktemp(name)
    folder = Path(base) / PAIR / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_engines(
    folder: Path, runs: list[dict], modes: tuple[str, ...] = ("plain", "ascend"), **environment: str
) -> None:
    from ascend_sim import models

    job = {"folder": str(folder), "runs": runs, "models": {n: str(models.build(m)) for n, m in MODELS.items()}}
    wanted = {f"plain-{spec['scenario']}.json" for spec in runs if "scenario" in spec}
    for mode in modes:
        if mode == "plain" and references.take(folder, PAIR, wanted):
            continue
        path = folder / f"job-{mode}.json"
        path.write_text(json.dumps({**job, "mode": mode}))
        done = subprocess.run(
            [sys.executable, str(ENGINE), str(path)],
            check=False, capture_output=True, text=True, timeout=1500, env={**os.environ, **environment},
        )  # fmt: skip
        (folder / f"{mode}.log").write_text(done.stdout + done.stderr)
        if mode == "plain":
            references.keep(folder, PAIR, wanted)


MODELS = {"target": "dense", "draft": "eagle", "hybrid": "hybrid", "sliding": "sliding"}


def read(folder: Path, name: str) -> dict:
    path = folder / f"ascend-{name}.json"
    assert path.exists(), (folder / "ascend.log").read_text()[-3000:]
    return json.loads(path.read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = work_folder(tmp_path_factory, "metadata")
    run_engines(folder, RUNS + FAULTY + OTHER_BUILDER + PROBES)
    return folder


def reference(folder: Path, scenario: str) -> list[list[int]]:
    return json.loads((folder / f"plain-{scenario}.json").read_text())["tokens"]


@pytest.mark.parametrize("spec", RUNS, ids=lambda spec: spec["name"])
def test_tokens_equal_the_plain_engine_and_no_length_drifts(results, spec):
    result = read(results, spec["name"])
    assert "error" not in result, result["trace"]
    assert result["tokens"] == reference(results, spec["scenario"])
    assert result["steps"] > 10
    if spec["hook"] is not None:
        assert result["drift_rows"] == 0, result["first_drift"]
        assert result["hook"]["declined"] is None
        assert result["hook"]["counts"]["steps"] >= result["steps"]
        if spec["hook"].get("verify") == "every":
            assert result["hook"]["counts"]["verified_steps"] >= result["steps"] - 2  # the last may be on its way
            assert result["hook"]["counts"]["drift_rows"] == 0


def test_the_scenarios_did_what_they_are_there_for(results):
    assert read(results, "preemption")["metrics"]["vllm:num_preemptions"] > 0
    assert read(results, "prefix-cache")["metrics"]["vllm:prefix_cache_hits"] > 0
    for name in ("spec-sync-on", "spec-async-on"):
        assert read(results, name)["metrics"]["vllm:spec_decode_num_accepted_tokens"] > 0


def test_off_is_absent(results):
    in_place = read(results, "batch-off")["in_place"]  # the first engine of its process
    assert [name for name in in_place["hooks"] if not name.startswith("vllm_pairs.")] == []
    assert all(in_place["plain"].values()), in_place["plain"]
    on = read(results, "batch-on")["in_place"]
    assert not any(plain for target, plain in on["plain"].items() if "AsyncOutput" not in target), "the check can fail"


def test_an_ordinary_decode_step_off_and_on(results):
    off, on = read(results, "batch-off"), read(results, "batch-on")
    before, after = off["per_decode_step"], on["per_decode_step"]
    barrier = PAIR == "0.26.0"
    assert (before["d2h"], before["event_waits"]) == ((1, 1) if barrier else (0, 0))
    assert before["h2d_qsl"] == 1
    assert (after["d2h"], after["event_waits"], after["h2d_qsl"]) == (0, 0, 0)
    assert before["tolist_builder"] == after["tolist_builder"] == 2  # the attention operator takes lists
    assert (after["output_d2h"], after["output_event_waits"]) == (before["output_d2h"], before["output_event_waits"])
    assert off["host_loops"] >= off["steps"]
    assert on["host_loops"] == 0


def test_verification_adds_one_copy_and_no_wait(results):
    plain, verified = (read(results, name)["per_decode_step"] for name in ("batch-on", "batch-verified"))
    for waits in ("event_waits", "output_event_waits", "stream_waits"):
        assert verified[waits] == plain[waits]
    # The output's own copy is issued from the stand-in's `.to()`, and so counts at this package's site.
    assert verified["d2h"] + verified["output_d2h"] == plain["d2h"] + plain["output_d2h"] + 1


@pytest.mark.parametrize("kind", ["spec-sync", "spec-async"])
def test_speculation_costs_what_upstream_pays(results, kind):
    off, on = read(results, f"{kind}-off")["totals"], read(results, f"{kind}-on")
    counts = on["hook"]["counts"]
    # With verification each step carries one snapshot; under async scheduling the last one is compared by nobody.
    snapshots = counts["steps"] if counts["verified_steps"] else 0
    assert counts["device_steps"] == counts["steps"]
    # One copy and one wait a step, as upstream; but for steps of new requests alone, which need neither.
    assert counts["steps"] - 4 <= counts["length_waits"] <= counts["steps"]
    assert on["totals"]["event_wait"] <= off["event_wait"]
    assert on["totals"]["d2h"] - snapshots <= off["d2h"]
    assert counts["length_copy_bytes"] <= 4 * 8 * counts["length_copies"], "only rows of live requests"


def test_async_speculation_needs_the_correction(results):
    assert read(results, "spec-async-on")["hook"]["counts"]["corrected_rows"] > 0


def test_trusted_synchronous_speculation_corrects_nothing(results):
    result = read(results, "spec-sync-trusted")
    counts = result["hook"]["counts"]
    assert (counts["device_steps"], counts["length_copies"], counts["length_waits"]) == (0, 0, 0)
    assert counts["verified_rows"] > 100


@pytest.mark.parametrize("spec", FAULTY, ids=lambda spec: spec["name"])
def test_a_planted_fault_stops_the_engine_with_the_report(results, spec):
    result = read(results, spec["name"])
    assert "error" in result
    assert "host and device sequence lengths differ" in result["trace"]


@pytest.mark.parametrize("spec", PROBES, ids=lambda spec: spec["name"])
def test_what_is_declined_keeps_upstreams_copy_wait_and_lengths(results, spec):
    result = read(results, spec["name"])
    assert "error" not in result, result["trace"]
    assert spec["probe"] in result["declined"]
    assert result["enabled"] is (False if spec["probe"] == "diffusion" else None)
    assert result["hooked"] == result["upstream"]
    assert (result["hooked"]["d2h"], result["hooked"]["stream_wait"]) == (1, 1), "the copy was really called"
    assert result["counts"]["steps"] == result["counts"]["length_copies"] == 0
    if PAIR == "0.26.0":
        assert result["hooked"]["event_wait"] == 1
        assert result["hooked"]["lengths"][2] == 18, "upstream corrects every runner there"


def test_together_with_the_plugins_that_are_installed(results):
    from importlib.metadata import entry_points

    from vllm_pairs import load_pairs

    verified = {check.package.replace("-", "_") for check in load_pairs().get(PAIR).checks}
    installed = {point.name for point in entry_points(group="vllm.general_plugins")}
    result = read(results, "with-the-others")  # its tokens and lengths are compared above
    assert set(result["others"]) == installed & verified & {"kv_plan_guard", "layerwise_sched"}
    assert any(name.startswith("mrv2_metadata.") for name in result["in_place"]["hooks"])
    if "kv_plan_guard" in result["others"]:
        assert any(name.startswith("kv_plan_guard.") for name in result["in_place"]["hooks"])


@pytest.mark.skipif(not OTHER_BUILDER, reason="the hybrid model was compared on the default pair")
def test_a_runner_with_another_builder_is_left_to_upstream(results):
    result = read(results, "hybrid")
    assert "error" not in result, result["trace"]
    assert "attention metadata builder" in result["hook"]["declined"]
    assert "was not run with this hook" in result["hook"]["declined"]
    assert result["hook"]["counts"]["steps"] == result["hook"]["counts"]["uploads_avoided"] == 0
    assert result["per_decode_step"]["h2d_qsl"] == 1, "upstream's own upload"
    assert all(len(tokens) == 32 for tokens in result["tokens"])


@pytest.mark.skipif(not OTHER_BUILDER, reason="the model with two attention groups was compared on the default pair")
def test_each_attention_group_loses_its_upload(results):
    off, on = read(results, "sliding-off"), read(results, "sliding-on")
    assert off["attention_groups"] == on["attention_groups"] == 2
    assert (off["per_decode_step"]["h2d_qsl"], on["per_decode_step"]["h2d_qsl"]) == (2, 0)
    assert on["tokens"] == off["tokens"]
    assert on["drift_rows"] == on["hook"]["counts"]["drift_rows"] == 0
