"""The smoke as a user runs it: a planted fault is shown, and each thing that goes wrong is one clear error."""

import importlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from ascend_sim import counters, models
from ascend_sim.smoke import serve
from ascend_sim.smoke.cpu import PLUGINS
from ascend_sim.smoke.process import Child, ChildFailedError

pytestmark = pytest.mark.engine

# A plugin that makes the attention operator wrong for one row of a batch, as a bad kernel would be.
FAULT = """
def load():
    import sys
    module = sys.modules.get("torch_npu")
    if module is None:
        return
    right = module.npu_fused_infer_attention_score
    def wrong(query, *args, **kwargs):
        out, lse = right(query, *args, **kwargs)
        if out.shape[0] > 1:
            out[1] = out[1] + 0.5
        return out, lse
    module.npu_fused_infer_attention_score = wrong
"""


@pytest.mark.parametrize("distribution", PLUGINS)
def test_each_plugin_accepts_what_the_smoke_asks_of_it(distribution: str) -> None:
    key, value = PLUGINS[distribution]
    config = importlib.import_module(f"{distribution.replace('-', '_')}.config")
    assert key == config.KEY
    config.parse(value)


def smoke(*arguments: str, path: Path | None = None, timeout: float = 400) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-m", "ascend_sim.smoke", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)


def test_a_wrong_operator_is_shown_by_its_first_difference(tmp_path):
    plugin = tmp_path / "plugin"
    (plugin / "fault-0.1.dist-info").mkdir(parents=True)
    (plugin / "fault.py").write_text(FAULT)
    (plugin / "fault-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: fault\nVersion: 0.1\n")
    (plugin / "fault-0.1.dist-info" / "entry_points.txt").write_text("[vllm.general_plugins]\nfault = fault:load\n")
    done = smoke("cpu", "--scenario", "batch", "--out", str(tmp_path / "out"), path=plugin)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"batch: tokens differ: request \d, output token \d+: expected \d+, got \d+", done.stderr)
    made = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert made["passed"] is False
    assert 0 < made["figures"]["tokens_equal"] < made["figures"]["tokens_total"]
    assert "tokens differ" in (tmp_path / "out" / "report.html").read_text()
    # The reference was not touched by the fault: it is the plain engine's.
    assert json.loads((tmp_path / "out" / "raw" / "plain-batch.json").read_text())["error"] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cpu", "--pair", "0.1.2"), "--pair '0.1.2': this environment holds "),
        (("cpu", "--quick", "--model", "no/such/folder"), "--model 'no/such/folder' is no model directory"),
    ],
)
def test_unknown_pair_and_missing_model_are_one_line(arguments, message, tmp_path):
    done = smoke(*arguments, "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "summary.json").exists()


def test_a_full_disk_is_one_line(tmp_path):
    """On a real file system that is full, where this process may mount one."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("only root can mount a small file system; the same error is planted in the package's own tests")
    try:
        (mounted / "filler").write_bytes(b"x" * (60 << 10))
        done = smoke("cpu", "--quick", "--out", str(mounted / "out"))
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
        assert "full" in done.stderr or "free" in done.stderr
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.mark.slow
def test_killing_the_served_engine_mid_run_is_the_error_shown(tmp_path, monkeypatch):
    """The server is killed with requests in flight; nothing of it is left behind."""
    servers: list[Child] = []
    wait_ready = serve.wait_ready

    def ready_then_killed(server, port, *rest):
        seconds = wait_ready(server, port, *rest)
        servers.append(server)
        threading.Thread(target=kill_when_busy, args=(server, port), daemon=True).start()
        return seconds

    def kill_when_busy(server, port):
        while server.running:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                running = [
                    line for line in answer.read().decode().splitlines() if line.startswith("vllm:num_requests_running")
                ]
            if any(float(line.rsplit(" ", 1)[1]) > 0 for line in running):
                os.killpg(server.pid, 9)
                return

    monkeypatch.setattr(serve, "wait_ready", ready_then_killed)
    # Far more work than fits before the kill.
    with pytest.raises(ChildFailedError, match="vllm serve was ended by signal SIGKILL while it was being measured"):
        serve.run_round(models.build("dense"), tmp_path, requests=2000)
    with pytest.raises(ProcessLookupError):
        os.killpg(servers[0].pid, 0)


@pytest.mark.slow
def test_ascend_sim_serve_is_a_real_server_with_counters(tmp_path):
    port = serve.free_port()
    command = [sys.executable, "-m", "ascend_sim.cli", "serve", "dense", "--counters-dir", str(tmp_path / "counters")]
    command += ["--port", str(port), "--host", "127.0.0.1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_SIM")}
    with Child(
        "ascend-sim serve", command, log=tmp_path / "log", environment={**environment, "OMP_NUM_THREADS": "1"}
    ) as server:
        serve.wait_ready(server, port)
        body = {
            "model": "dense",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 12,
            "temperature": 0,
        }
        body["ignore_eos"] = True
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            completion = json.loads(answer.read())
        assert completion["usage"]["completion_tokens"] == 12
        assert completion["choices"][0]["message"]["content"].strip()
        time.sleep(counters.WRITE_EVERY_S + 1)  # a worker ended by a signal writes no more
    shown = subprocess.run(
        [sys.executable, "-m", "ascend_sim.cli", "counters", str(tmp_path / "counters"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    workers = [worker for worker in json.loads(shown.stdout) if worker["per_decode_step"].get("decode_steps")]
    assert len(workers) == 1, "exactly one process runs the model"
    assert workers[0]["per_decode_step"]["decode_steps"] >= 10
    # Scheduling is asynchronous here: the output of the prefill is awaited during the first decode step.
    assert round(workers[0]["per_decode_step"]["output_event_waits"]) == 1
    assert workers[0]["per_decode_step"]["d2h"] == 0
