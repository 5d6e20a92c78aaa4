"""One round of the real ``vllm serve`` under the simulator and the real ``vllm bench serve`` against it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ascend_sim.counters import WRITE_EVERY_S
from ascend_sim.smoke.process import Child, ChildFailedError, describe_exit

if TYPE_CHECKING:
    from pathlib import Path

READY_TIMEOUT_S = 240.0
BENCH_TIMEOUT_S = 240.0
# What a served engine in the simulator needs: comparable numbers, Ascend's block size, little memory.
SERVE_DEFAULTS = {
    "--dtype": "float32",
    "--block-size": "128",
    "--kv-cache-memory-bytes": str(64 << 20),
    "--max-model-len": "512",
}


@dataclass(frozen=True)
class ServeResult:
    """Figures of one round: requests completed and failed, seconds to readiness, and the counters of the server's
    worker.
    """

    completed: int
    failed: int
    ready_s: float
    bench_s: float
    output_tokens: int
    counters: dict[str, Any] = field(default_factory=dict)


def vllm_command(*arguments: str) -> list[str]:
    """The installed ``vllm`` command, run by this interpreter so that it is the one of this environment."""
    return [
        sys.executable,
        "-c",
        "import sys; from vllm.entrypoints.cli.main import main; sys.exit(main())",
        *arguments,
    ]


def server_environment(mode: str, counters: Path | None = None, extra: dict[str, str] | None = None) -> dict[str, str]:
    """Environment of a served engine in `mode` (``"1"`` or ``"plain"``)."""
    environment = {**os.environ, "ASCEND_SIM": mode, "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("VLLM_LOGGING_LEVEL", "INFO")
    # The parent may be an in-process engine; a server has processes of its own.
    environment.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    if counters is not None:
        environment["ASCEND_SIM_COUNTERS_DIR"] = str(counters)
    return environment | (extra or {})


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(server: Child, port: int, timeout_s: float = READY_TIMEOUT_S) -> float:
    """Seconds until ``/health`` answered; raises `ChildFailedError` when the server ends or stays silent."""
    started = time.monotonic()
    while time.monotonic() - started < timeout_s:
        if not server.running:
            raise ChildFailedError(
                f"{server.name} {describe_exit(server.wait(1))} before it was ready\n{server.tail()}"
            )
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return time.monotonic() - started
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.25)
    raise ChildFailedError(f"{server.name} was not ready within {timeout_s:.0f} s\n{server.tail()}")


def serve_arguments(model: Path, port: int, additional_config: dict[str, Any] | None = None) -> list[str]:
    """Arguments of ``vllm serve`` for a tiny model."""
    arguments = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    arguments += [word for option in SERVE_DEFAULTS.items() for word in option]
    arguments += ["--max-num-seqs", "8"]
    arguments += ["--served-model-name", "tiny"]
    if additional_config:
        arguments += ["--additional-config", json.dumps(additional_config)]
    return arguments


def bench_arguments(model: Path, port: int, requests: int, folder: Path) -> list[str]:
    """Arguments of ``vllm bench serve``: random prompts of 64 tokens, 32 tokens out, greedy."""
    return [
        *["bench", "serve", "--backend", "vllm", "--host", "127.0.0.1", "--port", str(port)],
        *["--model", "tiny", "--tokenizer", str(model), "--dataset-name", "random", "--random-input-len", "64"],
        *["--random-output-len", "32", "--num-prompts", str(requests), "--ignore-eos", "--temperature", "0"],
        *["--save-result", "--result-dir", str(folder), "--result-filename", "bench-serve.json"],
    ]


def run_round(
    model: Path, folder: Path, *, requests: int = 32, additional_config: dict[str, Any] | None = None
) -> ServeResult:
    """Start the server, wait until it is ready, run the benchmark client, read its result and the worker's counters."""
    counters = folder / "serve-counters"
    counters.mkdir(parents=True, exist_ok=True)
    for old in counters.glob("counters-*.json"):
        old.unlink()
    port = free_port()
    environment = server_environment("1", counters)
    server = Child(
        "vllm serve",
        vllm_command(*serve_arguments(model, port, additional_config)),
        log=folder / "serve.log",
        environment=environment,
    )
    with server:
        ready_s = wait_ready(server, port)
        started = time.monotonic()
        client = Child(
            "vllm bench serve",
            vllm_command(*bench_arguments(model, port, requests, folder)),
            log=folder / "bench.log",
            environment={**environment, "ASCEND_SIM": "plain"},
        )
        with client:
            _wait_for_client(client, server)
        bench_s = time.monotonic() - started
        # A worker ended by a signal writes no more: the last steps reach the file within this time.
        time.sleep(WRITE_EVERY_S + 1)
    result = json.loads((folder / "bench-serve.json").read_text())
    return ServeResult(
        completed=int(result["completed"]),
        failed=int(result.get("failed", requests - int(result["completed"]))),
        ready_s=ready_s,
        bench_s=bench_s,
        output_tokens=int(result["total_output_tokens"]),
        counters=_read_counters(counters),
    )


def _wait_for_client(client: Child, server: Child) -> None:
    """Until the client ends; a server that dies meanwhile is the error to report, not the client's refused
    connections.
    """
    deadline = time.monotonic() + BENCH_TIMEOUT_S
    while client.running:
        if not server.running:
            raise ChildFailedError(
                f"{server.name} {describe_exit(server.wait(1))} while it was being measured\n{server.tail()}"
            )
        if time.monotonic() > deadline:
            raise ChildFailedError(f"{client.name} did not finish within {BENCH_TIMEOUT_S:.0f} s\n{client.tail()}")
        time.sleep(0.1)
    client.check(1)


def _read_counters(folder: Path) -> dict[str, Any]:
    """Counters of the worker process: the one with the most steps."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("counters-*.json"))]
    return max(found, key=lambda one: int(one.get("steps", 0)), default={})
