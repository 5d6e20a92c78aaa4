"""Results and packets made for tests: numbers with a known effect, in the form of the real tool's files."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from serving_evidence import protocol
from serving_evidence.packet import build
from serving_evidence.packet.records import StartRecord
from serving_evidence.schedule import plan

if TYPE_CHECKING:
    from pathlib import Path

PROTOCOL = """
version = 1
name = "hook"
question = "Is B faster?"
secondary = [
  {metric = "mean_ttft_ms", scenario = "c8"},
  {metric = "mean_tpot_ms", scenario = "c8"},
]
gates = [{metric = "p50_itl_ms", scenario = "c8", rule = "not-worse", margin = 0.05}]
[arms.A]
label = "off"
command = ["server", "--port", "{port}"]
[arms.B]
label = "on"
command = ["server", "--port", "{port}", "--on"]
active_log = "hook active"
[[scenarios]]
name = "c8"
command = ["client", "{base_url}", "{result_dir}/{result_file}"]
outputs = "equal"
[primary]
metric = "output_throughput"
scenario = "c8"
[design]
pairs = 6
seed = 1
"""


def bench_json(seed: int, *, speed: float = 1.0, requests: int = 8, tokens: int = 6, **extra: Any) -> dict[str, Any]:
    """A detailed `vllm bench serve` result of a server that is `speed` times as fast."""
    rng = random.Random(seed)
    ttfts = [0.02 * rng.uniform(0.99, 1.01) / speed for _ in range(requests)]
    itls = [[0.005 * rng.uniform(0.99, 1.01) / speed for _ in range(tokens - 1)] for _ in range(requests)]
    latencies = [ttft + sum(itl) for ttft, itl in zip(ttfts, itls, strict=True)]
    duration = sum(latencies)
    return {
        "date": f"20261129-{seed:06d}",
        "backend": "openai",
        "model_id": "light",
        "num_prompts": requests,
        "request_rate": "inf",
        "burstiness": 1.0,
        "max_concurrency": 8,
        "duration": duration,
        "completed": requests,
        "failed": 0,
        "output_throughput": requests * tokens / duration,
        "mean_ttft_ms": 1e3 * sum(ttfts) / requests,
        "ttfts": ttfts,
        "itls": itls,
        "latencies": latencies,
        "input_lens": [12] * requests,
        "output_lens": [tokens] * requests,
        "generated_texts": [f"text {i}" for i in range(requests)],
        "errors": [""] * requests,
        "a_key_of_a_later_version": {"nested": [1, 2]},
    } | extra


def write_folder(folder: Path, count: int, *, speed: float = 1.0, first: int = 0, **extra: Any) -> Path:
    """A folder of result files, one a start."""
    folder.mkdir(parents=True)
    for i in range(count):
        (folder / f"start-{i:02d}.json").write_text(json.dumps(bench_json(first + 2 * i, speed=speed, **extra)))
    return folder


def make_packet(folder: Path, *, speed: float = 1.1, text: str = PROTOCOL, **changes: Any) -> Path:
    """A packet whose arm B is `speed` times as fast; `changes` replace fields of every start record."""
    declared = protocol.parse(text)
    work = folder.with_name(folder.name + "-work")
    starts = []
    for slot in plan(declared.design):
        where = work / slot.name
        where.mkdir(parents=True)
        result = bench_json(slot.index, speed=speed if slot.arm == "B" else 1.0)
        (where / "c8.json").write_text(json.dumps(result))
        (where / "server.log").write_text("hook active\n")
        began = 1_000.0 + 100 * slot.index
        fields = {
            "index": slot.index,
            "pair": slot.pair,
            "arm": slot.arm,
            "attempt": 1,
            "protocol_hash": declared.hash,
            "began_at": began,
            "ready_at": began + 10,
            "ended_at": began + 90,
            "port": 8000,
            "pid": 100 + slot.index,
            "server_command": ("server",),
            "active": True if slot.arm == "B" else None,
            "code_hash": None,
            "files": {"c8": "c8.json"},
        }
        for name, change in changes.items():
            fields[name] = change(slot, fields[name]) if callable(change) else change
        starts.append((StartRecord(**fields), where))
    build(folder, protocol=declared, protocol_text=text, locked_at=900.0, starts=starts)
    return folder
