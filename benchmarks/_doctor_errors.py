"""What an exception says: which symbol of the core or the plugin, at which site, and the edit that goes past it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from typing import TYPE_CHECKING, Any

from _doctor_calls import of_call
from _doctor_edits import PLUGIN, place_of
from _doctor_frames import (
    Finding,
    class_node,
    core_file,
    core_site,
    edit_of,
    frames_of,
    is_core,
    node_of,
    plugin_site,
    syntax,
    text_of,
)
from _doctor_standins import Missing

if TYPE_CHECKING:
    from _doctor_book import Book
    from _doctor_edits import Edit
    from _doctor_frames import Frame

KINDS = (ImportError, TypeError, AttributeError)
_IMPORT_NAME = re.compile(r"cannot import name '([^']+)' from (partially initialized module )?'([^']+)'")


def classify(error: BaseException, book: Book) -> list[Finding]:
    """The failures that an exception shows, the first of them with the edits that go past it."""
    error = _root(error)
    frames = list(frames_of(error))
    kind = type(error).__name__
    found: list[Finding] | None = None
    if isinstance(error, ImportError):
        found = _of_import(error, frames, book)
    elif isinstance(error, AttributeError):
        found = _of_attribute(error, frames, book)
    elif isinstance(error, TypeError):
        found = of_call(error, frames, book)
    elif type(error).__name__ == "NotSimulatedError":
        found = _of_absent(error, frames, book)
    if found is None:
        found = _of_module(error, frames, book)
    if found is None:
        path, line = plugin_site(frames, book)
        found = [Finding(kind, _stray_origin(error, frames), "", "", path, line, *core_site(frames), text_of(error))]
    for one in found:
        one.kind = kind
    if not any(one.edits for one in found) and (edit := _skipped(frames, book)):
        found[0].edits = [edit]
    return found


def _of_absent(error: BaseException, frames: list[Frame], book: Book) -> list[Finding] | None:
    """The plugin calls what only an NPU host has, for nothing that it would give: the statement is left out."""
    one = next((frame for frame in reversed(frames) if "/ascend_sim/" not in frame.path), None)
    if one is None or not (file := book.relative(one.path)):
        return None
    for node in ast.walk(syntax(one.path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and place_of(node.value) == one.place:
            finding = Finding("", "simulator", ast.unparse(node.value.func), "", file, one.line, "", 0, text_of(error))
            finding.edits = [edit_of(book, one.path, "skip", node, f"{file}:{node.lineno}")]
            return [finding]
    return None


def _skipped(frames: list[Frame], book: Book) -> Edit | None:
    """The edit that leaves out the statement of a module, outside every function, that an error came from."""
    one = next((frame for frame in reversed(frames) if book.relative(frame.path)), None)
    if one is None or one.frame.f_code.co_name != "<module>":
        return None
    around = [
        statement
        for statement in ast.walk(syntax(one.path))
        if isinstance(statement, (ast.Expr, ast.Assign, ast.ClassDef))
        and min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))]) <= one.line
        and one.line <= (statement.end_lineno or 0)
    ]
    if not around:
        return None
    inner = max(around, key=lambda statement: statement.lineno)
    return edit_of(book, one.path, "skip", inner, f"{book.relative(one.path)}:{inner.lineno}")


def _root(error: BaseException) -> BaseException:
    """The first error of a chain: vLLM wraps what a worker raised."""
    while not isinstance(error, KINDS) and (error.__cause__ or error.__context__) is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error


def _stray_origin(error: BaseException, frames: list[Frame]) -> str:
    if "<missing " in str(error) or "Missing" in str(error):
        return "derived"
    if frames and "ascend_sim" in frames[-1].path:
        return "simulator"
    return "other"


# Imports


def _importing(frames: list[Frame], book: Book) -> tuple[Frame, Any, bool] | None:
    """The innermost import statement of the plugin, and whether it failed itself or in the body of what it imports.

    The plugin puts functions of its own in place of `__import__`: their frames stand behind the statement's.
    """
    for index in reversed(range(len(frames))):
        one = frames[index]
        if book.relative(one.path) and (node := node_of(one, (ast.Import, ast.ImportFrom))) is not None:
            return one, node, all(inner.frame.f_code.co_name != "<module>" for inner in frames[index + 1 :])
        if one.frame.f_code.co_name == "<module>" and book.relative(one.path):
            return None  # fails in its own code
    return None


def _of_import(error: ImportError, frames: list[Frame], book: Book) -> list[Finding] | None:
    if (found := _importing(frames, book)) is None:
        return None
    one, node, itself = found
    file = book.relative(one.path) or ""
    if not itself:
        return _of_module(error, frames, book)
    if match := _IMPORT_NAME.search(str(error)):
        return _missing_names(error, one, node, book, match)
    module = str(error.name or "")
    origin = "mismatch" if is_core(module) else "environment"
    finding = Finding("", origin, module, "", file, one.line, "", 0, text_of(error))
    asked = _absolute(node, one) if isinstance(node, ast.ImportFrom) else module
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else [""]
    if isinstance(node, ast.Import):
        asked = next((a.name for a in node.names if a.name.startswith(module)), module)
    finding.edits = [edit_of(book, one.path, "import", node, f"{asked}:{name}") for name in names]
    return [finding]


def _of_module(error: BaseException, frames: list[Frame], book: Book) -> list[Finding] | None:
    """What a plugin imports fails in its own body, for a reason of its own: a package that is not here, for one."""
    found = _importing(frames, book)
    if found is None or found[2]:
        return None
    one, node, _ = found
    module = _absolute(node, one) if isinstance(node, ast.ImportFrom) else node.names[0].name
    file = book.relative(one.path) or ""
    finding = Finding("", "environment", module, "", file, one.line, *core_site(frames), text_of(error))
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else [""]
    finding.edits = [edit_of(book, one.path, "import", node, f"{module}:{name}") for name in names]
    return [finding]


def _missing_names(error: ImportError, one: Frame, node: Any, book: Book, match: re.Match[str]) -> list[Finding]:
    """Every name of the statement that the module does not have: each would be the next error of this statement."""
    name, partial, module = match.groups()
    file = book.relative(one.path) or ""
    loaded = sys.modules.get(module)
    names = [name]
    if loaded is not None and not partial:
        names += [a.name for a in node.names if a.name not in (name, "*") and not _has(module, a.name)]
    origin = "mismatch" if is_core(module) and not partial else "other"
    if not is_core(module) and not module.startswith(PLUGIN):
        origin = "environment"
    found = []
    for lacking in names:
        finding = Finding("", origin, f"{module}:{lacking}", "", file, one.line, "", 0, text_of(error))
        core = core_file(getattr(loaded, "__file__", "") or "")
        if core:
            finding.core_file = core
        # The module's own name as the statement has it: a package may re-export from another module. A circular
        # import is one of order: a placeholder in its place would be there in every later run.
        if not partial:
            finding.edits = [edit_of(book, one.path, "import", node, f"{_absolute(node, one)}:{lacking}")]
        found.append(finding)
    return found


def _has(module: str, name: str) -> bool:
    return hasattr(sys.modules[module], name) or f"{module}.{name}" in sys.modules


def _absolute(node: Any, one: Frame) -> str:
    if not node.level:
        return str(node.module)
    package = str(one.frame.f_globals.get("__package__", "")).split(".")
    base = package[: len(package) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


# Attributes


def _of_attribute(error: AttributeError, frames: list[Frame], book: Book) -> list[Finding] | None:
    owner, name = getattr(error, "obj", None), getattr(error, "name", None) or ""
    if not frames or not name:
        return None
    symbol, origin = _owner_symbol(owner, name)
    one = frames[-1]
    file = book.relative(one.path)
    if file:
        node = node_of(one, ast.Attribute)
        if node is not None and node.attr != name:
            node = None
        finding = Finding("", origin, symbol, "", file, one.line, "", 0, text_of(error))
        if node is not None:
            called = any(isinstance(n, ast.Call) and n.func is node for n in ast.walk(syntax(one.path)))
            finding.edits = [edit_of(book, one.path, "read-callable" if called else "read", node, name)]
        elif (
            (call := node_of(one, ast.Call)) is not None and ast.unparse(call.func) == "getattr" and len(call.args) == 2
        ):
            finding.edits = [edit_of(book, one.path, "getattr", call, name)]
        return [finding]
    if core_file(one.path):
        return _core_reads_plugin(error, owner, name, frames, book)
    # torch or another package in between: nothing of the core by name
    path, line = plugin_site(frames, book)
    if origin != "derived":
        origin = "simulator" if "ascend_sim" in one.path else "environment" if "torch" in one.path else "other"
    finding = Finding("", origin, symbol, "", path, line, *core_site(frames), text_of(error))
    for outer in reversed(frames):
        if book.relative(outer.path) and (node := node_of(outer, ast.Attribute)) is not None and node.attr == name:
            finding.edits = [edit_of(book, outer.path, "read", node, name)]
            break
    return [finding]


def _owner_symbol(owner: Any, name: str) -> tuple[str, str]:
    """Dotted symbol of an attribute that is not there, and whose fault that is."""
    if isinstance(owner, Missing) or "Missing" in type(owner).__name__:
        return f"{owner!r}.{name}", "derived"
    if isinstance(owner, types.ModuleType):
        module = owner.__name__
        origin = "mismatch" if is_core(module) else "other" if module.startswith(PLUGIN) else "environment"
        return f"{module}:{name}", origin
    cls = owner if isinstance(owner, type) else type(owner)
    for base in cls.__mro__:
        if is_core(base.__module__):
            return f"{base.__module__}:{base.__qualname__}.{name}", "mismatch"
    if owner is None:
        return f"None.{name}", "derived"
    if cls.__module__.startswith(PLUGIN):
        return f"{cls.__module__}:{cls.__qualname__}.{name}", "other"
    return f"{cls.__module__}:{cls.__qualname__}.{name}", "environment"


def _core_reads_plugin(
    error: AttributeError, owner: Any, name: str, frames: list[Frame], book: Book
) -> list[Finding] | None:
    """The core reads an attribute that a plugin's class or module does not have."""
    cls = owner if isinstance(owner, type) else type(owner)
    place = core_file(frames[-1].path) or "", frames[-1].line
    for base in cls.__mro__:
        if base.__module__.startswith(PLUGIN) and (node := class_node(base, book)):
            path = inspect.getsourcefile(base) or ""
            symbol = f"{base.__module__}:{base.__qualname__}.{name}"
            finding = Finding(
                "", "mismatch", symbol, "", book.relative(path) or "", node.lineno, *place, text_of(error)
            )
            finding.edits = [edit_of(book, path, "class-attribute", node, name)]
            return [finding]
    symbol, origin = _owner_symbol(owner, name)
    if origin == "mismatch":
        origin = "other"  # the core's own fault
    elif cls.__module__ in ("builtins", "torch") and origin == "environment":
        origin = "mismatch"  # the core was handed another kind of object than it works on
    path, line = plugin_site(frames, book)
    return [Finding("", origin, symbol, "", path, line, *place, text_of(error))]
