"""The runner with real processes: the light server and client stand in for an engine, nothing stands in for kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from serving_evidence import protocol
from serving_evidence.errors import ProtocolError, RunError
from serving_evidence.packet import verify
from serving_evidence.runner import Runner, processes
from serving_evidence.runner.environment import before_start, code_hash

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SERVER = [sys.executable, "-I", "-S", str(HERE / "light_server.py"), "--port", "{port}"]
CLIENT = [sys.executable, "-I", "-S", str(HERE / "light_client.py"), "--port", "{port}", "--out"]
CLIENT += ["{result_dir}/{result_file}"]


def toml(*, server_b: list[str] | None = None, client: list[str] | None = None, pairs: int = 1, more: str = "") -> str:
    return f"""
version = 1
name = "light"
question = "Does the runner keep its word?"
{more}
[arms.A]
label = "A"
command = {json.dumps(SERVER)}
[arms.B]
label = "B"
command = {json.dumps(server_b or [*SERVER, "--say", "hook active"])}
active_log = "hook active"
[[scenarios]]
name = "c1"
command = {json.dumps(client or CLIENT)}
outputs = "equal"
[primary]
metric = "mean_itl_ms"
scenario = "c1"
[design]
pairs = {pairs}
attempts = 2
"""


MADE: list[Runner] = []


@pytest.fixture(autouse=True)
def _let_go() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().state.close()


def runner(folder: Path, text: str) -> Runner:
    MADE.append(Runner(folder, protocol.parse(text), text))
    return MADE[-1]


def test_a_run_ends_in_a_packet_and_leaves_nobody(tmp_path: Path) -> None:
    text = toml(pairs=2)
    seen: list[tuple[int, int, str]] = []
    mine = runner(tmp_path / "run", text)
    packet = mine.run(on_progress=lambda *what: seen.append(what))
    verified = verify(packet)
    assert verified.verdict["invalid"] == []
    assert verified.verdict["status"] == "INCONCLUSIVE"
    assert [start.index for start in verified.packet.starts] == [0, 1, 2, 3]
    assert len({start.pid for start in verified.packet.starts}) == 4
    assert processes.marked(mine.state.run_id) == []
    assert seen[-1] == (4, 4, "packet")
    mine.state.close()
    # Going on with a finished run changes nothing.
    again = runner(tmp_path / "run", text)
    assert again.run() == packet
    assert verify(packet).verdict == verified.verdict


def test_a_silent_plugin_makes_the_run_invalid(tmp_path: Path) -> None:
    verified = verify(runner(tmp_path / "run", toml(server_b=SERVER)).run())
    assert any("did not report itself active" in reason for reason in verified.verdict["invalid"])


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"server_b": [*SERVER, "--die-at-start"]}, "server-died"),
        ({"client": [*CLIENT, "--fail"]}, "client-failed"),
        ({"client": [sys.executable, "-c", "pass", "{result_dir}"]}, "result-unreadable"),
    ],
)
def test_failures_are_kept_retried_and_told(tmp_path: Path, changes: dict[str, Any], rule: str) -> None:
    mine = runner(tmp_path / "run", toml(**changes))
    with pytest.raises(RunError, match=f"failed 2 times, last: {rule}"):
        mine.run()
    kept = sorted((tmp_path / "run" / "excluded").iterdir())
    assert len(kept) == 2
    assert {json.loads((path / "exclusion.json").read_text())["rule"] for path in kept} == {rule}
    assert processes.marked(mine.state.run_id) == []


def test_a_rule_that_was_not_declared_stops_the_run(tmp_path: Path) -> None:
    text = toml(client=[*CLIENT, "--fail"], more='exclude_when = ["server-died"]')
    with pytest.raises(RunError, match="no exclusion rule here"):
        runner(tmp_path / "run", text).run()


@pytest.mark.parametrize("moment", ["work", "starts"])
def test_kill_of_the_runner_loses_and_doubles_nothing(tmp_path: Path, moment: str) -> None:
    text, folder = toml(pairs=2), tmp_path / "run"
    (tmp_path / "p.toml").write_text(text)
    command = [sys.executable, "-m", "serving_evidence", "run", str(tmp_path / "p.toml"), "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list((folder / moment).glob("*/server.log")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path.name: (path / "start.json").read_bytes() for path in (folder / "starts").iterdir()}
    mine = runner(folder, text)
    packet = mine.run()
    verified = verify(packet)
    assert [start.index for start in verified.packet.starts] == [0, 1, 2, 3]
    for name, record in kept.items():
        assert (folder / "starts" / name / "start.json").read_bytes() == record
    assert all(record.rule == "runner-killed" for record in verified.packet.excluded)
    assert verified.verdict["invalid"] == []
    assert processes.marked(mine.state.run_id) == []


def test_two_runners_do_not_share_a_folder(tmp_path: Path) -> None:
    first = runner(tmp_path / "run", toml())
    with pytest.raises(RunError, match="another runner"):
        runner(tmp_path / "run", toml())
    first.state.close()


def test_a_changed_protocol_is_refused_and_deviations_stay(tmp_path: Path) -> None:
    first = runner(tmp_path / "run", toml())
    first.state.add_deviation("the fan was loud")
    first.state.close()
    with pytest.raises(RunError, match="differs from the one locked"):
        runner(tmp_path / "run", toml(pairs=2))
    (tmp_path / "run" / "protocol.toml").write_text(toml(pairs=2))
    with pytest.raises(RunError, match="changed after it was locked"):
        runner(tmp_path / "run", toml(pairs=2))
    (tmp_path / "run" / "protocol.toml").write_text(toml())
    again = runner(tmp_path / "run", toml())
    packet = again.run()
    assert [item.text for item in verify(packet).packet.deviations] == ["the fan was loud"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not empty and not a run folder"):
        runner(tmp_path, toml())


def test_counters_are_read_and_judged_apart(tmp_path: Path) -> None:
    code = "import json,sys;json.dump({'d2h':0.0},open(sys.argv[1],'w'))"
    command = json.dumps([sys.executable, "-c", code, "{result_dir}/{result_file}"])
    text = toml() + f"\n[mechanism]\ncommand = {command}\nrules = [{{counter = 'd2h', A = 1.0, B = 0.0}}]\n"
    verdict = verify(runner(tmp_path / "run", text).run()).verdict
    assert verdict["mechanism"]["status"] == "NOT_SHOWN"
    assert verdict["status"] == "INCONCLUSIVE"


def test_secrets_are_not_recorded() -> None:
    facts = before_start({"VLLM_API_KEY": "x", "VLLM_PORT": "1", "HOME": "/"})
    assert facts["variables"] == {"VLLM_PORT": "1"}


def test_code_hash_follows_content_and_names(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    one = code_hash([str(tmp_path)])
    (tmp_path / "note.txt").write_text("no code")
    assert code_hash([str(tmp_path)]) == one
    (tmp_path / "a.py").write_text("x = 2")
    assert code_hash([str(tmp_path)]) != one
    assert code_hash([]) is None
    with pytest.raises(RunError, match="does not exist"):
        code_hash([str(tmp_path / "none")])


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="CPU binding is a Linux call")
def test_server_and_client_are_bound(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    log = tmp_path / "log"
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    process = processes.spawn(
        [sys.executable, "-c", code], environment=os.environ, log=log, folder=tmp_path, cpus=[cpu], run_id="x"
    )
    assert process.wait() == 0
    assert log.read_text().strip() == f"[{cpu}]"
    with pytest.raises(RunError, match="server_cpus"):
        runner(tmp_path / "run", toml(more="") + "\n[host]\nserver_cpus = [4095]\n")


def test_at_most_stops_between_starts_and_goes_on(tmp_path: Path) -> None:
    text = toml(pairs=2)
    mine = runner(tmp_path / "run", text)
    assert mine.run(at_most=3) is None
    assert sorted(path.name[:3] for path in (tmp_path / "run" / "starts").iterdir()) == ["000", "001", "002"]
    assert processes.marked(mine.state.run_id) == []
    packet = mine.run(at_most=1)
    assert packet is not None
    assert verify(packet).verdict["invalid"] == []


def test_at_most_by_command_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(toml())
    command = [
        sys.executable,
        "-m",
        "serving_evidence",
        "run",
        str(tmp_path / "p.toml"),
        "--out",
        str(tmp_path / "run"),
    ]
    first = subprocess.run([*command, "--at-most", "1"], capture_output=True, text=True, check=False)
    assert (first.returncode, "1 of 2 starts complete" in first.stderr) == (3, True)
    assert subprocess.run([*command, "--at-most", "1"], capture_output=True, check=False).returncode == 0


def test_the_model_is_hashed_and_no_path_of_this_host_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    server = [*SERVER, "--say", f"loading {{model}} of {tmp_path}"]
    text = (
        toml(server_b=server)
        .replace("[arms.A]", f'model = "{model}"\n[arms.A]', 1)
        .replace('"hook active"', '"loading"')
    )
    monkeypatch.chdir(tmp_path)
    packet = runner(tmp_path / "run", text).run()
    assert packet is not None
    starts = verify(packet).packet.starts
    (digest,) = {start.environment["model_sha256"] for start in starts}
    assert len(digest) == 64
    assert starts[0].environment["cpu_busy_percent"] >= 0
    log = next(packet.glob("starts/*-B/server.log")).read_text()
    assert log.strip() == "loading ../../../model of {cwd}"
    assert any("{model}" in word for start in starts for word in start.server_command)
    for path in packet.rglob("*.log"):
        assert str(tmp_path) not in path.read_text()


def test_a_changed_model_makes_the_run_invalid(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    text = toml().replace("[arms.A]", f'model = "{model}"\n[arms.A]', 1)
    mine = runner(tmp_path / "run", text)
    assert mine.run(at_most=1) is None
    (model / "config.json").write_text('{"layers": 2}')
    packet = mine.run()
    assert packet is not None
    assert "the model changed between starts: 2 different hashes" in verify(packet).verdict["invalid"]


def test_a_protocol_without_a_model_cannot_name_one(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="names no `model` folder"):
        runner(tmp_path / "run", toml(server_b=[*SERVER, "{model}"]))
    with pytest.raises(RunError, match="is no folder"):
        runner(tmp_path / "run2", toml().replace("[arms.A]", 'model = "nowhere"\n[arms.A]', 1))
