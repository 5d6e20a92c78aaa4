"""Build the environment of one pair with uv: `python tools/envs.py 0.30.0` prints the path of its Python.

The environment lies in .nox/pairs/ID (ID-py3.12 for another Python). It holds a CPU torch, the pair's lock, vllm-ascend
built from its sdist, and the workspace's packages as editable installs. A stamp, written last, says what it was built
from: with the same inputs nothing is done. A base that was interrupted starts again from an empty environment.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "packages" / "vllm-pairs" / "src" / "vllm_pairs" / "pairs.toml"
DEFAULT_PYTHON = "3.11"
NEEDED_BYTES = 4 << 30  # a finished environment takes about 3 GB, the build of vllm-ascend some more
# vllm-ascend's setup.py without its compiled operators; torch must not look for torch_npu while it builds.
BUILD_ENV = {"COMPILE_CUSTOM_KERNELS": "0", "SOC_VERSION": "ascend910b1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


class EnvError(RuntimeError):
    """An environment cannot be built; the message says why and what to do."""


def rows() -> list[dict[str, Any]]:
    """Every row of the pair table, as TOML gives it."""
    with TABLE.open("rb") as file:
        return list(tomllib.load(file)["pair"])


def buildable_rows() -> list[dict[str, Any]]:
    """The rows that have a CPU environment."""
    return [row for row in rows() if row["status"] != "not-run"]


def row_of(pair_id: str) -> dict[str, Any]:
    """The row of one pair; an unknown id or a row that is not run here is an EnvError."""
    for row in rows():
        if row["id"] == pair_id:
            if row["status"] == "not-run":
                raise EnvError(f"pair {pair_id!r} has no CPU environment: {row['reason']}")
            return row
    known = ", ".join(row["id"] for row in buildable_rows())
    raise EnvError(f"unknown pair {pair_id!r}; known pairs: {known}")


def lock_path(pair_id: str, kind: str) -> Path:
    """The requirements file of a pair; `kind` is cpu, plugin or npu."""
    return ROOT / "pairs" / f"{pair_id}.{kind}.txt"


def find_uv() -> str:
    """The uv executable: the one that started us, else the installed package's, else the one on the path."""
    if found := os.environ.get("UV"):
        return found
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return str(find_uv_bin())
    if found := shutil.which("uv"):
        return found
    raise EnvError("uv is not installed; run: pip install uv")


def run(command: list[str], **extra: str) -> None:
    """Run a uv command quietly; a failure becomes one EnvError with the end of its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **extra})
    if done.returncode == 0:
        return
    if "No space left on device" in done.stderr:
        raise EnvError(f"no space left on the disk of {ROOT}: free about {NEEDED_BYTES >> 30} GB and run again")
    tail = "\n".join(done.stderr.strip().splitlines()[-15:])
    raise EnvError(f"{' '.join(command[1:4])} failed (exit status {done.returncode}):\n{tail}")


def pip_find_links() -> list[str]:
    """The find-links of pip's configuration and environment, which uv does not read; without repeats, in order."""
    found = os.environ.get("PIP_FIND_LINKS", "").split()
    for command in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"], ["pip"]):
        with contextlib.suppress(OSError):
            done = subprocess.run([*command, "config", "list"], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                for quoted in re.findall(r"^\S*find-links='(.*)'$", done.stdout, flags=re.MULTILINE):
                    found += quoted.replace("\\n", " ").split()
                break
    return list(dict.fromkeys(found))


def install_torch(python: Path, version: str, echo: Callable[[str], None]) -> None:
    """Install a CPU torch from the first place that has one, and say in one line which place it was."""
    uv_pip = [find_uv(), "pip", "install", "--quiet", "--compile-bytecode"]
    install = [*uv_pip, "--python", str(python), f"torch=={version}"]
    links = [option for place in pip_find_links() for option in ("--find-links", place)]
    tries = [
        ("pip's configured find-links", [*install, "--no-deps", "--no-index", *links] if links else None),
        ("uv's --torch-backend=cpu", [*install, "--no-deps", "--torch-backend=cpu"]),
        ("PyPI", install),  # with dependencies: PyPI's Linux build does not import without its CUDA libraries
    ]
    failures = []
    for place, command in tries:
        if command is None:
            failures.append(f"{place}: none configured")
            continue
        try:
            run(command)
        except EnvError as error:
            if "no space left" in str(error):
                raise
            failures.append(f"{place}: {str(error).splitlines()[-1].strip()}")
        else:
            echo(f"torch {version}: from {place}")
            return
    raise EnvError(f"no torch {version} found:\n  " + "\n  ".join(failures))


def projects() -> list[Path]:
    """The folders of the workspace's packages."""
    return [path.parent for path in sorted(ROOT.glob("packages/*/pyproject.toml"))]


def project_table(folder: Path) -> dict[str, Any]:
    """The [project] table of a package."""
    path = folder / "pyproject.toml"
    try:
        table: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise EnvError(f"{path.relative_to(ROOT)} cannot be read: {error}") from error
    return table


def not_locked(lock: str) -> list[str]:
    """Requirements of the workspace's packages that the lock does not have (a lock older than a pyproject)."""

    def name(line: str) -> str:
        return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]).lower()

    tables = [project_table(folder) for folder in projects()]
    have = {name(line) for line in lock.splitlines() if line[:1].isalnum()} | {name(table["name"]) for table in tables}
    return sorted({need for table in tables for need in table.get("dependencies", []) if name(need) not in have})


def digest(*paths: Path) -> str:
    """One hash over the contents of files, names left out: the checkout may move."""
    total = hashlib.sha256()
    for path in paths:
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


@contextlib.contextmanager
def locked(path: Path, echo: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock on one environment, so that two callers do not build it at once."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            echo(f"waiting: another process is building {path.stem.lstrip('.')}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_space(folder: Path) -> None:
    """Refuse to start a build that cannot end."""
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise EnvError(
            f"not enough disk space under {folder}: {free / (1 << 30):.1f} GB free, {NEEDED_BYTES >> 30} GB needed"
        )


def build_base(row: dict[str, Any], home: Path, python: Path, wanted: str, echo: Callable[[str], None]) -> None:
    """An empty environment, torch, the lock and the plugin."""
    uv = find_uv()
    check_space(home.parent)
    echo(f"building the environment of pair {row['id']} (Python {wanted}); about a minute")
    import pythons  # here and not above: it imports this module

    interpreter = str(pythons.find(wanted) or wanted)  # else uv looks, and may fetch one where that is allowed
    run([uv, "venv", "--quiet", "--clear", "--no-project", "--python", interpreter, str(home)])
    install_torch(python, row["cpu"]["torch"], echo)
    # Compiled once here: where bytecode is not written on import, each engine process would compile for 15 s.
    install = [uv, "pip", "install", "--quiet", "--python", str(python), "--no-deps", "--compile-bytecode"]
    # torch is there already; naming it again would ask the index for a build without its local version.
    names = "\n".join(
        line
        for line in lock_path(row["id"], "cpu").read_text(encoding="utf-8").splitlines()
        if not line.startswith("torch==")
    )
    listed = home / "lock.txt"
    listed.write_text(names + "\n", encoding="utf-8")
    run([*install, "-r", str(listed)])
    if row.get("vllm_ascend"):
        plugin = str(lock_path(row["id"], "plugin"))
        options = ["--no-build-isolation", "--no-binary", "vllm-ascend", "-r", plugin]
        run([*install, *options], **BUILD_ENV)


def install_packages(row: dict[str, Any], python: Path, echo: Callable[[str], None]) -> None:
    """The workspace's packages, editable; dependencies that the lock lacks are named and installed beside it."""
    install = [find_uv(), "pip", "install", "--quiet", "--python", str(python)]
    lock = lock_path(row["id"], "cpu").read_text(encoding="utf-8")
    if extra := not_locked(lock):
        echo(f"not in the lock, installed beside it: {', '.join(extra)} (run: nox -s lock-pairs)")
        run([*install, *extra])
    editable = [option for folder in projects() for option in ("--editable", str(folder))]
    run([*install, "--no-deps", *editable])


def write_stamp(path: Path, state: dict[str, str]) -> dict[str, str]:
    """Say what is finished, in one step, after it is."""
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(state), encoding="utf-8")
    os.replace(scratch, path)
    return state


def ensure(pair_id: str, *, python: str | None = None, echo: Callable[[str], None] = print) -> Path:
    """Create or update the environment of a pair; returns the path of its Python executable.

    `python` is a Python version such as "3.12" (default 3.11). Raises EnvError, with the fix, for an unknown pair, a
    missing lock, a full disk or a failed installation.
    """
    row = row_of(pair_id)
    wanted = python or DEFAULT_PYTHON
    home = ROOT / ".nox" / "pairs" / (pair_id if wanted == DEFAULT_PYTHON else f"{pair_id}-py{wanted}")
    locks = [lock_path(pair_id, "cpu")] + ([lock_path(pair_id, "plugin")] if row.get("vllm_ascend") else [])
    if missing := [path.name for path in locks if not path.is_file()]:
        raise EnvError(f"pair {pair_id!r} has no lock ({', '.join(missing)} under pairs/); run: nox -s lock-pairs")
    base = f"{digest(*locks)} {row['cpu']['torch']} {wanted}"
    # Editable installs hold the path of the checkout, so a moved one installs its packages again.
    packages = f"{digest(*(folder / 'pyproject.toml' for folder in projects()))} {ROOT}"
    stamp, executable = home / "pair-stamp.json", home / "bin" / "python"
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with locked(home.parent / f".{home.name}.lock", echo):
            done: dict[str, str] = {}
            with contextlib.suppress(OSError, ValueError):
                done = json.loads(stamp.read_text(encoding="utf-8"))
            if done.get("base") != base or not executable.exists():
                stamp.unlink(missing_ok=True)
                build_base(row, home, executable, wanted, echo)
                done = write_stamp(stamp, {"base": base})
            if done.get("packages") != packages:
                install_packages(row, executable, echo)
                write_stamp(stamp, {"base": base, "packages": packages})
    except OSError as error:
        raise EnvError(
            f"cannot write the environment {home}: {error.strerror or error}; free space or rights"
        ) from error
    return executable


def main(argv: list[str] | None = None) -> int:
    """Build one environment and print its Python; exit status 2 when it cannot be built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pair", help="pair id, e.g. 0.30.0")
    parser.add_argument("--python", default=None, help=f"Python version (default {DEFAULT_PYTHON})")
    options = parser.parse_args(argv)
    try:
        print(ensure(options.pair, python=options.python, echo=lambda line: print(f"envs: {line}", file=sys.stderr)))
    except EnvError as error:
        print(f"envs: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
