"""Served over HTTP: the guard by `--additional-config`, the tokens of an unguarded server, a scrape that sees it."""

import json
import urllib.request

import pytest
from ascend_sim.smoke.process import Child
from ascend_sim.smoke.serve import free_port, serve_arguments, server_environment, vllm_command, wait_ready
from test_guard_engine import NOT_HERE, PLUGIN, checkpoints

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    NOT_HERE,
    pytest.mark.skipif(not PLUGIN, reason="the served engine is the simulated one"),
]

PROMPTS = [[10 + (7 * i + 3 * j) % 480 for j in range(length)] for i, length in enumerate((5, 60, 130, 200, 20, 90))]
NEW_TOKENS = 24


def ask(port: int, prompt: list[int]) -> list[int]:
    """Token ids of one completion; one request at a time fixes the order of admission."""
    body = {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": NEW_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())["choices"][0]["token_ids"]


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.split()[0]: float(line.split()[-1]) for line in lines if line.startswith(("kv_plan_guard", "vllm:num_req"))
    }


def serve(folder, name, config, **environment):
    port = free_port()
    server = Child(
        f"vllm serve, {name}",
        vllm_command(*serve_arguments(checkpoints()["dense"], port, config)),
        log=folder / f"{name}.log",
        environment=server_environment("1", None, environment),
    )
    with server:
        wait_ready(server, port)
        ids = [ask(port, prompt) for prompt in PROMPTS]
        metrics = scrape(port)
    return ids, metrics, (folder / f"{name}.log").read_text()


def test_a_guarded_server_gives_the_same_ids_and_its_counters_are_scraped(tmp_path):
    shared = tmp_path / "prometheus"
    shared.mkdir()
    config = {"kv_guard_config": {"enabled": True, "action": "raise", "stats_dir": str(tmp_path / "stats")}}
    plain, without, _ = serve(tmp_path, "off", None)
    guarded, with_it, log = serve(tmp_path, "on", config, PROMETHEUS_MULTIPROC_DIR=str(shared))
    assert guarded == plain
    assert sum(map(len, guarded)) == NEW_TOKENS * len(PROMPTS)
    assert not [name for name in without if name.startswith("kv_plan_guard")]
    scraped = {name.split("{")[0]: value for name, value in with_it.items()}
    assert scraped["kv_plan_guard_audits_total"] > 0
    assert scraped["kv_plan_guard_bad_audits_total"] == 0
    assert "kv_guard_config: on in this worker" in log
    (written,) = (tmp_path / "stats").glob("kv-plan-guard-*.prom")
    assert "kv_plan_guard_audits_total" in written.read_text()
