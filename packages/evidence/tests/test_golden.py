"""Files that the real tools wrote: what is recomputed from their requests is what the tools say of them themselves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from serving_evidence.adapters import read_folder, read_run
from serving_evidence.compare import compare_folders
from serving_evidence.samples import metrics

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


@pytest.mark.parametrize("name", ["guidellm-0.8.1.json", "aiperf-0.13.0.jsonl"])
def test_folders_of_real_files_are_compared_by_start(tmp_path: Path, name: str) -> None:
    for arm in ("a", "b"):
        (tmp_path / arm).mkdir()
        for start in range(6):
            shutil.copyfile(GOLDEN / name, tmp_path / arm / f"start-{start}{Path(name).suffix}")
    found = compare_folders(tmp_path / "a", tmp_path / "b", metric="mean_ttft_ms", rule="same", margin=0.01)
    assert list(found.starts.values()) == [6]
    assert found.rows[0].verdict.status == "REPRODUCED"  # the same files are the same
    assert len(read_folder(tmp_path / "a")) == 6
