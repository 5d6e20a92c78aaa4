"""The session npu-smoke: what it does before anything is built, and whose packages its environment sees."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import engines  # noqa: E402
import envs  # noqa: E402


class Session:
    """What `engines.npu_smoke` asks of a nox session; a command that fails ends it, as nox does."""

    def __init__(self, *posargs: str) -> None:
        self.posargs, self.commands = list(posargs), []

    def log(self, message: str) -> None:
        self.said = message

    def run(self, *command: str, **options: object) -> None:
        self.commands.append(command)
        subprocess.run(command, check=True, capture_output=True, text=True)


def test_without_an_npu_nothing_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if list(Path("/dev").glob("davinci*")):
        pytest.skip("this host has an NPU")
    monkeypatch.setenv("PATH", str(tmp_path))  # no npu-smi either
    session = Session("--model", "/x")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        engines.npu_smoke(session)
    assert len(session.commands) == 1
    assert ended.value.returncode == 2
    assert ended.value.stderr.startswith("npu-smoke: no NPU on this host")
    assert len(ended.value.stderr.splitlines()) == 1


def test_a_simulated_run_uses_a_pairs_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "ensure", lambda pair, echo: Path(f"/env/{pair}/bin/python"))
    session = Session("--simulated", "--pair", "0.28.0", "--modes", "eager")
    session.run = lambda *command, **options: session.commands.append(command)  # type: ignore[method-assign]
    engines.npu_smoke(session)
    assert session.commands == [
        ("/env/0.28.0/bin/python", "-m", "ascend_sim.smoke", "npu", "--simulated", "--modes", "eager")
    ]


def site_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def test_the_environment_sees_a_host_that_is_a_virtual_environment_itself(tmp_path: Path) -> None:
    host, made = tmp_path / "host", tmp_path / "made"
    editable = tmp_path / "source"
    editable.mkdir()
    (editable / "kit_editable_example.py").touch()
    venv.create(host, symlinks=True)
    site = site_of(host / "bin" / "python")
    (site / "kit_plain_example.py").touch()
    (site / "editable.pth").write_text(f"{editable}\n")
    venv.create(made, symlinks=True, system_site_packages=True)
    asked = [made / "bin" / "python", "-c", "import kit_plain_example, kit_editable_example"]
    assert subprocess.run(asked, check=False, capture_output=True).returncode == 1
    before = sorted(path.name for path in site.rglob("*") if path.name != "__pycache__")
    engines.show_host_packages(host / "bin" / "python", made / "bin" / "python")
    done = subprocess.run([*asked[:1], "-B", *asked[1:]], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in site.rglob("*") if path.name != "__pycache__") == before


def test_a_plain_host_needs_nothing_more(tmp_path: Path) -> None:
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    made = tmp_path / "made"
    venv.create(made, symlinks=True, system_site_packages=True)
    engines.show_host_packages(base, made / "bin" / "python")
    assert not list(site_of(made / "bin" / "python").glob("_host_packages.pth"))
