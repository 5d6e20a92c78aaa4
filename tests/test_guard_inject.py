"""A few cells of the fault matrix in a live engine, and the same without the check that finds them: they are missed."""

import pytest
from kv_plan_guard import inject
from test_guard_engine import NOT_HERE, PLUGIN, checkpoints

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

ENGINE = "sim" if PLUGIN else "core"
KINDS = ("wrong-row", "off-by-one-slot", "short-length", "wrong-position", "inherited-row", "stale-row-after-resume")


def full(kinds):
    return [cell for cell in inject.cells([ENGINE], kinds) if cell.architecture == "full"]


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inject")
    inject.run(full(KINDS), folder, checkpoints())
    return inject.summarize(full(KINDS), folder)


def test_every_fault_is_caught_in_its_step_and_before_its_tokens_are_released(summary):
    assert [row for row in summary["rows"] if row["state"] != "caught"] == []
    assert summary["caught"] == 2 * len(KINDS)


def test_without_the_check_that_finds_it_a_fault_is_missed(summary, tmp_path):
    alone = [
        (cell, row["found"][0])
        for cell, row in zip(full(KINDS), summary["rows"], strict=True)
        if len(row["found"]) == 1
    ]
    assert alone, "no fault here is found by one check alone"
    cell, code = alone[0]
    inject.run([cell], tmp_path, checkpoints(), without=[code])
    assert inject.verdict(cell, tmp_path)["state"] == "missed"
