"""Time and memory to analyse one million ITLs of 20 starts with 10,000 resamples, from Parquet and from JSON files."""

# env: light

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _evidence_common import write_summary
from serving_evidence.analysis import Settings, Start, analyse
from serving_evidence.compare import DEFAULT_METRICS, _asks, start_values
from serving_evidence.packet import tables
from serving_evidence.samples import Requests, Result

STARTS, SCENARIO = 20, "c8"


def results(itls: int, seed: int) -> list[Result]:
    """Results of 20 starts, arm B 2 % faster, with lognormal ITLs."""
    rng = np.random.default_rng(seed)
    requests = 500
    each = itls // STARTS // requests
    found = []
    for index in range(STARTS):
        level = 10.0 * np.exp(rng.normal(0, 0.005)) * (0.98 if index % 2 else 1.0)
        itl = level * rng.lognormal(0, 0.2, (requests, each))
        ttft = level * 5 * rng.lognormal(0, 0.1, requests)
        e2el = ttft + itl.sum(axis=1)
        samples = Requests(
            ok=np.ones(requests, dtype=np.bool_),
            ttft_ms=ttft,
            e2el_ms=e2el,
            input_tokens=np.full(requests, 512.0),
            output_tokens=np.full(requests, each + 1.0),
            itl_ms=itl.ravel(),
            itl_counts=np.full(requests, each),
        )
        found.append(
            Result("made", str(index), str(index), {}, {}, requests, 0, float(e2el.sum()) / 8e3, requests=samples)
        )
    return found


def analyse_parquet(folder: Path, durations: list[float]) -> dict[str, Any]:
    """Read both tables and judge the usual metrics; seconds and peak memory growth."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said: list[str] = []
    began = time.perf_counter()
    read = tables.read(folder, [SCENARIO])
    starts = []
    for (index, _), samples in sorted(read.items()):
        run = Result("made", "", "", {}, {}, samples.ok.size, 0, durations[index], requests=samples)
        values, tails = start_values([run])
        starts.append(Start("B" if index % 2 else "A", index // 2, {SCENARIO: values}, {SCENARIO: tails}))
    rows = analyse(
        starts, _asks(starts, SCENARIO, "output_throughput", "better", 0.0, False), Settings(), None, said.append
    )
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(said) == len(rows) == len(DEFAULT_METRICS), "every metric is judged and reported to the progress line"
    assert rows[0].verdict.status == "REPRODUCED", rows[0].verdict.sentence
    return {"input": "parquet", "seconds": seconds, "peak_growth_mib": (after - before) / 1024}


def analyse_json(folder: Path, runs: list[Result]) -> dict[str, Any]:
    """The whole command on detailed JSON files of the same numbers, interpreter start included."""
    for index, run in enumerate(runs):
        samples = run.requests
        assert samples is not None
        rows = np.split(samples.itl_ms / 1e3, np.cumsum(samples.itl_counts)[:-1])
        raw = {
            "date": f"{index:06d}",
            "num_prompts": run.completed,
            "completed": run.completed,
            "failed": 0,
            "duration": run.duration_s,
            "max_concurrency": 8,
            "ttfts": (samples.ttft_ms / 1e3).tolist(),
            "latencies": (samples.e2el_ms / 1e3).tolist(),
            "itls": [row.tolist() for row in rows],
            "input_lens": samples.input_tokens.tolist(),
            "output_lens": samples.output_tokens.tolist(),
        }
        arm = folder / ("b" if index % 2 else "a")
        arm.mkdir(exist_ok=True)
        (arm / f"start-{index // 2:02d}.json").write_text(json.dumps(raw), encoding="utf-8")
    command = [sys.executable, "-m", "serving_evidence", "analyze", str(folder / "a"), str(folder / "b"), "--json"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    assert json.loads(done.stdout)["pairs"] == {"c8-n500": STARTS // 2}
    return {"input": "json, whole command", "seconds": seconds, "peak_growth_mib": None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/evidence_speed"))
    parser.add_argument("--itls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    runs = results(options.itls, options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables.write(folder, {(i, SCENARIO): run for i, run in enumerate(runs)}, [SCENARIO])
        durations = [run.duration_s or 0.0 for run in runs]
        rows = [analyse_parquet(folder, durations) for _ in range(2)]
        rows.append(analyse_json(folder, runs))
    # The first reading pays for making the resamples; it is the one that a user waits for.
    figures = {
        "seconds_1m_itl": rows[0]["seconds"],
        "seconds_1m_itl_again": rows[1]["seconds"],
        "seconds_json_command": rows[2]["seconds"],
        "peak_growth_mib": rows[0]["peak_growth_mib"],
        "itls": options.itls,
    }
    return write_summary(options.out, "evidence_speed", options.seed, figures, rows, rows[0]["seconds"] < 2.0)


if __name__ == "__main__":
    sys.exit(main())
