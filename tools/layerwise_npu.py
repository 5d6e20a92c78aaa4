"""The layer-wise study on an Ascend host: `nox -s layerwise-study -- --npu --model PATH --kv-transfer-config JSON`.

Runs in the host's own Python, with the host's vllm, vllm-ascend and torch_npu; `layerwise-sched` must be installed
there (`pip install dist/layerwise_sched-*.whl`). Each repeat serves the model once a policy, in turn: `vllm serve` with
the timeline on, `vllm bench serve` against it, then the server is stopped and its timelines are read. The rule is the
study's, on the median time to the first token: see `layerwise_sched.verdict`. Finished servings are kept and skipped.
**Not run yet on an NPU by this project.**
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PORT = 8127


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="layerwise_npu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="folder or name of the model to serve")
    parser.add_argument("--kv-transfer-config", required=True, help="as for `vllm serve`; use_layerwise must be on")
    parser.add_argument("--serve-args", default="", help="further words for `vllm serve`, e.g. '-tp 4'")
    parser.add_argument("--policies", default="fifo,ready", help="the first is the one compared with")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=64, help="requests a serving; each prompt comes twice")
    parser.add_argument("--input-len", type=int, default=4096)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--ready-s", type=int, default=1_800, help="longest wait for a server, seconds")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "layerwise-study-npu")
    options = parser.parse_args(argv)
    if (problem := refusal(options)) is not None:
        sys.stderr.write(f"layerwise-study --npu: {problem}\n")
        return 2
    policies = [word.strip() for word in options.policies.split(",")]
    options.out.mkdir(parents=True, exist_ok=True)
    for repeat in range(options.repeats):
        for policy in policies if repeat % 2 == 0 else policies[::-1]:
            folder = options.out / f"{policy}.{repeat}"
            if not (folder / "result.json").exists():
                print(f"repeat {repeat}, policy {policy}", flush=True)
                serve(options, policy, folder)
    return join(options, policies)


def refusal(options: argparse.Namespace) -> str | None:
    """Why this cannot run here, or None."""
    try:
        config = json.loads(options.kv_transfer_config)
    except ValueError as error:
        return f"--kv-transfer-config is not JSON ({error}): {options.kv_transfer_config!r}"
    if not isinstance(config, dict) or not config.get("kv_connector_extra_config", {}).get("use_layerwise"):
        return "--kv-transfer-config must have kv_connector_extra_config.use_layerwise: true"
    if options.repeats < 1 or options.prompts < 1:
        return f"--repeats and --prompts must be >= 1, got {options.repeats!r} and {options.prompts!r}"
    if not any(Path("/dev").glob("davinci[0-9]*")):
        return "no NPU here: there is no /dev/davinci*; without one run `nox -s layerwise-study`"
    missing = [
        name for name in ("vllm", "vllm_ascend", "torch_npu", "layerwise_sched") if not importlib.util.find_spec(name)
    ]
    return f"{sys.executable} has no {', '.join(missing)}; install them there" if missing else None


def serve(options: argparse.Namespace, policy: str, folder: Path) -> None:
    """One serving: start, warm up the pool with a first pass, measure the second, stop."""
    folder.mkdir(exist_ok=True)
    key = {"layerwise_sched": {"policy": policy, "timeline": str(folder / "timeline"), "strict": True}}
    command = [
        "vllm", "serve", options.model, "--port", str(PORT), "--kv-transfer-config", options.kv_transfer_config,
        "--no-enable-prefix-caching", "--additional-config", json.dumps(key), *options.serve_args.split(),
    ]  # fmt: skip
    with (folder / "server.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            await_ready(server, options.ready_s, folder)
            for name in ("warm", "bench"):
                bench(options, folder, name)
        finally:
            stop(server)
    os.replace(folder / "bench.json", folder / "result.json")


def bench(options: argparse.Namespace, folder: Path, name: str) -> None:
    """The same prompts each time: the first pass fills the pool, the second loads from it."""
    command = [
        "vllm", "bench", "serve", "--model", options.model, "--port", str(PORT), "--seed", "0",
        "--dataset-name", "random",
        "--num-prompts", str(options.prompts), "--random-input-len", str(options.input_len),
        "--random-output-len", str(options.output_len), "--max-concurrency", str(options.concurrency), "--ignore-eos",
        "--percentile-metrics", "ttft,tpot,e2el", "--metric-percentiles", "50,95,99",
        "--save-result", "--result-dir", str(folder), "--result-filename", f"{name}.json",
    ]  # fmt: skip
    with (folder / f"{name}.log").open("w", encoding="utf-8") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def await_ready(server: subprocess.Popen[bytes], seconds: int, folder: Path) -> None:
    """Wait for the health route; raises RuntimeError where the server ends or takes too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode}; see {folder / 'server.log'}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(2)
    raise RuntimeError(f"the server was not ready after {seconds} s; see {folder / 'server.log'}")


def stop(server: subprocess.Popen[bytes]) -> None:
    """Ask it to end, so that its workers write their timelines; kill its group where it does not."""
    for sign, seconds in ((signal.SIGINT, 60), (signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        if server.poll() is not None:
            return
        os.killpg(server.pid, sign)
        try:
            server.wait(seconds)
        except subprocess.TimeoutExpired:
            continue


def join(options: argparse.Namespace, policies: list[str]) -> int:
    """Read every serving, judge, write summary.json and print it; 1 where anything was wrong."""
    from layerwise_sched.summary import summarise
    from layerwise_sched.timeline_file import find_timelines, read
    from layerwise_sched.verdict import Repeat, judge

    rows: list[dict[str, Any]] = []
    arms: dict[str, list[Repeat]] = {policy: [] for policy in policies}
    for repeat in range(options.repeats):
        for policy in policies:
            folder = options.out / f"{policy}.{repeat}"
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            found = [summarise(read(path).run(), finished=False) for path in find_timelines(folder / "timeline")]
            wrong = sum(one["explained"]["problems"] + one["legal"]["violations"] for one in found)
            wrong += options.prompts - int(result["completed"])
            events = sum(one["hol"]["events"] for one in found)
            depth = max(one["depth"]["in_flight_max"] for one in found)
            arms[policy].append(Repeat(result["median_ttft_ms"], result["p99_ttft_ms"], events, depth, wrong))
            rows.append(
                {"policy": policy, "repeat": repeat, "ttft_ms": result["median_ttft_ms"], "events": events,
                 "ttft_p99_ms": result["p99_ttft_ms"], "tokens_per_s": result["output_throughput"],
                 "impossible": found[0]["hol"]["impossible"], "faults": wrong}
            )  # fmt: skip
    verdicts = []
    for policy in policies[1:]:
        verdict = judge(arms[policies[0]], arms[policy])
        verdicts.append({"policy": policy, "verdict": verdict.answer.value, "gain_pct": verdict.gain_pct,
                         "noise_pct": verdict.noise_pct, "why": "; ".join(verdict.reasons)})  # fmt: skip
    faults = sum(row["faults"] for row in rows)
    figures = {
        "servings": len(rows),
        "faults": faults,
        "hol_events": sum(row["events"] for row in rows),
        "median_ttft_ms": statistics.median(row["ttft_ms"] for row in rows),
    }
    host = {"python": sys.version.split()[0], "cores": os.cpu_count()}
    summary = {
        "name": "layerwise-study-npu", "version": 1, "pair": None, "host": host, "seed": 0, "figures": figures,
        "rows": [*verdicts, *rows], "passed": not faults,
    }  # fmt: skip
    (options.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"figures": figures, "verdicts": verdicts}, indent=1))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
