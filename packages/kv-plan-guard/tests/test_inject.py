"""The fault matrix without an engine: which cells there are, and what counts as caught."""

import json

import pytest
from kv_plan_guard import inject
from kv_plan_guard.adapters.faults import FAULTS
from kv_plan_guard.errors import GuardError

CELL = inject.Cell("sim", "off-by-one-slot", "full", "async")
CAUGHT = {"planted": 6, "steps": 7, "caught": True, "step": 6, "codes": ["SLOT"], "released": [0, 1, 5], "error": "x"}


def write(folder, cell, **result):
    (folder / f"{cell.name}.json").write_text(json.dumps(result))


def test_every_kind_can_be_planted_and_there_are_enough():
    assert set(FAULTS) == set(inject.KINDS)
    assert len(inject.KINDS) >= 24
    assert all(fault.name == name for name, fault in FAULTS.items())


def test_the_matrix_is_kinds_by_engine_architecture_and_schedule():
    every = inject.cells()
    assert len(every) == len(set(every)) == (len(inject.KINDS) + len(inject.NEVER)) * 2 * 3 * 2
    assert {(cell.architecture, cell.schedule) for cell in every if not cell.reason} == {
        (architecture, schedule) for architecture in inject.ARCHITECTURES for schedule in inject.SCHEDULES
    }
    assert all(cell.reason for cell in every if cell.kind == "swapped-groups" and cell.architecture == "full")


@pytest.mark.parametrize(
    ("engines", "kinds", "named"), [(["gpu"], None, "'gpu'"), (["sim"], ["off-by-two"], "'off-by-two'")]
)
def test_an_unknown_engine_or_kind_is_refused_by_name(engines, kinds, named):
    with pytest.raises(GuardError, match=named):
        inject.cells(engines, kinds)


@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        ({}, "caught", "step 6"),
        ({"caught": False, "step": None}, "missed", "planted in step 6"),
        ({"step": 7}, "missed", "found in step 7"),
        ({"released": [0, 6]}, "missed", "step 6 was released"),
        ({"released": [0, 7]}, "missed", "step 7 was released"),
        ({"planted": None}, "failed", "could not be planted in 8 steps"),
        ({"failed": "RuntimeError: no model"}, "failed", "no model"),
        ({"not_applicable": "one group"}, "n/a", "one group"),
    ],
)
def test_a_cell_is_caught_in_its_step_and_before_release_only(tmp_path, change, state, why):
    write(tmp_path, CELL, **{**CAUGHT, **change})
    row = inject.verdict(CELL, tmp_path)
    assert row["state"] == state
    assert why in row["why"]


def test_the_sum_counts_what_exists_and_a_missing_result_fails_it(tmp_path):
    cells = inject.cells(["sim"], ["off-by-one-slot", "swapped-groups"])
    for cell in cells:
        write(tmp_path, cell, **CAUGHT)
    summary = inject.summarize(cells, tmp_path)
    assert (summary["kinds"], summary["cells"], summary["caught"], summary["passed"]) == (2, 10, 10, True)
    (tmp_path / f"{CELL.name}.json").unlink()
    summary = inject.summarize(cells, tmp_path)
    assert not summary["passed"]
    text = inject.table(cells, summary)
    assert "9 of 10 cells caught" in text
    assert f"missing: {CELL.name}" in text
    assert "the model has one KV cache group: swapped-groups (sim full)" in text


def test_cells_with_a_result_are_not_run_again(tmp_path):
    for cell in (cells := inject.cells(["sim"], ["off-by-one-slot"])):
        write(tmp_path, cell, **CAUGHT)
    inject.run(cells, tmp_path, {}, python="no-such-python")  # would raise where a process is started


def test_a_damaged_result_counts_as_missing(tmp_path):
    (tmp_path / f"{CELL.name}.json").write_text("{")
    assert inject.verdict(CELL, tmp_path)["state"] == "missing"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--engine", "gpu"], "engine must be one of sim, core, got 'gpu'"),
        (["--kind", "off-by-two"], "'off-by-two'"),
        (["--model", "dense"], "--model must be NAME=FOLDER"),
        (["--model", "huge=/x"], "NAME among dense, sliding, hybrid, draft"),
    ],
)
def test_bad_input_of_the_command_is_one_line_and_nothing_is_written(tmp_path, capsys, arguments, named):
    from kv_plan_guard.cli import main

    out = tmp_path / "out"
    assert main(["inject", *arguments, "--out", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert named in captured.err
    assert captured.err.count("\n") == 1
    assert not out.exists()


def test_the_command_prints_the_matrix_of_kept_results(tmp_path, capsys):
    from kv_plan_guard.cli import main

    for cell in inject.cells(["sim"], ["off-by-one-slot"]):
        write(tmp_path, cell, **CAUGHT)
    models = [word for name in ("dense", "sliding", "hybrid", "draft") for word in ("--model", f"{name}=/nowhere")]
    given = ["inject", "--engine", "sim", "--kind", "off-by-one-slot", "--out", str(tmp_path), *models]
    assert main(given) == 0
    assert "6 of 6 cells caught, 1 kinds" in capsys.readouterr().out
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caught"] == 6


def test_a_process_that_dies_in_a_cell_fails_that_cell_and_the_rest_is_run(tmp_path):
    script = tmp_path / "python"
    script.write_text(
        "#!/bin/sh\n"
        "for name in sim-full-sync-off-by-one-slot sim-full-async-off-by-one-slot; do\n"
        f'  test -e "{tmp_path}/$name.json" && continue\n'
        '  echo "@begin $name"\n'
        "  test $name = sim-full-sync-off-by-one-slot && exit 9\n"
        f'  echo "{{}}" > "{tmp_path}/$name.json"; echo "@cell $name"\n'
        "done\n"
    )
    script.chmod(0o755)
    cells = [cell for cell in inject.cells(["sim"], ["off-by-one-slot"]) if cell.architecture == "full"]
    seen = []
    inject.run(cells, tmp_path, {}, python=str(script), progress=seen.append)
    assert seen == ["sim-full-async-off-by-one-slot"]
    row = inject.verdict(cells[0], tmp_path)
    assert (row["state"], row["why"]) == ("failed", "the process ended with status 9")


def test_a_process_that_never_comes_to_a_cell_ends_the_run(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 1\n")
    script.chmod(0o755)
    cells = inject.cells(["sim"], ["off-by-one-slot"])
    inject.run(cells, tmp_path, {}, python=str(script))
    assert {inject.verdict(cell, tmp_path)["state"] for cell in cells} == {"missing"}
