"""What a TypeError says: which function is called with what it does not take, whose that is, and the edit past it."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import types
from typing import TYPE_CHECKING, Any

from _doctor_edits import PLUGIN
from _doctor_frames import (
    Finding,
    class_node,
    core_file,
    core_site,
    edit_of,
    is_core,
    node_of,
    plugin_site,
    syntax,
    text_of,
)

if TYPE_CHECKING:
    from _doctor_book import Book
    from _doctor_frames import Frame

_KEYWORD = re.compile(r"^(\S+)\(\) got an unexpected keyword argument '(\w+)'")
_LACKING = re.compile(r"^(\S+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.*)$")
_TOO_MANY = re.compile(r"^(\S+)\(\) takes (?:from \d+ to )?(\d+) positional arguments? but (\d+)")
_FIELD_ORDER = re.compile(r"^non-default argument '(\w+)' follows default argument")
_ABSTRACT = re.compile(
    r"^Can't instantiate abstract class (\S+) with(?:out an implementation for)? abstract methods? (.*)$"
)


def of_call(error: TypeError, frames: list[Frame], book: Book) -> list[Finding] | None:
    text = str(error)
    if match := _ABSTRACT.match(text):
        return _of_abstract(error, frames, book, match)
    if match := _FIELD_ORDER.match(text):
        return _of_field(error, frames, book, match.group(1))
    if text.endswith("object is not callable") or text.startswith("'method' object is not"):
        return _of_kind(error, frames, book)
    problem: tuple[str, list[str]] | None = None
    if match := _KEYWORD.match(text):
        problem = "keyword", [match.group(2)]
    elif match := _LACKING.match(text):
        problem = "lacking", re.findall(r"'(\w+)'", match.group(2))
    elif match := _TOO_MANY.match(text):
        problem = "positional", [str(int(match.group(3)) - int(match.group(2)))]
    if problem is None or match is None or not frames:
        return None
    while len(frames) > 1 and not book.relative(frames[-1].path) and _hands_on(node_of(frames[-1], ast.Call)):
        frames = frames[:-1]  # a decorator's own function: who called it passed the arguments
    caller = frames[-1]
    call = node_of(caller, ast.Call)
    callee = _callee(call, caller, match.group(1), book)
    where = _defined(callee, book)
    argument = ", ".join(problem[1])
    if file := book.relative(caller.path):
        target = _dotted(callee) or match.group(1)
        core = _code_site(callee)
        made = where is not None and isinstance(where[1], ast.ClassDef)  # a generated constructor: the call is at fault
        if target.startswith(PLUGIN) and where is not None and not made:
            return _of_definition(error, problem, callee, where, (file, caller.line), book)
        if is_core(target) or (made and _of_core_base(callee)):
            origin = "mismatch"
        else:
            origin = "other" if target.startswith(PLUGIN) else "environment"
        finding = Finding("", origin, target, argument, file, caller.line, *core, text_of(error))
        if call is not None:
            kinds = {"keyword": "drop-keyword", "lacking": "add-argument", "positional": "drop-positional"}
            finding.edits = [edit_of(book, caller.path, kinds[problem[0]], call, name) for name in problem[1]]
        return [finding]
    if where is not None:
        return _of_definition(error, problem, callee, where, (core_file(caller.path) or "", caller.line), book)
    path, line = plugin_site(frames, book)
    origin = "simulator" if "ascend_sim" in caller.path else "other"
    return [Finding("", origin, _dotted(callee) or match.group(1), argument, path, line, *core_site(frames), text)]


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
    finding.edits = [edit_of(book, path, kinds[problem[0]], node, name) for name in problem[1]]
    return [finding]


def _of_field(error: TypeError, frames: list[Frame], book: Book, name: str) -> list[Finding] | None:
    """A plugin's dataclass has a field without a default after the core's fields, of which the last now has one."""
    one = next((frame for frame in reversed(frames) if book.relative(frame.path)), None)
    if one is None:
        return None
    for node in ast.walk(syntax(one.path)):
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= one.line <= node.lineno:
                symbol = f"{one.frame.f_globals['__name__']}:{node.name}.{name}"
                file = book.relative(one.path) or ""
                finding = Finding("", "mismatch", symbol, name, file, node.lineno, "", 0, text_of(error))
                finding.edits = [edit_of(book, one.path, "field-default", node, name)]
                return [finding]
    return None


def _owner(function: Any) -> Any:
    """The class that a function is defined in, by its name; None where there is none."""
    owner = function.__qualname__.rpartition(".")[0]
    module = sys.modules.get(function.__module__)
    return functools.reduce(lambda found, part: getattr(found, part, None), owner.split("."), module)


def _of_core_base(constructor: Any) -> bool:
    """Whether the class of a generated constructor has fields from a class of the core."""
    cls = _owner(constructor)
    return any(is_core(base.__module__) and vars(base).get("__annotations__") for base in getattr(cls, "__mro__", ()))


def _hands_on(call: ast.Call | None) -> bool:
    """Whether a call passes all that its own function got, `f(*args, **kwargs)`, and nothing else."""
    return (
        call is not None
        and [type(argument) for argument in call.args] == [ast.Starred]
        and [keyword.arg for keyword in call.keywords] == [None]
    )


def _of_kind(error: TypeError, frames: list[Frame], book: Book) -> list[Finding] | None:
    """The core calls what a plugin's class has as a property or a value, or takes its method for a value."""
    one = frames[-1]
    node = node_of(one, (ast.Call, ast.Subscript))
    member = node.func if isinstance(node, ast.Call) else node.value if node is not None else None
    if not isinstance(member, ast.Attribute) or not core_file(one.path):
        return None
    owner = _value(member.value, one)
    for base in type(owner).__mro__:
        if not base.__module__.startswith(PLUGIN) or (made := class_node(base, book)) is None:
            continue
        path = getattr(sys.modules[base.__module__], "__file__", "") or ""
        symbol = f"{base.__module__}:{base.__qualname__}.{member.attr}"
        inner = next((n for n in made.body if isinstance(n, ast.FunctionDef) and n.name == member.attr), None)
        line = (inner or made).lineno
        place = core_file(one.path) or "", one.line
        finding = Finding("", "mismatch", symbol, "", book.relative(path) or "", line, *place, text_of(error))
        if inner is not None:
            kind = "callable-property" if isinstance(node, ast.Call) else "callable-value"
            finding.edits = [edit_of(book, path, kind, inner, member.attr)]
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
                    "", "mismatch", symbol, "", book.relative(path) or "", node.lineno, *core_site(frames), ""
                )
                finding.message = text_of(error)
                finding.edits = [edit_of(book, path, "stub", node, lacking)]
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
        for node in ast.walk(syntax(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                if code.co_firstlineno in (first, node.lineno):
                    return path, node
        return None
    module = sys.modules.get(function.__module__)
    path = getattr(module, "__file__", None) or ""
    if book.relative(path) and code.co_filename == "<string>":
        cls = _owner(function)
        if isinstance(cls, type) and (node := class_node(cls, book)):
            return path, node
    return None
