"""Counters, the bounded histogram, drift reports and the command line."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mrv2_metadata import cli, drift
from mrv2_metadata.authority import RULES
from mrv2_metadata.stats import COUNTS, Histogram, Stats


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_within_a_thirtysecond(values, q):
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    true = sorted(values)[int(q * (len(values) - 1))]
    assert abs(histogram.quantile_ns(q) - true) <= true / 32 + 1


def test_the_histogram_does_not_grow():
    histogram = Histogram()
    size = len(histogram._buckets)
    for value in (-5, 0, 2**80):
        histogram.add(value)
    assert len(histogram._buckets) == size
    assert histogram.count == 3


def test_an_empty_histogram_has_no_quantile_and_a_bad_quantile_is_an_error():
    assert Histogram().quantile_ns(0.5) is None
    with pytest.raises(ValueError, match=r"q must be within 0 and 1, got 2"):
        Histogram().quantile_ns(2)


def filled() -> Stats:
    stats = Stats()
    stats.counts["steps"] = 5
    stats.reasons["speculation"] = 2
    stats.update.add(2_000)
    stats.prepare.add(90_000)
    return stats


def test_write_leaves_two_whole_files(tmp_path):
    filled().write(tmp_path / "new")
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == [f"mrv2-metadata-{os.getpid()}.json", f"mrv2-metadata-{os.getpid()}.prom"]
    data = json.loads((tmp_path / "new" / names[0]).read_text())
    assert data["counts"] == {name: 5 if name == "steps" else 0 for name in COUNTS}
    assert data["length_update"]["median_us"] == pytest.approx(2.0, rel=1 / 32)
    prom = (tmp_path / "new" / names[1]).read_text()
    assert f'mrv2_metadata_steps_total{{pid="{os.getpid()}"}} 5\n' in prom
    assert prom.count("# TYPE") == len(COUNTS) + 2


def test_status_prints_a_column_a_worker(tmp_path, capsys):
    filled().write(tmp_path)
    assert cli.main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"pid {os.getpid()}" in out
    assert "length_update median us" in out
    assert cli.main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"][0]["counts"]["steps"] == 5


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1, "pid": 1}', '{"format": 99}'])
def test_status_refuses_what_is_not_ours(tmp_path, capsys, text):
    (tmp_path / "mrv2-metadata-1.json").write_text(text)
    assert cli.main(["status", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mrv2-metadata: 'mrv2-metadata-1.json'")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("name", ["", "missing"])
def test_status_without_counters_says_what_to_do(tmp_path, capsys, name):
    assert cli.main(["status", str(tmp_path / name)]) == 2
    assert "stats_dir" in capsys.readouterr().err


def test_the_table_command_prints_every_rule(capsys):
    assert cli.main(["table"]) == 0
    out = capsys.readouterr().out
    assert all(f"`{rule.name}`" in out for rule in RULES)
    assert cli.main(["table", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rules"]) == len(RULES)


def snapshot(exact):
    return drift.Snapshot(
        step=12,
        req_ids=("a", "b", "c"),
        host=np.array([5, 9, 4], np.int32),
        exact=np.array(exact),
        source="device",
        reasons=("speculation",),
        rank="pp 0",
    )


def test_an_exact_length_must_be_equal_and_a_bound_must_not_lie_below():
    device = np.array([5, 8, 4], np.int32)
    assert drift.wrong_rows(snapshot([True] * 3), device).tolist() == [1]
    assert drift.wrong_rows(snapshot([True, False, True]), device).tolist() == []
    assert drift.wrong_rows(snapshot([False] * 3), device + 1).tolist() == [0, 2]


def test_the_report_names_step_rank_request_and_both_lengths():
    taken = snapshot([True] * 3)
    device = np.array([5, 8, 4], np.int32)
    text = drift.report(taken, device, drift.wrong_rows(taken, device))
    assert "1 of 3 rows (step 12, pp 0, authority device, reasons speculation)" in text
    assert "row 1 request 'b': host 9 (exact), device 8, difference +1" in text


def test_lengths_of_another_batch_are_an_error():
    with pytest.raises(ValueError, match=r"shape \(2,\), host lengths \(3,\)"):
        drift.wrong_rows(snapshot([True] * 3), np.array([1, 2], np.int32))
