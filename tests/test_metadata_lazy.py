"""With copies that land only at a wait: each wait and each order of the hook is needed, and upstream loses none."""

import re

import pytest
from test_metadata_engine import EVERY, NOT_HERE, ON, read, reference, run_engines

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

SOUND = [
    {"name": "lazy-batch", "scenario": "batch", "hook": EVERY},
    {"name": "lazy-spec-sync", "scenario": "spec-sync", "hook": ON},
    {"name": "lazy-spec-async", "scenario": "spec-async", "hook": EVERY},
    # A rank that has no output, or whose output nobody reads, compares when it finds an event done.
    {"name": "lazy-alone", "scenario": "spec-async", "hook": EVERY, "alone": True},
]
# Every wait that the hook's host side makes or relies on, taken away one at a time.
MUTATIONS = [
    {"name": "no-wait-async", "scenario": "spec-async", "hook": ON, "mutation": "no length wait"},
    {"name": "no-wait-sync", "scenario": "spec-sync", "hook": ON, "mutation": "no length wait"},
    {"name": "no-output-wait", "scenario": "batch", "hook": EVERY, "mutation": "no output wait"},
    {"name": "read-early", "scenario": "batch", "hook": EVERY, "mutation": "snapshot read before the output's wait"},
    {"name": "polled-early", "scenario": "batch", "hook": EVERY, "alone": True,
     "mutation": "snapshot read before its event"},
]  # fmt: skip
# Orders between streams. The simulator performs a copy's read when it is issued, so what a missing order does to the
# values is not seen here; that the order is asked for, once a copy, is.
ORDERS = [
    {"name": "no-order", "scenario": "spec-async", "hook": ON, "mutation": "no order behind the main stream"},
    {"name": "no-order-alone", "scenario": "batch", "hook": EVERY, "alone": True,
     "mutation": "no order behind the main stream, snapshot"},
]  # fmt: skip


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lazy")
    runs = SOUND + MUTATIONS + ORDERS
    run_engines(folder, runs, modes=("plain",))
    run_engines(folder, runs, modes=("ascend",), ASCEND_SIM_LAZY_COPIES="1")
    return folder


@pytest.mark.parametrize("spec", SOUND, ids=lambda spec: spec["name"])
def test_nothing_is_read_before_its_wait(results, spec):
    result = read(results, spec["name"])
    assert "error" not in result, result["trace"]
    assert result["tokens"] == reference(results, spec["scenario"])
    assert result["drift_rows"] == 0
    assert result["hook"]["counts"]["snapshots_dropped"] == 0


@pytest.mark.parametrize("spec", MUTATIONS, ids=lambda spec: spec["name"])
def test_a_missing_wait_is_caught(results, spec):
    result = read(results, spec["name"])
    if "error" not in result:
        assert result["drift_rows"] > 0 or result["tokens"] != reference(results, spec["scenario"])
    else:  # an engine that does not start catches nothing
        by_name = "LazyCopyError" in result["trace"] or "DriftError" in result["trace"]
        assert by_name or re.search(r"^[1-9]\d* rows drifted before", result["trace"], re.MULTILINE), result["trace"]


def orders_wanted(result: dict) -> int:
    counts = result["hook"]["counts"]
    return counts["length_copies"] + (counts["snapshots_taken"] if result["alone"] else 0)


@pytest.mark.parametrize("name", ["lazy-spec-sync", "lazy-spec-async", "lazy-alone"])
def test_every_copy_is_ordered_behind_the_main_stream(results, name):
    result = read(results, name)
    assert result["own_orders"] == orders_wanted(result) > 10


@pytest.mark.parametrize("spec", ORDERS, ids=lambda spec: spec["name"])
def test_a_missing_order_is_seen(results, spec):
    result = read(results, spec["name"])
    assert "error" not in result, result["trace"]
    assert result["own_orders"] < orders_wanted(result)
