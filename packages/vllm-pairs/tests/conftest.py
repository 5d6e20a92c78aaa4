"""Synthetic modules that stand for code to be hooked; vLLM is not needed here."""

import importlib
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from vllm_pairs.doctor import Workbench
from vllm_pairs.hooks import installed_hooks


@pytest.fixture
def make_module(tmp_path, monkeypatch):
    """Write a module with real source (a hash needs it) and import it; it is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(name, source, *, load=True):
        (tmp_path / f"{name}.py").write_text(dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name) if load else None

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def nothing_left_installed():
    """A test that leaves a hook in place would change the next one."""
    yield
    assert installed_hooks() == ()


class Trees:
    """Small source trees that stand for a core and a plugin."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, side: str, files: dict[str, str], *, name: str, version: str | None) -> Path:
        """Write modules ("vllm/a/b.py": source) and the metadata that tells the release; packages get an __init__."""
        root = self.root / side
        for path, source in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(source), encoding="utf-8")
            folder = file.parent
            while folder != root:
                if not (folder / "__init__.py").exists():
                    (folder / "__init__.py").write_text("", encoding="utf-8")
                folder = folder.parent
        if version is not None:
            metadata = root / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
            metadata.parent.mkdir(exist_ok=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n", encoding="utf-8")
        return root

    def core(self, files: dict[str, str], version: str | None = "0.30.0", side: str = "core") -> Path:
        """A core's tree."""
        return self.write(side, files, name="vllm", version=version)

    def plugin(self, files: dict[str, str], version: str | None = "0.30.0rc1") -> Path:
        """A plugin's tree."""
        return self.write("plugin", files, name="vllm-ascend", version=version)

    def examine(self, core: dict[str, str], plugin: dict[str, str], core_version: str | None = "0.30.0"):
        """The report of a core and a plugin given as modules."""
        bench = Workbench(processes=1)
        return bench.run(bench.core(self.core(core, core_version)), bench.plugin(self.plugin(plugin)))

    @staticmethod
    def line(files: dict[str, str], path: str, text: str) -> int:
        """The line of a module on which a text stands; it must stand on one line only."""
        lines = dedent(files[path]).splitlines()
        (number,) = [number for number, line in enumerate(lines, 1) if text in line]
        return number

    @staticmethod
    def only(findings, kind: str):
        """The one finding of a kind."""
        (found,) = [finding for finding in findings if finding.kind == kind]
        return found


@pytest.fixture
def trees(tmp_path):
    """Writes and examines small trees."""
    return Trees(tmp_path)
