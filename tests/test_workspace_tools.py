"""The helpers of the sessions: what they find, and what they must not let pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import engines  # noqa: E402
import pythons  # noqa: E402
import wheel_tests  # noqa: E402
import workspace  # noqa: E402


class Session:
    """What `engines` asks of a nox session; `error` ends it as nox does."""

    def __init__(self, *posargs: str) -> None:
        self.posargs = list(posargs)

    def log(self, message: str) -> None:
        self.said = message

    def error(self, message: str) -> None:
        raise RuntimeError(message)


def import_all(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "import_all.py"), name]
    return subprocess.run(command, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)


def make_package(folder: Path, **modules: str) -> None:
    inside = folder / "kit_example"
    (inside / "adapters").mkdir(parents=True)
    (inside / "__init__.py").touch()
    (inside / "adapters" / "__init__.py").touch()
    for name, text in modules.items():
        (inside / f"{name.replace('__', '/')}.py").write_text(text)


def test_import_all_lets_adapters_wait_for_the_engine(tmp_path: Path) -> None:
    make_package(tmp_path, core="import json", adapters__runner="import vllm.engine")
    done = import_all(tmp_path, "kit_example")
    assert done.returncode == 0, done.stderr
    assert "3 modules import alone, 1 need the engine" in done.stdout


def test_import_all_finds_an_undeclared_import(tmp_path: Path) -> None:
    make_package(tmp_path, core="import json", adapters__deep="import kit_undeclared_dependency")
    done = import_all(tmp_path, "kit_example")
    assert done.returncode == 1
    assert "kit_example.adapters.deep needs 'kit_undeclared_dependency'" in done.stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("============ 3 passed in 0.12s ============", (3, 0)),
        ("=== 2 failed, 118 passed, 1 error in 69.92s (0:01:09) ===", (118, 3)),
        ("============ 4 errors in 5.89s ============", (0, 4)),
        ("tests/test_a.py::test_3 passed", None),
        ("no tests ran in 4.41s", None),
    ],
)
def test_counts_of_pytests_closing_line(line: str, expected: tuple[int, int] | None) -> None:
    assert wheel_tests.counts(line) == expected


def test_a_package_without_tests_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    empty = wheel_tests.guarded("kit-example", "3.11", lambda scratch: wheel_tests.Run(wheel_tests.NO_TESTS, 0, 0))
    assert empty.problem == "no test was found"
    assert wheel_tests.summarize([empty], []) == 1
    assert capsys.readouterr().out.endswith("tests: 0 passed, 1 failed\n")


def test_a_check_that_breaks_is_a_failure_and_not_the_end() -> None:
    def broken(scratch: Path) -> wheel_tests.Run:
        raise RuntimeError("its dependencies pull in torch")

    assert wheel_tests.guarded("kit-example", "3.11", broken).failed == 1


def test_no_result_is_a_failure() -> None:
    assert wheel_tests.summarize([], ["3.11", "3.12"]) == 1


def test_skipped_pythons_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    good = wheel_tests.guarded("kit-example", "3.11", lambda scratch: wheel_tests.Run(0, 4, 0))
    assert wheel_tests.summarize([good], ["3.12"]) == 0
    out = capsys.readouterr().out
    assert "skipped, not on this machine: Python 3.12" in out
    assert out.endswith("tests: 4 passed, 0 failed\n")


def test_unknown_package_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        wheel_tests.choose(["vllm-pair"], workspace.packages())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("unknown package 'vllm-pair': choose from ascend-sim")


def test_a_shim_that_does_not_run_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    shim = tmp_path / "versions" / "9.99.1" / "bin" / "python9.99"
    shim.parent.mkdir(parents=True)
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert pythons.find("9.99") is None
    shim.write_text("#!/bin/sh\necho 9.99\n")
    assert pythons.find("9.99") == shim


def test_pairs_of_a_session() -> None:
    assert engines.split_pairs(Session()) == ([engines.default_pair()], [])
    assert engines.split_pairs(Session("--pair", "0.28.0", "--quick")) == (["0.28.0"], ["--quick"])
    assert engines.split_pairs(Session("--pair=0.28.0")) == (["0.28.0"], [])
    every, rest = engines.split_pairs(Session("--all-pairs"))
    assert engines.default_pair() in every
    assert len(every) > 1
    assert rest == []


def test_an_unknown_pair_is_one_clear_error() -> None:
    with pytest.raises(RuntimeError, match=r"unknown pair '0\.99\.0'; known pairs: "):
        engines.ensure(Session("--pair", "0.99.0"), "0.99.0")


def test_a_benchmark_says_its_environment(tmp_path: Path) -> None:
    script = tmp_path / "sample.py"
    script.write_text('"""A benchmark."""\n# env: engine\n')
    assert engines.bench_env(script) == "engine"
    script.write_text('"""A benchmark."""\n')
    with pytest.raises(SystemExit, match="# env: light"):
        engines.bench_env(script)
