"""Files that the real tools wrote: what is recomputed from their requests is what the tools say of them themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from serving_evidence.adapters import read_folder, read_run, vllm_bench
from serving_evidence.compare import compare_folders
from serving_evidence.samples import Result, metrics

GOLDEN = Path(__file__).parent / "golden"


def test_guidellm() -> None:
    path = GOLDEN / "guidellm-0.8.1.json"
    (found,) = read_run(path)
    own: dict[str, Any] = json.loads(path.read_text())["benchmarks"][0]["metrics"]
    values = metrics(found)
    assert (found.tool, found.completed, found.failed) == ("GuideLLM", 4, 0)
    assert found.requests is not None
    assert found.requests.output_tokens.tolist() == [8.0] * 4
    for ours, theirs, scale in (
        ("mean_ttft_ms", "time_to_first_token_ms", 1.0),
        ("mean_e2el_ms", "request_latency", 1e3),
        ("output_throughput", "output_tokens_per_second", 1.0),
        ("request_throughput", "requests_per_second", 1.0),
    ):
        assert values[ours] == pytest.approx(own[theirs]["successful"]["mean"] * scale, rel=1e-6)
    # TPOT of this kit leaves the first token out; GuideLLM calls that its mean ITL, and keeps no single ITLs.
    assert "mean_itl_ms" not in values


def test_aiperf() -> None:
    (found,) = read_run(GOLDEN / "aiperf-0.13.0.jsonl")
    own: dict[str, Any] = json.loads((GOLDEN / "aiperf-0.13.0.own-figures.json").read_text())
    values = metrics(found)
    assert (found.tool, found.completed, found.failed) == ("AIPerf", 4, 0)
    for kind, theirs in (
        ("ttft", "time_to_first_token"),
        ("e2el", "request_latency"),
        ("itl", "inter_chunk_latency"),
    ):
        for ours, cut in (("mean", "avg"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
            assert values[f"{ours}_{kind}_ms"] == pytest.approx(own[theirs][cut], rel=1e-9), (kind, cut)
    assert found.requests is not None
    assert found.requests.output_tokens.tolist() == [own["output_sequence_length"]["avg"]] * 4
    assert found.requests.input_tokens.tolist() == [own["input_sequence_length"]["avg"]] * 4


def _agree(found: Result, raw: dict[str, Any]) -> None:
    """Every figure that vLLM printed for itself: recomputed where the file has the requests, else passed through."""
    values = metrics(found)
    for kind in ("ttft", "tpot", "itl", "e2el"):
        for cut in ("mean", "p50", "p90", "p99"):
            name = f"{cut}_{kind}_ms"
            if name in raw:
                assert values[name] == pytest.approx(raw[name], rel=1e-9), name
    for name in ("output_throughput", "request_throughput", "total_token_throughput"):
        assert values[name] == pytest.approx(raw[name], rel=1e-9), name


def test_vllm_bench_serve() -> None:
    path = GOLDEN / "vllm-0.30.0-serve.json"
    raw: dict[str, Any] = json.loads(path.read_text())
    (found,) = read_run(path)
    assert (found.tool, found.completed, found.failed) == ("vllm bench serve", 4, 0)
    assert found.requests is not None
    assert found.requests.output_tokens.tolist() == [8.0] * 4
    _agree(found, raw)
    # Without its own sums the figures can only come from the requests.
    bare = {key: value for key, value in raw.items() if not key.endswith("_ms")}
    assert metrics(vllm_bench.parse(bare, "bare"))["mean_ttft_ms"] == pytest.approx(raw["mean_ttft_ms"], rel=1e-9)
    # A changed request changes the figures: they are not passed through.
    bare["ttfts"] = [raw["ttfts"][0] * 2, *raw["ttfts"][1:]]
    assert metrics(vllm_bench.parse(bare, "bare"))["mean_ttft_ms"] > raw["mean_ttft_ms"] * 1.2


def test_vllm_bench_serve_without_its_requests() -> None:
    path = GOLDEN / "vllm-0.30.0-serve-plain.json"
    raw: dict[str, Any] = json.loads(path.read_text())
    (found,) = read_run(path)
    assert found.requests is None
    _agree(found, raw)


def test_vllm_bench_sweep() -> None:
    found = read_folder(GOLDEN / "vllm-0.30.0-sweep")
    assert len(found) == 8  # two servers, two loads, two runs; the summaries repeat them
    assert {result.server for result in found} == {
        "vllm-0.30.0-sweep/SERVE--max_num_seqs=2",
        "vllm-0.30.0-sweep/SERVE--max_num_seqs=4",
    }
    for result in found:
        _agree(result, json.loads((GOLDEN / "vllm-0.30.0-sweep" / result.source).read_text()))


@pytest.mark.parametrize("name", ["guidellm-0.8.1.json", "aiperf-0.13.0.jsonl", "vllm-0.30.0-serve.json"])
def test_folders_of_real_files_are_compared_by_start(tmp_path: Path, name: str) -> None:
    for arm in ("a", "b"):
        (tmp_path / arm).mkdir()
        for start in range(6):
            shutil.copyfile(GOLDEN / name, tmp_path / arm / f"start-{start}{Path(name).suffix}")
    found = compare_folders(tmp_path / "a", tmp_path / "b", metric="mean_ttft_ms", rule="same", margin=0.01)
    assert list(found.starts.values()) == [6]
    assert found.rows[0].verdict.status == "REPRODUCED"  # the same files are the same
    assert len(read_folder(tmp_path / "a")) == 6
