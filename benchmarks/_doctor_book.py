"""The edits of one cell, and the import of plugin modules from their released files with the edits in them."""

from __future__ import annotations

import ast
import builtins
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING

from _doctor_edits import PLUGIN, Edit, apply
from _doctor_standins import NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import ModuleType


class Loader(SourceFileLoader):
    """Loads a plugin module from its released file with the edits recorded for it."""

    book: Book

    def get_code(self, fullname: str) -> CodeType:
        return self.book.code(Path(self.path))


class Book:
    """The edits of one cell and the finder that applies them. Compiled files are kept, also for forked children."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.edits: dict[str, list[Edit]] = {}
        self._codes: dict[tuple[str, tuple[Edit, ...]], CodeType] = {}

    def add(self, edits: Iterable[Edit]) -> list[Edit]:
        """Record edits; returns those that are new."""
        fresh = []
        for edit in edits:
            known = self.edits.setdefault(edit.file, [])
            if edit not in known:
                known.append(edit)
                fresh.append(edit)
        return fresh

    def relative(self, path: str) -> str | None:
        """A file of the plugin relative to its tree; None for another file."""
        prefix = f"{self.tree}/{PLUGIN}/"
        return path[len(str(self.tree)) + 1 :] if path.startswith(prefix) else None

    def code(self, path: Path) -> CodeType:
        """Compiled code of a plugin file with its edits."""
        file = str(path.relative_to(self.tree))
        key = (file, tuple(self.edits.get(file, ())))
        if key not in self._codes:
            tree = ast.parse(path.read_bytes(), filename=str(path))
            self._codes[key] = compile(apply(tree, key[1]) if key[1] else tree, str(path), "exec", dont_inherit=True)
        return self._codes[key]

    def inner_codes(self, qualname: str) -> Iterator[tuple[str, CodeType]]:
        """Compiled functions of a qualified name in the plugin files that were loaded, with their files."""
        for (file, edits), module in self._codes.items():
            left = [module] if edits == tuple(self.edits.get(file, ())) else []
            while left:
                code = left.pop()
                if code.co_qualname == qualname:
                    yield file, code
                left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]

    def install(self) -> None:
        """Find plugin modules in the tree, and define what edited code calls."""
        for name, value in NAMES.items():
            setattr(builtins, name, value)
        # Before the finder of files, after those of import hooks: the simulator has one on the plugin.
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _Finder(self))


class _Finder:
    def __init__(self, book: Book) -> None:
        self.book = book

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != PLUGIN:
            return None
        spec = PathFinder.find_spec(name, path or [str(self.book.tree)], target)
        if spec and type(spec.loader) is SourceFileLoader:
            loader = Loader(spec.loader.name, spec.loader.path)
            loader.book = self.book
            spec.loader = loader
        return spec
