"""What the workspace holds: its packages, in the order in which they stand on each other."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Package:
    """One distribution of the workspace."""

    name: str  # distribution, as pip knows it
    folder: Path
    imports: str  # import name
    project: dict[str, Any]  # its pyproject.toml's [project]
    oracles: tuple[str, ...]  # its [dependency-groups] test: what only its tests compare with

    @property
    def version(self) -> str:
        """Version in its pyproject.toml."""
        return str(self.project["version"])

    @property
    def tests(self) -> Path:
        """Folder of the tests that need this package and its declared dependencies only."""
        return self.folder / "tests"


def packages(root: Path = ROOT) -> list[Package]:
    """Every package under packages/, by name. Raises ValueError for one whose wheel is not one import package."""
    found = []
    for file in sorted(root.glob("packages/*/pyproject.toml")):
        data = tomllib.loads(file.read_text(encoding="utf-8"))
        sources = [path.name for path in sorted((file.parent / "src").iterdir()) if (path / "__init__.py").is_file()]
        if len(sources) != 1:
            raise ValueError(f"{file}: src/ must hold one import package, found {sources!r}")
        oracles = tuple(data.get("dependency-groups", {}).get("test", ()))
        found.append(Package(data["project"]["name"], file.parent, sources[0], data["project"], oracles))
    return sorted(found, key=lambda package: package.name)
