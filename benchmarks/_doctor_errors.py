"""What an exception says: which symbol of the core or the plugin, at which site, and the edit that goes past it."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _doctor_edits import PLUGIN, Book, Edit, Missing, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = (ImportError, TypeError, AttributeError)
_IMPORT_NAME = re.compile(r"cannot import name '([^']+)' from (partially initialized module )?'([^']+)'")
_KEYWORD = re.compile(r"^(\S+)\(\) got an unexpected keyword argument '(\w+)'")
_LACKING = re.compile(r"^(\S+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.*)$")
_TOO_MANY = re.compile(r"^(\S+)\(\) takes (?:from \d+ to )?(\d+) positional arguments? but (\d+)")
_FIELD_ORDER = re.compile(r"^non-default argument '(\w+)' follows default argument")
_ABSTRACT = re.compile(
    r"^Can't instantiate abstract class (\S+) with(?:out an implementation for)? abstract methods? (.*)$"
)


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


def classify(error: BaseException, book: Book) -> list[Finding]:
    """The failures that an exception shows, the first of them with the edits that go past it."""
    error = _root(error)
    frames = list(_frames(error))
    kind = type(error).__name__
    found: list[Finding] | None = None
    if isinstance(error, ImportError):
        found = _of_import(error, frames, book)
    elif isinstance(error, AttributeError):
        found = _of_attribute(error, frames, book)
    elif isinstance(error, TypeError):
        found = _of_call(error, frames, book)
    elif type(error).__name__ == "NotSimulatedError":
        found = _of_absent(error, frames, book)
    if found is None:
        found = _of_module(error, frames, book)
    if found is None:
        path, line = _plugin_site(frames, book)
        found = [Finding(kind, _stray_origin(error, frames), "", "", path, line, *_core_site(frames), text_of(error))]
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
    for node in ast.walk(_tree(one.path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and place_of(node.value) == one.place:
            finding = Finding("", "simulator", ast.unparse(node.value.func), "", file, one.line, "", 0, text_of(error))
            finding.edits = [_edit(book, one.path, "skip", node, f"{file}:{node.lineno}")]
            return [finding]
    return None


def _skipped(frames: list[Frame], book: Book) -> Edit | None:
    """The edit that leaves out the statement of a module, outside every function, that an error came from."""
    one = next((frame for frame in reversed(frames) if book.relative(frame.path)), None)
    if one is None or one.frame.f_code.co_name != "<module>":
        return None
    for statement in _tree(one.path).body:
        first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
        if first <= one.line <= (statement.end_lineno or 0) and isinstance(
            statement, (ast.Expr, ast.Assign, ast.ClassDef)
        ):
            return _edit(book, one.path, "skip", statement, f"{book.relative(one.path)}:{statement.lineno}")
    return None


def text_of(error: BaseException, most: int = 400) -> str:
    """An error's text without paths of this machine: rows are recorded."""
    return re.sub(r" ?\(?/[\w./+-]+\.(?:py|so)\)?", "", str(error).strip())[:most]


def _root(error: BaseException) -> BaseException:
    """The first error of a chain: vLLM wraps what a worker raised."""
    while not isinstance(error, KINDS) and (error.__cause__ or error.__context__) is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error


def _frames(error: BaseException) -> Iterator[Frame]:
    """Outermost first, the import system's own left out."""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith("<frozen importlib"):
            line, end, col, end_col = list(code.co_positions())[trace.tb_lasti // 2]
            whole = None not in (line, end, col, end_col)
            place = (line, col, end, end_col) if whole else None
            yield Frame(code.co_filename, trace.tb_lineno, place, trace.tb_frame)  # type: ignore[arg-type]
        trace = trace.tb_next


def core_file(path: str) -> str | None:
    """A file of the core relative to its tree; None for another file."""
    found = re.search(r"/(vllm/[^<]*\.py)$", path)
    return found.group(1) if found and ("site-packages/vllm/" in path or "/core-" in path) else None


def _plugin_site(frames: list[Frame], book: Book) -> tuple[str, int]:
    for one in reversed(frames):
        if file := book.relative(one.path):
            return file, one.line
    return "", 0


def _core_site(frames: list[Frame]) -> tuple[str, int]:
    for one in reversed(frames):
        if file := core_file(one.path):
            return file, one.line
    return "", 0


def _stray_origin(error: BaseException, frames: list[Frame]) -> str:
    if "<missing " in str(error) or "Missing" in str(error):
        return "derived"
    if frames and "ascend_sim" in frames[-1].path:
        return "simulator"
    return "other"


@functools.cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_bytes())


@functools.cache
def _at(path: str) -> dict[tuple[int, int, int, int], list[ast.AST]]:
    """Nodes of a file by place."""
    found: dict[tuple[int, int, int, int], list[ast.AST]] = {}
    for node in ast.walk(_tree(path)):
        if place := place_of(node):
            found.setdefault(place, []).append(node)
    return found


def _node(one: Frame, kinds: Any) -> Any:
    nodes = _at(one.path).get(one.place, []) if one.place else []
    return next((node for node in nodes if isinstance(node, kinds)), None)


def _edit(book: Book, path: str, kind: str, node: ast.AST, name: str) -> Edit:
    place = place_of(node)
    assert place is not None
    return Edit(book.relative(path) or "", kind, *place, name)


def is_core(name: str) -> bool:
    """Whether a dotted name is the core's."""
    return re.split(r"[.:/]", name)[0] == "vllm"


# Imports


def _of_import(error: ImportError, frames: list[Frame], book: Book) -> list[Finding] | None:
    index = next((i for i in reversed(range(len(frames))) if book.relative(frames[i].path)), None)
    if index is None:
        return None
    one = frames[index]
    node = _node(one, (ast.Import, ast.ImportFrom))
    if node is None:
        return None
    file = book.relative(one.path) or ""
    if index != len(frames) - 1:
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
    finding.edits = [_edit(book, one.path, "import", node, f"{asked}:{name}") for name in names]
    return [finding]


def _of_module(error: BaseException, frames: list[Frame], book: Book) -> list[Finding] | None:
    """What a plugin imports fails in its own body, for a reason of its own: a package that is not here, for one."""
    index = next((i for i in reversed(range(len(frames))) if book.relative(frames[i].path)), None)
    if index is None or index == len(frames) - 1:
        return None
    one = frames[index]
    node = _node(one, (ast.Import, ast.ImportFrom))
    if node is None or frames[index + 1].frame.f_code.co_name != "<module>":
        return None
    module = _absolute(node, one) if isinstance(node, ast.ImportFrom) else node.names[0].name
    file = book.relative(one.path) or ""
    finding = Finding("", "environment", module, "", file, one.line, *_core_site(frames), text_of(error))
    names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else [""]
    finding.edits = [_edit(book, one.path, "import", node, f"{module}:{name}") for name in names]
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
            finding.edits = [_edit(book, one.path, "import", node, f"{_absolute(node, one)}:{lacking}")]
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
        node = _node(one, ast.Attribute)
        if node is not None and node.attr != name:
            node = None
        finding = Finding("", origin, symbol, "", file, one.line, "", 0, text_of(error))
        if node is not None:
            called = any(isinstance(n, ast.Call) and n.func is node for n in ast.walk(_tree(one.path)))
            finding.edits = [_edit(book, one.path, "read-callable" if called else "read", node, name)]
        return [finding]
    if core_file(one.path):
        return _core_reads_plugin(error, owner, name, frames, book)
    # torch or another package in between: nothing of the core by name
    path, line = _plugin_site(frames, book)
    if origin != "derived":
        origin = "simulator" if "ascend_sim" in one.path else "environment" if "torch" in one.path else "other"
    finding = Finding("", origin, symbol, "", path, line, *_core_site(frames), text_of(error))
    for outer in reversed(frames):
        if book.relative(outer.path) and (node := _node(outer, ast.Attribute)) is not None and node.attr == name:
            finding.edits = [_edit(book, outer.path, "read", node, name)]
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
            finding.edits = [_edit(book, path, "class-attribute", node, name)]
            return [finding]
    symbol, origin = _owner_symbol(owner, name)
    path, line = _plugin_site(frames, book)
    return [Finding("", "other" if origin == "mismatch" else origin, symbol, "", path, line, *place, text_of(error))]


def class_node(cls: type, book: Book) -> ast.ClassDef | None:
    """The definition of a plugin's class."""
    path = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    if not book.relative(path):
        return None
    name = cls.__name__
    nodes = [n for n in ast.walk(_tree(path)) if isinstance(n, ast.ClassDef) and n.name == name]
    return nodes[-1] if nodes else None


# Calls


def _of_call(error: TypeError, frames: list[Frame], book: Book) -> list[Finding] | None:
    text = str(error)
    if match := _ABSTRACT.match(text):
        return _of_abstract(error, frames, book, match)
    if match := _FIELD_ORDER.match(text):
        return _of_field(error, frames, book, match.group(1))
    if text.endswith("object is not callable"):
        return _of_uncallable(error, frames, book)
    problem: tuple[str, list[str]] | None = None
    if match := _KEYWORD.match(text):
        problem = "keyword", [match.group(2)]
    elif match := _LACKING.match(text):
        problem = "lacking", re.findall(r"'(\w+)'", match.group(2))
    elif match := _TOO_MANY.match(text):
        problem = "positional", [str(int(match.group(3)) - int(match.group(2)))]
    if problem is None or match is None or not frames:
        return None
    caller = frames[-1]
    call = _node(caller, ast.Call)
    callee = _callee(call, caller, match.group(1), book)
    where = _defined(callee, book)
    argument = ", ".join(problem[1])
    if file := book.relative(caller.path):
        target = _dotted(callee) or match.group(1)
        core = _code_site(callee)
        if target.startswith(PLUGIN) and where is not None:
            return _of_definition(error, problem, callee, where, (file, caller.line), book)
        origin = "mismatch" if is_core(target) else "other" if target.startswith(PLUGIN) else "environment"
        finding = Finding("", origin, target, argument, file, caller.line, *core, text_of(error))
        if call is not None:
            kinds = {"keyword": "drop-keyword", "lacking": "add-argument", "positional": "drop-positional"}
            finding.edits = [_edit(book, caller.path, kinds[problem[0]], call, name) for name in problem[1]]
        return [finding]
    if where is not None:
        return _of_definition(error, problem, callee, where, (core_file(caller.path) or "", caller.line), book)
    path, line = _plugin_site(frames, book)
    origin = "simulator" if "ascend_sim" in caller.path else "other"
    return [Finding("", origin, _dotted(callee) or match.group(1), argument, path, line, *_core_site(frames), text)]


def _of_definition(
    error: TypeError, problem: tuple[str, list[str]], callee: Any, where: Any, core: tuple[str, int], book: Book
) -> list[Finding]:
    """A plugin's function does not take what it is called with."""
    path, node = where
    symbol = _dotted(callee) or node.name
    origin = "mismatch" if is_core(core[0]) else "other"
    file = book.relative(path) or ""
    finding = Finding("", origin, symbol, ", ".join(problem[1]), file, node.lineno, *core, text_of(error))
    if isinstance(node, ast.ClassDef):
        return [finding]  # a generated __init__
    kinds = {"keyword": "accept-keyword", "lacking": "default", "positional": "accept-positional"}
    finding.edits = [_edit(book, path, kinds[problem[0]], node, name) for name in problem[1]]
    return [finding]


def _of_field(error: TypeError, frames: list[Frame], book: Book, name: str) -> list[Finding] | None:
    """A plugin's dataclass has a field without a default after the core's fields, of which the last now has one."""
    one = next((frame for frame in reversed(frames) if book.relative(frame.path)), None)
    if one is None:
        return None
    for node in ast.walk(_tree(one.path)):
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= one.line <= node.lineno:
                symbol = f"{one.frame.f_globals['__name__']}:{node.name}.{name}"
                file = book.relative(one.path) or ""
                finding = Finding("", "mismatch", symbol, name, file, node.lineno, "", 0, text_of(error))
                finding.edits = [_edit(book, one.path, "field-default", node, name)]
                return [finding]
    return None


def _of_uncallable(error: TypeError, frames: list[Frame], book: Book) -> list[Finding] | None:
    """The core calls what a plugin's class has as a property or a value."""
    one = frames[-1]
    call = _node(one, ast.Call)
    if call is None or not isinstance(call.func, ast.Attribute) or not core_file(one.path):
        return None
    owner = _value(call.func.value, one)
    for base in type(owner).__mro__:
        if not base.__module__.startswith(PLUGIN) or (node := class_node(base, book)) is None:
            continue
        path = getattr(sys.modules[base.__module__], "__file__", "") or ""
        name = call.func.attr
        symbol = f"{base.__module__}:{base.__qualname__}.{name}"
        inner = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)
        line = (inner or node).lineno
        place = core_file(one.path) or "", one.line
        finding = Finding("", "mismatch", symbol, "", book.relative(path) or "", line, *place, text_of(error))
        if inner is not None:
            finding.edits = [_edit(book, path, "callable-property", inner, name)]
        return [finding]
    return None


def _value(expression: ast.expr, one: Frame) -> Any:
    """What a chain of names is in a frame; None where it is anything else or cannot be read."""
    if not all(isinstance(n, (ast.Name, ast.Attribute, ast.expr_context)) for n in ast.walk(expression)):
        return None
    try:
        code = compile(ast.Expression(expression), "<read>", "eval")
        return eval(code, one.frame.f_globals, one.frame.f_locals)
    except Exception:  # anything may be behind an attribute
        return None


def _of_abstract(error: TypeError, frames: list[Frame], book: Book, match: re.Match[str]) -> list[Finding] | None:
    names = re.findall(r"\w+", match.group(2).replace("'", " ").replace(",", " "))
    for name, module in list(sys.modules.items()):
        cls = getattr(module, match.group(1), None) if name.startswith(PLUGIN) else None
        if isinstance(cls, type) and cls.__module__ == name and (node := class_node(cls, book)):
            path = module.__file__ or ""
            found = []
            for lacking in names:
                symbol = f"{name}:{cls.__qualname__}.{lacking}"
                finding = Finding(
                    "", "mismatch", symbol, "", book.relative(path) or "", node.lineno, *_core_site(frames), ""
                )
                finding.message = text_of(error)
                finding.edits = [_edit(book, path, "stub", node, lacking)]
                found.append(finding)
            return found
    return None


def _callee(call: ast.Call | None, caller: Frame, qualname: str, book: Book) -> Any:
    """What was called: the callee's expression evaluated in the caller's frame, else the function of that name."""
    if call is not None:
        found = _plain(_value(call.func, caller))
        if (
            getattr(found, "__qualname__", None) == qualname
            or getattr(found, "__name__", None) == qualname.split(".")[-1]
        ):
            return found
    owner, _, _last = qualname.rpartition(".")
    for start in (PLUGIN, "vllm"):  # a plugin's function of that name first: it replaced the core's
        for name, module in list(sys.modules.items()):
            if name == start or name.startswith(start + "."):
                found = module
                for part in qualname.split("."):
                    found = getattr(found, part, None)
                found = _plain(found)
                defined = getattr(found, "__module__", None) == name
                if found is not None and (defined or owner) and getattr(found, "__qualname__", None) == qualname:
                    return found
    return _inner(qualname, book) if "<locals>" in qualname else None


def _inner(qualname: str, book: Book) -> Any:
    """A function that another one makes: when its error arrives it may be bound to nothing, e.g. after a `with`."""
    for file, code in book.inner_codes(qualname):
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        cells = tuple(types.CellType() for _ in code.co_freevars)
        made = types.FunctionType(code, {"__name__": module}, code.co_name, None, cells)
        made.__qualname__ = qualname
        return made
    return None


def _plain(function: Any) -> Any:
    """The Python function behind a callable: unbound, unwrapped, a class's constructor."""
    for _ in range(20):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, type):
            made = inspect.getattr_static(function, "__init__")
            function = made if isinstance(made, types.FunctionType) else function.__new__
        elif isinstance(getattr(function, "__wrapped__", None), types.FunctionType):
            function = function.__wrapped__
        elif isinstance(call := vars(type(function)).get("__call__"), types.FunctionType):
            function = call
        else:
            break
    return function


def _dotted(function: Any) -> str:
    if not isinstance(function, types.FunctionType):
        return ""
    return f"{function.__module__}:{function.__qualname__}"


def _code_site(function: Any) -> tuple[str, int]:
    code = getattr(function, "__code__", None)
    return (core_file(code.co_filename) or "", code.co_firstlineno) if code else ("", 0)


def _defined(function: Any, book: Book) -> tuple[str, Any] | None:
    """File and definition of a plugin's function, also of a constructor that a dataclass made."""
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    path = code.co_filename
    if book.relative(path):
        for node in ast.walk(_tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if code.co_firstlineno in (first, node.lineno):
                    return path, node
        return None
    module = sys.modules.get(function.__module__)
    path = getattr(module, "__file__", None) or ""
    if book.relative(path) and code.co_filename == "<string>":
        owner = function.__qualname__.rpartition(".")[0]
        cls = functools.reduce(lambda o, part: getattr(o, part, None), owner.split("."), module)
        if isinstance(cls, type) and (node := class_node(cls, book)):
            return path, node
    return None
