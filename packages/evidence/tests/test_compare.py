"""Folders of result files: what is read, how starts are paired, what a reader is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from make import bench_json, write_folder
from serving_evidence.adapters import read_folder, read_run
from serving_evidence.compare import compare_folders
from serving_evidence.errors import ResultError
from serving_evidence.samples import metrics

if TYPE_CHECKING:
    from pathlib import Path


def test_detailed_metrics_are_recomputed(tmp_path: Path) -> None:
    raw = bench_json(0)
    (tmp_path / "r.json").write_text(json.dumps(raw))
    values = metrics(read_run(tmp_path / "r.json")[0])
    assert values["mean_ttft_ms"] == pytest.approx(raw["mean_ttft_ms"])
    assert values["output_throughput"] == pytest.approx(raw["output_throughput"])
    assert values["mean_itl_ms"] == pytest.approx(1e3 * sum(map(sum, raw["itls"])) / 40)
    assert values["mean_tpot_ms"] == pytest.approx(values["mean_itl_ms"])
    assert values["error_rate"] == 0.0


def test_summary_files_and_older_versions_are_read(tmp_path: Path) -> None:
    raw = bench_json(0)
    summary = {k: v for k, v in raw.items() if k not in ("ttfts", "itls", "latencies", "errors", "failed")}
    (tmp_path / "s.json").write_text(json.dumps(summary | {"completed": 6}))
    found = read_run(tmp_path / "s.json")[0]
    assert (found.completed, found.failed, found.requests) == (6, 2, None)
    assert metrics(found)["mean_ttft_ms"] == raw["mean_ttft_ms"]
    older = {k: v for k, v in raw.items() if k not in ("latencies", "errors")}
    (tmp_path / "o.json").write_text(json.dumps(older))
    assert metrics(read_run(tmp_path / "o.json")[0])["mean_e2el_ms"] == pytest.approx(1e3 * sum(raw["latencies"]) / 8)


def test_failed_requests_are_counted_and_kept_out_of_times(tmp_path: Path) -> None:
    raw = bench_json(0, completed=7, failed=1)
    raw["errors"][3], raw["ttfts"][3], raw["itls"][3], raw["latencies"][3] = "Traceback: boom", 0.0, [], 0.0
    (tmp_path / "r.json").write_text(json.dumps(raw))
    values = metrics(read_run(tmp_path / "r.json")[0])
    assert values["error_rate"] == 0.125
    assert values["mean_ttft_ms"] > 19


def test_appended_results_are_several_runs(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("\n".join(json.dumps(bench_json(i)) for i in range(3)))
    assert len(read_folder(tmp_path)) == 3


def test_other_json_is_passed_over_and_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"x": 1}')
    (tmp_path / "r.pytorch.json").write_text("not json")
    with pytest.raises(ResultError, match="no result file found"):
        read_folder(tmp_path)
    with pytest.raises(ResultError, match="no such folder"):
        read_folder(tmp_path / "none")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("completed", "7", "`completed`: expected a number"),
        ("completed", -1, "expected a count"),
        ("itls", [[0.1]], "has 1 entries"),
        ("itls", [[-1.0]] * 8, "negative"),
        ("ttfts", "x", "expected an array"),
        ("output_lens", [1, 2], "2 entries for 8"),
        ("duration", None, "`duration`"),
    ],
)
def test_broken_results_are_named(tmp_path: Path, key: str, value: object, words: str) -> None:
    (tmp_path / "r.json").write_text(json.dumps(bench_json(0) | {key: value}))
    with pytest.raises(ResultError, match=words):
        read_run(tmp_path / "r.json")


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": 1e999}', '{"a": 1, "a": 2}', "[" * 100_000, "{", "1" * 5_000])
def test_json_that_is_no_data_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ResultError):
        read_folder(tmp_path)


def test_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "r.json").symlink_to("/etc/hostname")
    with pytest.raises(ResultError, match="a link"):
        read_folder(tmp_path)


def test_a_real_difference_is_found_and_a_swap_negates_it(tmp_path: Path) -> None:
    a, b = write_folder(tmp_path / "a", 6), write_folder(tmp_path / "b", 6, speed=1.05, first=1)
    one = compare_folders(a, b, metric="output_throughput")
    other = compare_folders(b, a, metric="output_throughput")
    assert one.rows[0].verdict.status == "REPRODUCED"
    assert other.rows[0].verdict.status == "NOT_REPRODUCED"
    assert one.rows[0].verdict.estimate == pytest.approx(-other.rows[0].verdict.estimate)
    assert all(row.verdict.estimate > 0 for row in one.rows if row.verdict.metric != "error_rate")
    assert "no protocol was locked" in one.warnings[0]


def test_p99_of_too_few_samples_is_refused_not_judged(tmp_path: Path) -> None:
    a, b = write_folder(tmp_path / "a", 6), write_folder(tmp_path / "b", 6, speed=2.0, first=1)
    rows = {row.verdict.metric: row.verdict for row in compare_folders(a, b).rows}
    assert rows["p99_itl_ms"].status == "INCONCLUSIVE"
    assert "needs 459" in rows["p99_itl_ms"].sentence
    assert rows["mean_itl_ms"].status == "REPRODUCED"


def test_unpaired_starts_and_missing_interleaving_are_told(tmp_path: Path) -> None:
    a = write_folder(tmp_path / "a", 7)
    b = write_folder(tmp_path / "b", 6, first=101)
    found = compare_folders(a, b)
    assert any("has no partner" in text for text in found.warnings)
    assert any("before the other" in text for text in found.warnings)
    assert list(found.starts.values()) == [6]


def test_different_workloads_are_not_compared(tmp_path: Path) -> None:
    a = write_folder(tmp_path / "a", 6)
    b = write_folder(tmp_path / "b", 6, max_concurrency=16)
    with pytest.raises(ResultError, match="no workload in common"):
        compare_folders(a, b)


def test_repeats_on_one_server_are_one_start(tmp_path: Path) -> None:
    for arm, speed in (("a", 1.0), ("b", 1.1)):
        folder = tmp_path / arm / "exp" / "SERVE-x-BENCH-y"
        folder.mkdir(parents=True)
        for i in range(8):
            (folder / f"run={i}.json").write_text(json.dumps(bench_json(i, speed=speed)))
        (folder / "summary.json").write_text("[]")
    found = compare_folders(tmp_path / "a", tmp_path / "b", metric="output_throughput")
    assert list(found.starts.values()) == [1]
    assert found.rows[0].verdict.status == "INCONCLUSIVE"
    assert any("one server" in text for text in found.warnings)


def test_unknown_metric_needs_a_direction(tmp_path: Path) -> None:
    a, b = write_folder(tmp_path / "a", 6), write_folder(tmp_path / "b", 6, first=1)
    with pytest.raises(ResultError, match="which way is better"):
        compare_folders(a, b, metric="burstiness")
    with pytest.raises(ResultError, match="has no 'nothing_ms'"):
        compare_folders(a, b, metric="nothing_ms")
