"""The smoke's own logic: comparison, verdicts, figures, merging, the page, child processes, bad input."""

import errno
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ascend_sim.smoke import __main__ as command
from ascend_sim.smoke import cpu, report, serve, summary
from ascend_sim.smoke.process import Child, ChildFailedError
from ascend_sim.smoke.results import Difference, Result, compare, write_json
from ascend_sim.smoke.scenarios import QUICK, SCENARIOS, Scenario, by_name
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

TOKENS = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4)
SCENARIO = Scenario("batch", "batch", prompts=2, prompt_tokens=4, new_tokens=3, prompt_seed=1)
RIGHT = [[1, 2, 3], [4, 5, 6]]


def result(**changes) -> Result:
    base = Result(
        "batch", "ascend", RIGHT, 3, 0, 0, 0.1, 2.0, decode_steps=2, per_decode_step={"d2h": 0.0, "h2d_qsl": 1.0}
    )
    return replace(base, **changes)


def row(scenario: Scenario = SCENARIO, **changes) -> cpu.Row:
    found = result(**changes)
    return cpu.Row(scenario, result(engine="plain"), found, compare(RIGHT, found.tokens))


@given(TOKENS)
def test_equal_lists_have_no_difference(tokens):
    outcome = compare(tokens, tokens)
    assert outcome.first is None
    assert outcome.equal == outcome.total == sum(map(len, tokens))


@given(TOKENS, st.data())
def test_one_changed_token_is_found_where_it_is(tokens, data):
    places = [(r, p) for r, row_ in enumerate(tokens) for p in range(len(row_))]
    if not places:
        return
    r, p = data.draw(st.sampled_from(places))
    changed = [list(one) for one in tokens]
    changed[r][p] += 100
    outcome = compare(tokens, changed)
    assert outcome.first == Difference(r, p, tokens[r][p], changed[r][p])
    assert outcome.equal == outcome.total - 1


@pytest.mark.parametrize(
    ("actual", "where"),
    [
        ([[1, 2], [4, 5, 6]], Difference(0, 2, 3, None)),
        ([[1, 2, 3]], Difference(1, 0, 4, None)),
        ([[1, 2, 3], [4, 5, 6, 7]], Difference(1, 3, None, 7)),
        ([], Difference(0, 0, 1, None)),
    ],
)
def test_missing_and_surplus_tokens_differ(actual, where):
    assert compare(RIGHT, actual).first == where


def test_nothing_compared_is_not_the_same():
    assert not compare([], []).same
    assert compare(RIGHT, RIGHT).same


def test_prompts_come_from_the_seed_alone():
    for scenario in SCENARIOS:
        prompts = scenario.prompt_token_ids()
        assert prompts == scenario.prompt_token_ids()
        assert [len(prompt) for prompt in prompts] == [scenario.prompt_tokens] * scenario.prompts
        assert len({tuple(prompt[: scenario.shared_tokens]) for prompt in prompts}) == 1
        assert len({tuple(prompt) for prompt in prompts}) == scenario.prompts


def test_the_reference_answers_each_question_once():
    asked = {scenario.name: scenario.reference_question() for scenario in SCENARIOS}
    same = {name for name, question in asked.items() if question == asked["batch"]}
    assert same == {"batch-upstream", "batch", "spec-sync", "spec-async", "pipeline-parallel"}
    assert len(set(asked.values())) == 4
    assert replace(SCENARIO, new_tokens=4).reference_question() != SCENARIO.reference_question()
    assert replace(SCENARIO, engine={"block_size": 16}).reference_question() != SCENARIO.reference_question()


def test_unknown_scenario_is_named():
    with pytest.raises(ValueError, match=r"unknown scenario 'nope': known are batch, "):
        by_name(["batch", "nope"])
    assert [one.name for one in by_name(QUICK)] == list(QUICK)


@pytest.mark.parametrize(
    ("changed", "scenario", "reason"),
    [
        ({"tokens": [[1, 2, 3], [4, 9, 6]]}, SCENARIO, "tokens differ: request 1, output token 1: expected 5, got 9"),
        ({}, replace(SCENARIO, must_preempt=True), "preemption was not tested"),
        ({}, replace(SCENARIO, must_hit_prefix=True), "prefix cache was not tested"),
        ({}, replace(SCENARIO, speculative=2), "speculation was not tested"),
        ({}, replace(SCENARIO, new_tokens=4), "6 tokens compared, 8 expected"),
    ],
)
def test_a_row_fails_for_its_reason(changed, scenario, reason):
    failed = row(scenario, **changed)
    assert not failed.passed
    assert reason in failed.failure
    assert row().passed


def test_an_outcome_without_rows_or_with_failed_requests_does_not_pass():
    served = serve.ServeResult(completed=3, failed=1, ready_s=1, bench_s=1, output_tokens=9)
    assert cpu.Outcome([row()], None, "", 1.0).passed
    assert not cpu.Outcome([], None, "", 1.0).passed
    assert not cpu.Outcome([row()], served, "", 1.0).passed
    assert not cpu.Outcome([row()], None, "server died", 1.0).passed


def test_summary_has_the_figures_and_merging_takes_the_worst_pair():
    good = summary.summary(cpu.Outcome([row()], None, "", 4.0), "a")
    bad_row = row(tokens=[[1, 2, 3], [4, 9, 6]], per_decode_step={"d2h": 1.0, "event_waits": 1.0, "h2d_qsl": 1.0})
    bad = summary.summary(cpu.Outcome([bad_row], None, "", 6.0), "b")
    assert set(good["figures"]) == {
        *("scenarios", "tokens_equal", "tokens_total", "preemptions", "prefix_hits", "serve_completed", "serve_failed"),
        *(
            *(f"{name}_per_decode_step" for name in ("d2h", "event_waits", "h2d_qsl")),
            *(f"{name}_per_decode_step_on" for name in ("d2h", "event_waits", "h2d_qsl")),
            "ms_per_decode_step_8",
            "seconds",
        ),
    }
    assert (good["passed"], bad["passed"]) == (True, False)
    merged = summary.merge([good, bad])
    assert merged["passed"] is False
    assert merged["figures"]["tokens_equal"] == 5
    assert merged["figures"]["d2h_per_decode_step"] == 1.0
    assert merged["figures"]["seconds"] == 10.0
    assert [one["pair"] for one in merged["rows"]] == ["a", "b"]
    with pytest.raises(ValueError, match="no summaries"):
        summary.merge([])


def test_upstreams_figures_come_from_the_run_without_plugins():
    upstream = cpu.Row(replace(SCENARIO, name="batch-upstream"), result(), result(), compare(RIGHT, RIGHT))
    hooked = row(per_decode_step={"d2h": 0.0, "event_waits": 0.0, "h2d_qsl": 0.0})
    figures = summary.summary(cpu.Outcome([upstream, hooked], None, "", 1.0), "a")["figures"]
    assert (figures["h2d_qsl_per_decode_step"], figures["h2d_qsl_per_decode_step_on"]) == (1.0, 0.0)


def test_the_page_is_self_contained_and_escapes_text():
    made = summary.summary(cpu.Outcome([row()], None, "<script>alert(1)</script>", 4.0), "<pair>")
    page = report.render(made)
    assert "<script" not in page
    assert "&lt;pair&gt;" in page
    assert "http" not in page.replace("</html>", "")
    assert "src=" not in page
    assert "FAILED" in page


def test_results_survive_the_file(tmp_path):
    path = result().write(tmp_path)
    assert Result.read(path) == result()
    assert [one.name for one in tmp_path.iterdir()] == ["ascend-batch.json"]


def test_a_full_disk_leaves_no_half_file_and_one_clear_error(tmp_path, monkeypatch):
    (tmp_path / "x.json").write_text("old")

    def full(self, *_args, **_kwargs):
        self.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"cannot write .*x\.json: No space left on device"):
        write_json(tmp_path / "x.json", {})
    monkeypatch.undo()
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]
    assert (tmp_path / "x.json").read_text() == "old"


def test_out_that_cannot_be_written_is_one_line_and_status_2(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "check_pair", lambda wanted: "x")
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = CliRunner().invoke(command.app, ["cpu", "--quick", "--out", str(blocked / "out")])
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    done = CliRunner().invoke(command.app, ["cpu", "--quick", "--out", str(tmp_path / "out")])
    assert (done.exit_code, "the disk is full" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cpu", "--scenario", "nope"], "unknown scenario 'nope'"),
        (["cpu", "--pair", "0.0.1"], "--pair '0.0.1'"),
        (["cpu", "--model", "/no/such/model", "--quick"], "is no model directory"),
        (["merge", "/no/such/folder"], "No such file"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, monkeypatch, tmp_path):
    class Installed:
        id = "9.9.9"

    monkeypatch.setattr("vllm_pairs.current_pair", Installed)
    done = CliRunner().invoke(command.app, [*arguments, "--out", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.output


def test_a_summary_of_something_else_is_refused(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"version": 2}))
    done = CliRunner().invoke(command.app, ["merge", str(tmp_path), "--out", str(tmp_path / "out")])
    assert (done.exit_code, "is not a summary of version 1" in done.stderr.replace("\n", " ")) == (2, True)


def child(code: str, tmp_path: Path, **more) -> Child:
    return Child("probe", [sys.executable, "-c", code], log=tmp_path / "log", environment=dict(os.environ), **more)


def test_child_failure_carries_status_and_last_lines(tmp_path):
    lines: list[str] = []
    code = "print('about to fail'); raise SystemExit(3)"
    with (
        child(code, tmp_path, on_line=lines.append) as failing,
        pytest.raises(ChildFailedError, match=r"probe ended with exit status 3") as caught,
    ):
        failing.check(30)
    assert "about to fail" in str(caught.value)
    assert lines == ["about to fail"]


def test_child_is_read_on_when_its_log_cannot_be_written(tmp_path):
    (tmp_path / "log").symlink_to("/dev/full")  # every write to it is a full disk
    code = "print('x' * 1_000_000); print('last'); raise SystemExit(4)"  # more than a pipe holds
    with child(code, tmp_path) as talking, pytest.raises(ChildFailedError, match="No space left") as caught:
        talking.check(30)
    assert "last" in str(caught.value)


def test_child_killed_is_named_by_signal(tmp_path):
    with child("import time; print('up', flush=True); time.sleep(60)", tmp_path) as running:
        os.kill(running.pid, signal.SIGKILL)
        with pytest.raises(ChildFailedError, match="was ended by signal SIGKILL"):
            running.check(30)


def test_child_that_hangs_is_ended_with_its_own_children(tmp_path):
    grandchild = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']);"
    )
    seen: list[str] = []
    code = grandchild + "print(p.pid, flush=True); time.sleep(99)"
    with child(code, tmp_path, on_line=seen.append) as hanging:
        while not seen:
            time.sleep(0.01)
        with pytest.raises(ChildFailedError, match="did not finish"):
            hanging.check(0.2)
    with pytest.raises(ProcessLookupError):
        os.killpg(hanging.pid, 0)


def test_a_server_that_dies_while_measured_is_the_error(tmp_path):
    with (
        child("print('server up', flush=True); raise SystemExit(7)", tmp_path) as server,
        child("import time; time.sleep(60)", tmp_path) as client,
    ):
        server.wait(30)
        with pytest.raises(ChildFailedError, match="exit status 7 while it was being measured"):
            serve._wait_for_client(client, server)


def test_a_server_that_dies_before_it_is_ready_is_the_error(tmp_path):
    with child("raise SystemExit(5)", tmp_path) as server:
        server.wait(30)
        with pytest.raises(ChildFailedError, match="exit status 5 before it was ready"):
            serve.wait_ready(server, serve.free_port(), timeout_s=5)


def test_a_plugin_takes_part_on_the_pairs_it_was_verified_on(monkeypatch):
    class Pair:
        def checks_of(self, package):
            return ("seen",) if package == "kv-plan-guard" else ()

    class Point:
        def __init__(self, name):
            self.dist = SimpleNamespace(name=name)

    points = [Point(name) for name in ("kv-plan-guard", "mrv2-metadata", "somebody-elses")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    monkeypatch.setattr("vllm_pairs.current_pair", Pair)
    assert cpu.plugin_config() == {"kv_guard_config": {"enabled": True, "action": "raise"}}
