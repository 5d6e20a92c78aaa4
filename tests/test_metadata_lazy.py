"""With copies that land only at a wait: the wait of the hook is needed, and upstream loses none of its own."""

import pytest
from test_metadata_engine import EVERY, NOT_HERE, ON, read, reference, run_engines

pytestmark = [pytest.mark.engine, pytest.mark.slow, NOT_HERE]

SOUND = [
    {"name": "lazy-batch", "scenario": "batch", "hook": EVERY},
    {"name": "lazy-spec-sync", "scenario": "spec-sync", "hook": ON},
    {"name": "lazy-spec-async", "scenario": "spec-async", "hook": EVERY},
]
MUTATIONS = [
    # The hook's own wait, under both schedulings.
    {"name": "lazy-no-wait-async", "scenario": "spec-async", "hook": ON, "mutation": "no length wait"},
    {"name": "lazy-no-wait-sync", "scenario": "spec-sync", "hook": ON, "mutation": "no length wait"},
    # The output's wait, on which a snapshot rides.
    {"name": "lazy-no-output-wait", "scenario": "batch", "hook": EVERY, "mutation": "no output wait"},
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lazy")
    run_engines(folder, SOUND + MUTATIONS, modes=("plain",))
    run_engines(folder, SOUND + MUTATIONS, modes=("ascend",), ASCEND_SIM_LAZY_COPIES="1")
    return folder


@pytest.mark.parametrize("spec", SOUND, ids=lambda spec: spec["name"])
def test_nothing_is_read_before_its_wait(results, spec):
    result = read(results, spec["name"])
    assert "error" not in result, result["trace"]
    assert result["tokens"] == reference(results, spec["scenario"])
    assert result["drift_rows"] == 0


@pytest.mark.parametrize("spec", MUTATIONS, ids=lambda spec: spec["name"])
def test_a_missing_wait_is_caught(results, spec):
    result = read(results, spec["name"])
    if "error" in result:  # an engine that does not start catches nothing
        assert "LazyCopyError" in result["trace"] or "DriftError" in result["trace"], result["trace"]
    else:
        assert result["drift_rows"] > 0 or result["tokens"] != reference(results, spec["scenario"])
