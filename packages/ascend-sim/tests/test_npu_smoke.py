"""npu-smoke's own logic: host record, rows, the packet, refusals. No NPU was involved."""

import hashlib
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from ascend_sim.smoke import __main__ as command
from ascend_sim.smoke import npu, npu_command, npu_compare, npu_engine, npu_host, npu_report
from ascend_sim.smoke.npu_plan import CONTROL, OFF, PROFILE, Outcome, Plan, Profile, Row
from ascend_sim.smoke.results import Result
from ascend_sim.smoke.scenarios import by_name
from typer.testing import CliRunner

BATCH, PREEMPTION, SPEC, PIPELINE = (by_name([n])[0] for n in ("batch", "preemption", "spec-sync", "pipeline-parallel"))
TOKENS = [[n % 7] * BATCH.new_tokens for n in range(BATCH.prompts)]
HOOK = "mrv2-metadata"


def plan(tmp_path, **changes) -> Plan:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    base = Plan(model, out, (BATCH,), ("eager",), True, plugins={HOOK: {"mrv2_metadata": {"enabled": True}}})
    return replace(base, **changes)


def unit(arm: str, tokens=None, hooks=(), **changes) -> dict:
    found = Result("batch", arm, tokens or TOKENS, 40, 0, 0, 1.0, 5.0)
    # The bootstrap's own two are there in every arm, and are no plugin's hook.
    stages = {"hooks": ["vllm_pairs.ascend_config", "vllm_pairs.gate", *hooks], "workers": []}
    base = {"unit": "batch", "arm": arm, "mode": "eager", "status": "ran", "result": asdict(found), "stages": stages}
    return base | changes


def rows(tmp_path, on: dict, off: dict | None = None, control: dict | None = None, **changes) -> dict[str, Row]:
    units = {
        OFF: {"batch": off or unit(OFF)},
        CONTROL: {"batch": control or unit(CONTROL)},
        f"on-{HOOK}": {"batch": on},
    }
    return {row.arm: row for row in npu_compare.compare_mode(plan(tmp_path, **changes), "eager", units)}


# --- rows


def test_equal_tokens_with_the_hook_in_place(tmp_path):
    found = rows(tmp_path, unit("on", hooks=["mrv2_metadata.build"]))
    assert {arm: row.status for arm, row in found.items()} == {OFF: "ran", CONTROL: "equal", f"on-{HOOK}": "equal"}
    assert found[f"on-{HOOK}"].comparison.total == BATCH.tokens_expected


def test_one_wrong_token_is_named(tmp_path):
    wrong = [list(one) for one in TOKENS]
    wrong[3][5] = 99
    row = rows(tmp_path, unit("on", tokens=wrong, hooks=["mrv2_metadata.build"]))[f"on-{HOOK}"]
    assert row.status == "differs"
    assert row.reason == "request 3, output token 5: expected 3, got 99"


def test_a_hook_that_is_not_in_place_is_declined_and_never_equal(tmp_path):
    raw = plan(tmp_path).out / "raw" / "eager"
    raw.mkdir(parents=True)
    (raw / f"on-{HOOK}-batch.log").write_text(f"WARNING 12:00 {HOOK} is not in place: pair x was not verified\n")
    row = rows(tmp_path, unit("on"))[f"on-{HOOK}"]
    assert (row.status, row.comparison) == ("declined", None)
    assert "pair x was not verified" in row.reason


def test_a_hook_in_an_arm_without_hooks_fails(tmp_path):
    on, leaked = unit("on", hooks=["mrv2_metadata.build"]), ["mrv2_metadata.build"]
    for arm in (OFF, CONTROL):
        row = rows(tmp_path, on, **{arm: unit(arm, hooks=leaked)})[arm]
        assert (row.status, "mrv2_metadata.build" in row.reason) == ("failed", True)


def test_another_plugins_hook_does_not_stand_for_the_arms_own(tmp_path):
    row = rows(tmp_path, unit("on", hooks=["kv_plan_guard.audit"]))[f"on-{HOOK}"]
    assert row.status == "declined"


def test_refusals_carry_their_reason_and_have_nothing_to_compare(tmp_path):
    refused = {"unit": "batch", "status": "refused", "reason": "ValueError: no such backend", "stages": {}}
    found = rows(tmp_path, refused, off=refused, control=refused)
    assert {(row.status, row.reason) for row in found.values()} == {("refused", "ValueError: no such backend")}
    alone = rows(tmp_path, unit("on", hooks=["mrv2_metadata.build"]), off=refused)
    assert alone[f"on-{HOOK}"].status == "failed"


def test_a_scenario_that_did_not_do_its_job_fails(tmp_path):
    tokens = [[1] * PREEMPTION.new_tokens] * PREEMPTION.prompts
    off = unit(OFF, tokens=tokens)
    row = npu_compare._row(plan(tmp_path), "eager", PREEMPTION, OFF, off, off)
    assert (row.status, row.reason) == ("failed", "no request was preempted, so preemption was not tested")


def test_what_cannot_run_here_is_left_out_with_its_reason(tmp_path):
    one = plan(tmp_path, scenarios=(SPEC, PIPELINE), simulated=False, devices=1)
    units = {arm: {} for arm in one.arms}
    reasons = {row.unit: (row.status, row.reason) for row in npu_compare.compare_mode(one, "eager", units)}
    assert reasons["spec-sync"] == ("left out", "needs a draft model made for this one: give --draft")
    assert reasons["pipeline-parallel"] == ("left out", "needs 2 NPUs, 1 here")
    assert replace(one, devices=2, draft=tmp_path).left_out(PIPELINE) == ""
    assert replace(one, devices=2, tensor_parallel_size=2).left_out(PIPELINE) == "needs 4 NPUs, 2 here"


@pytest.mark.parametrize(
    ("statuses", "profile", "passed"),
    [
        (["ran", "equal", "equal"], "recorded", True),
        (["ran", "equal", "refused"], "refused", True),
        (["ran", "differs", "equal"], "recorded", False),
        (["ran", "equal", "failed"], "recorded", False),
        (["ran", "equal", "equal"], "failed", False),
        (["refused", "refused", "refused"], "refused", False),
        (["ran", "declined", "declined"], "recorded", False),
        ([], "recorded", False),
    ],
)
def test_passed_needs_an_equal_row_and_no_broken_one(statuses, profile, passed):
    arms = [OFF, CONTROL, f"on-{HOOK}"]
    found = [Row("eager", "batch", arm, status) for arm, status in zip(arms, statuses, strict=False)]
    assert Outcome(found, [Profile("eager", OFF, profile)], {}, 1.0).passed is passed


# --- engine processes


def test_a_process_that_dies_costs_one_unit_and_the_rest_goes_on(tmp_path, monkeypatch):
    one = plan(tmp_path, scenarios=(BATCH, PREEMPTION))
    started = []

    def process(plan_, mode, arm, units, folder, progress):
        started.append(list(units))
        if units[0] == "preemption":
            return "engine was ended by signal SIGKILL"
        (folder / f"{arm}-{units[0]}.json").write_text(json.dumps({"status": "ran", "stages": {}}))
        return "engine was ended by signal SIGKILL"

    monkeypatch.setattr(npu, "_run_process", process)
    found = npu._run_arm(one, "eager", OFF, [BATCH, PREEMPTION], lambda *_: None)
    assert started == [["batch", "preemption", PROFILE], [PROFILE]]
    assert found["batch"]["status"] == found[PROFILE]["status"] == "ran"
    assert (found["preemption"]["status"], found["preemption"]["reason"]) == (
        "failed",
        "engine was ended by signal SIGKILL",
    )


def test_a_mode_that_is_refused_is_asked_once(tmp_path, monkeypatch):
    one = plan(tmp_path, modes=("graph",), simulated=False, devices=1)
    started = []

    def process(plan_, mode, arm, units, folder, progress):
        started.append((arm, *units))
        (folder / f"{arm}-{units[0]}.json").write_text(
            json.dumps({"unit": units[0], "status": "refused", "reason": "no graph here", "stages": {}})
        )
        return ""

    monkeypatch.setattr(npu, "_run_process", process)
    outcome = npu.run(one, lambda *_: None)
    assert started == [(OFF, "batch")]
    assert {(row.arm, row.status, row.reason) for row in outcome.rows} == {
        (arm, "refused", "no graph here") for arm in one.arms
    }
    assert {one_.status for one_ in outcome.profiles} == {"refused"}
    assert not outcome.passed


def test_on_an_npu_each_unit_has_a_process_of_its_own(tmp_path):
    one = plan(tmp_path)
    assert npu.groups(replace(one, simulated=False), [BATCH, PREEMPTION]) == [["batch"], ["preemption"], [PROFILE]]
    assert npu.groups(one, [BATCH, PIPELINE]) == [["batch", PROFILE], ["pipeline-parallel"]]


def test_the_arms_environment_has_what_it_names_and_nothing_else(tmp_path, monkeypatch):
    for name in ("ASCEND_SIM", "VLLM_MRV2_METADATA", "VLLM_KV_PLAN_GUARD", "VLLM_LAYERWISE_SCHED"):
        monkeypatch.setenv(name, "1")
    one = plan(tmp_path)
    real = npu.environment(replace(one, simulated=False))
    assert not {"ASCEND_SIM", *npu.PLUGIN_VARIABLES} & set(real)
    assert npu.environment(one)["ASCEND_SIM"] == "1"
    job = {"engine": {}, "mode": "graph", "graph_mode": "FULL", "plugins": {"k": {}}, "models": {"draft": "d"}}
    assert npu_engine.engine_of("batch", job) == {
        "enforce_eager": False,
        "compilation_config": {"cudagraph_mode": "FULL"},
        "additional_config": {"k": {}},
    }
    assert "additional_config" not in npu_engine.engine_of("batch", {**job, "plugins": {}})
    assert npu_engine.engine_of("spec-sync", {**job, "mode": "eager"})["speculative_config"]["model"] == "d"


def test_the_reason_is_the_error_that_started_it():
    last = RuntimeError("engine failed to start")
    last.__cause__ = ValueError("KV cache\n is too small")
    assert npu_engine.reason(last) == "ValueError: KV cache is too small"
    assert npu_engine.reason(npu_engine.RefusedError("no graph here")) == "no graph here"


# --- host

NPU_SMI = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0                   Version: 24.1.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 3     910B2               | OK            | 93.4        48                0    / 0             |
| 0                         | 0000:82:00.0  | 0           0    / 0          3407 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 3       0                 | 12345         | somebody                 | 3000                    |
+===========================+===============+====================================================+
"""


def test_npu_smi_gives_chips_and_no_processes():
    found = npu_host.parse_npu_smi(NPU_SMI)
    assert found == {"chips": [{"id": 3, "name": "910B2", "health": "OK"}], "npu_smi": "24.1.0", "driver": "24.1.0"}
    assert npu_host.parse_npu_smi("something else") == {"chips": []}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Version=24.1.0\nascendhal_version=7.35\n", "24.1.0"),
        ("package_name=Ascend-cann-toolkit\nversion=8.1.RC1\ninnerversion=V100\n", "8.1.RC1"),
        ("# version: 1.0\nruntime_running_version=[9.2.0:9.2.0]\n", "9.2.0"),
        ("nothing", None),
    ],
)
def test_versions_in_ascends_files(tmp_path, text, version):
    (tmp_path / "version.info").write_text(text)
    assert npu_host.version_in(tmp_path / "version.info") == version
    assert npu_host.version_in(tmp_path / "absent") is None


def test_the_host_record_names_driver_cann_and_chip(tmp_path, monkeypatch):
    for path, text in (
        ("driver/version.info", "Version=24.1.0"),
        ("ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info", "version=8.1.RC1"),
    ):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    for name in ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(npu_host, "npu_smi", lambda: npu_host.parse_npu_smi(NPU_SMI))
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    found = npu_host.record(simulated=False, root=tmp_path)
    assert (found["driver"], found["cann"], found["chip"], found["firmware"]) == (
        "24.1.0",
        "8.1.RC1",
        "910B2",
        "unknown",
    )
    assert "secret" not in json.dumps(found)
    assert npu_host.record(simulated=True)["device"] == "simulated, no NPU"


def test_device_nodes(tmp_path, monkeypatch):
    for name in ("davinci0", "davinci10", "davinci_manager", "null"):
        (tmp_path / name).touch()
    assert npu_host.devices(tmp_path) == [0, 10]
    monkeypatch.delenv("ASCEND_RT_VISIBLE_DEVICES", raising=False)
    assert npu_host.visible_devices(tmp_path) == 2
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5,6")
    assert npu_host.visible_devices(tmp_path) == 3


# --- the packet


def outcome() -> Outcome:
    found = Row("eager", "batch", OFF, "ran"), Row("eager", "batch", CONTROL, "refused", "[red]why[/red]")
    counted = [
        Profile("eager", OFF, "recorded", 8, "counters", {"d2h": 24, "wait_event": 16, "host_wait": 8}),
        Profile("eager", f"on-{HOOK}", "recorded", 8, "counters", {"d2h": 16, "wait_event": 8, "host_wait": 8}),
        Profile("graph", OFF, "refused", reason="no graph"),
    ]
    return Outcome(list(found), counted, {"eager": {}}, 2.0)


PAIR = {"id": "9.9.9"}


def test_the_packets_manifest_holds_and_finds_a_change(tmp_path):
    one = plan(tmp_path)
    (one.out / "raw").mkdir()
    (one.out / "raw" / "off-batch.json").write_text("{}")
    made = npu_report.summary(one, outcome(), PAIR, npu_host.record(simulated=True))
    npu_report.write(one, made, PAIR, {"device": "simulated, no NPU"})
    lines = (one.out / npu_report.MANIFEST).read_text().splitlines()
    assert [line.partition("  ")[2] for line in lines] == ["environment.json", "raw/off-batch.json", "summary.json"]
    assert lines[1].startswith(hashlib.sha256(b"{}").hexdigest())
    check = ["sha256sum", "--check", "--strict", "--quiet", npu_report.MANIFEST]
    assert subprocess.run(check, cwd=one.out, check=False, capture_output=True).returncode == 0
    (one.out / "raw" / "off-batch.json").write_text("{ }")
    assert subprocess.run(check, cwd=one.out, check=False, capture_output=True).returncode == 1


def test_a_simulated_run_says_so_everywhere(tmp_path):
    one = plan(tmp_path)
    host = npu_host.record(simulated=True)
    made = npu_report.summary(one, outcome(), PAIR, host)
    npu_report.write(one, made, PAIR, host)
    for name in ("summary.json", "environment.json"):
        assert json.loads((one.out / name).read_text())["device"] == "simulated, no NPU"
    assert made["name"] == "npu-smoke-simulated"
    for table in (npu_report.support_table(made), npu_report.profile_table(made), npu_report.stage_table(made)):
        assert "simulated, no NPU" in table.title
    real = npu_report.summary(replace(one, simulated=False), outcome(), PAIR, {"chip": "c", "driver": "d", "cann": "e"})
    assert (real["name"], real["device"], real["host"]["cann"]) == ("npu-smoke", "NPU", "e")


def test_figures_of_the_profile_and_of_refusals():
    made = npu_report.figures(outcome())
    assert (made["profile_d2h_off"], made["profile_d2h_on"]) == (24, 16)
    assert (made["profile_wait_event_off"], made["profile_wait_event_on"]) == (16, 8)
    assert (made["rows_refused"], made["rows_compared"], made["modes_ran"]) == (1, 0, 1)


def test_markup_in_an_engines_error_is_shown_as_text(tmp_path):
    made = npu_report.summary(plan(tmp_path), outcome(), PAIR, {})
    with npu_command.console.capture() as shown:
        npu_command.console.print(npu_report.support_table(made))
    assert "[red]why[/red]" in shown.get()


# --- the command


def test_without_an_npu_one_line_and_status_2(monkeypatch):
    monkeypatch.setattr(npu_host, "has_npu", lambda: False)
    done = CliRunner().invoke(command.app, ["npu", "--model", "/no/such"])
    assert (done.exit_code, done.stderr.strip()) == (2, npu_host.NO_NPU)
    assert "\n" not in npu_host.NO_NPU


def test_the_host_check_is_a_script_that_needs_nothing(tmp_path):
    script = Path(npu_host.__file__)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(script)],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
    )
    expected = (0, "") if npu_host.has_npu() else (2, npu_host.NO_NPU + "\n")
    assert (done.returncode, done.stderr) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--modes", "eager,fast"], "--modes 'eager,fast': 'fast' is no mode"),
        (["--modes", ","], "--modes ',': ',' is no mode"),
        (["--model", "/no/such/model"], "--model '/no/such/model' is no model directory"),
        (["--scenario", "nope"], "unknown scenario 'nope'"),
        (["--tensor-parallel-size", "9"], "--tensor-parallel-size 9: 1 NPUs are visible here"),
        ([], "--model is missing"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, monkeypatch, tmp_path):
    monkeypatch.setattr(npu_host, "has_npu", lambda: True)
    monkeypatch.setattr(npu_host, "visible_devices", lambda: 1)
    model = plan(tmp_path).model
    given = ["npu", "--out", str(tmp_path / "new"), *arguments]
    if arguments and arguments[0] != "--model":
        given += ["--model", str(model)]
    done = CliRunner().invoke(command.app, given)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()


def test_a_folder_with_other_files_is_not_packed(monkeypatch, tmp_path):
    class Installed:
        id = status = vllm = vllm_ascend = vllm_commit = vllm_ascend_commit = reason = "x"

        def checks_of(self, _package):
            return ()

    monkeypatch.setattr("vllm_pairs.current_pair", Installed)
    one = plan(tmp_path)
    (one.out / "notes.txt").write_text("mine")
    (one.out / "summary.json").write_text("old")
    given = ["npu", "--simulated", "--model", str(one.model), "--out", str(one.out)]
    done = CliRunner().invoke(command.app, given)
    assert done.exit_code == 2
    assert "holds 'notes.txt', which is not this command's" in done.stderr
    assert (one.out / "summary.json").read_text() == "old"
