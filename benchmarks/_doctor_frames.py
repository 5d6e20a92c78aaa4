"""One real failure, and what a traceback says of it: frames, their nodes in the released files, sites."""

from __future__ import annotations

import ast
import functools
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _doctor_edits import Edit, place_of

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator

    from _doctor_book import Book


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback: its file, the node's place in it and the live frame."""

    path: str
    line: int
    place: tuple[int, int, int, int] | None
    frame: types.FrameType


@dataclass
class Finding:
    """One real failure.

    `origin` says whose it is: mismatch (a core symbol, or a plugin function that the core calls), environment (a
    package or an operator that only an NPU host has), simulator, derived (after a repair's placeholder), other.
    `edits` is empty where no repair is known.
    """

    kind: str
    origin: str
    symbol: str
    argument: str
    file: str
    line: int
    core_file: str
    core_line: int
    message: str
    edits: list[Edit] = field(default_factory=list)


def text_of(error: BaseException, most: int = 400) -> str:
    """An error's text without paths of this machine: rows are recorded."""
    return re.sub(r" ?\(?/[\w./+-]+\.(?:py|so)\)?", "", str(error).strip())[:most]


def frames_of(error: BaseException) -> Iterator[Frame]:
    """Outermost first, the import system's own and those of these tools left out."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(("<frozen importlib", f"{Path(__file__).parent}/_doctor_")):
            line, end, col, end_col = list(code.co_positions())[trace.tb_lasti // 2]
            whole = None not in (line, end, col, end_col)
            place = (line, col, end, end_col) if whole else None
            yield Frame(code.co_filename, trace.tb_lineno, place, trace.tb_frame)  # type: ignore[arg-type]
        trace = trace.tb_next


def core_file(path: str) -> str | None:
    """A file of the core relative to its tree; None for another file."""
    found = re.search(r"/(vllm/[^<]*\.py)$", path)
    return found.group(1) if found and ("site-packages/vllm/" in path or "/core-" in path) else None


def plugin_site(frames: list[Frame], book: Book) -> tuple[str, int]:
    for one in reversed(frames):
        if file := book.relative(one.path):
            return file, one.line
    return "", 0


def core_site(frames: list[Frame]) -> tuple[str, int]:
    for one in reversed(frames):
        if file := core_file(one.path):
            return file, one.line
    return "", 0


@functools.cache
def syntax(path: str) -> ast.Module:
    return ast.parse(Path(path).read_bytes())


@functools.cache
def _at(path: str) -> dict[tuple[int, int, int, int], list[ast.AST]]:
    """Nodes of a file by place."""
    found: dict[tuple[int, int, int, int], list[ast.AST]] = {}
    for node in ast.walk(syntax(path)):
        if place := place_of(node):
            found.setdefault(place, []).append(node)
    return found


def node_of(one: Frame, kinds: Any) -> Any:
    nodes = _at(one.path).get(one.place, []) if one.place else []
    return next((node for node in nodes if isinstance(node, kinds)), None)


def edit_of(book: Book, path: str, kind: str, node: ast.AST, name: str) -> Edit:
    place = place_of(node)
    assert place is not None
    return Edit(book.relative(path) or "", kind, *place, name)


def is_core(name: str) -> bool:
    """Whether a dotted name is the core's."""
    return re.split(r"[.:/]", name)[0] == "vllm"


def class_node(cls: type, book: Book) -> ast.ClassDef | None:
    """The definition of a plugin's class."""
    path = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    if not book.relative(path):
        return None
    name = cls.__name__
    nodes = [n for n in ast.walk(syntax(path)) if isinstance(n, ast.ClassDef) and n.name == name]
    return nodes[-1] if nodes else None
