"""The outline of a module: which names it binds, its classes with their members, and words for later searches.

Made once for every file of a tree, in several processes, and small enough to keep; the syntax tree itself is dropped
and parsed again for the few modules whose bodies are looked into.
"""

from __future__ import annotations

import ast
import os
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from vllm_pairs.doctor import workers
from vllm_pairs.doctor.conditions import Conditions, is_type_checking, prune
from vllm_pairs.doctor.nodes import scan, uncollected, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm_pairs.doctor.sources import Tree

Bound = Literal["class", "def", "import", "value"]
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CHUNK = 48  # files a process takes at a time


@dataclass(slots=True)
class Name:
    """What a module binds to a name: an import has its target (module, attribute or None for the module itself).

    `several` means that it is bound more than once, so that only its existence is certain.
    """

    kind: Bound
    line: int
    target: tuple[str, str | None] | None = None
    several: bool = False


@dataclass(slots=True)
class ClassOutline:
    """A class: its bases as written (`?` for what is no dotted name), members of the body, attributes set on self."""

    qualname: str
    line: int
    bases: tuple[str, ...]
    members: dict[str, int]
    instance: frozenset[str]
    dynamic: bool  # has __getattr__ or __getattribute__


@dataclass(slots=True)
class Words:
    """Names found in bodies: called, stored on other objects, stored on self."""

    calls: set[str]
    stores: set[str]
    instance: set[str]


@dataclass(slots=True)
class Outline:
    """A module. `lazy`: names its `__getattr__` answers, None without one; `open` where it may have any name."""

    module: str
    names: dict[str, Name] = field(default_factory=dict)
    typing_names: dict[str, Name] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    lazy: frozenset[str] | None = None
    open: bool = False
    classes: dict[str, ClassOutline] = field(default_factory=dict)
    calls: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()
    problem: tuple[int, str] | None = None


def parse(source: bytes, path: str) -> ast.Module:
    """A file's syntax tree; SyntaxError (null bytes, encodings and too deep nesting, too) names line and cause."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            return ast.parse(source, path)
        except SyntaxError:
            raise
        except (ValueError, LookupError, RecursionError, MemoryError) as error:
            raise SyntaxError(f"{error}" or type(error).__name__, (path, 1, 1, "")) from error


def absolute(module: str, is_package: bool, node: ast.ImportFrom) -> str:
    """The module an import-from names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    keep = len(parts) - node.level + (1 if is_package else 0)
    return ".".join([*parts[: max(keep, 0)], *([node.module] if node.module else [])])


def outline(module: str, is_package: bool, tree: ast.Module) -> Outline:
    """Read one (pruned) syntax tree."""
    made = Outline(module)
    found = Words(set(), set(), set())
    _read_block(made, is_package, tree.body, made.names, found)
    made.calls, made.stores = frozenset(found.calls), frozenset(found.stores)
    if (hook := made.names.get("__getattr__")) is not None and hook.kind == "def":
        made.lazy = _lazy_names(tree)
        made.open = made.lazy is None
    return made


def _bind(names: dict[str, Name], name: str, bound: Name) -> None:
    if (before := names.get(name)) is not None:
        same = before.kind == bound.kind == "import" and before.target == bound.target  # `import a.b`, `import a.c`
        bound.several = before.several or not same
    names[name] = bound


def _read_block(made: Outline, is_package: bool, body: list[ast.stmt], names: dict[str, Name], found: Words) -> None:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                _bind(names, alias.asname or whole, Name("import", node.lineno, (whole, None)))
        elif isinstance(node, ast.ImportFrom):
            source = absolute(made.module, is_package, node)
            for alias in node.names:
                if alias.name == "*":
                    made.stars.append(source)
                else:
                    bound = Name("import", node.lineno, (source, alias.name))
                    _bind(names, alias.asname or alias.name, bound)
        elif isinstance(node, _DEFS):
            _bind(names, node.name, Name("def", node.lineno))
            scan(node, "", found)
        elif isinstance(node, ast.ClassDef):
            _bind(names, node.name, Name("class", node.lineno))
            _read_class(made, node, node.name, found)
        elif isinstance(node, ast.If) and is_type_checking(node.test):
            _read_block(made, is_package, node.body, made.typing_names, found)
            _read_block(made, is_package, node.orelse, names, found)
        else:
            for name in _stored(node):
                _bind(names, name, Name("value", node.lineno))
            blocks = list(_blocks(node))
            if not blocks:
                scan(node, "", found)
            for block in blocks:
                _read_block(made, is_package, block, names, found)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if isinstance(block := getattr(node, name, None), list):
            yield block
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


def _stored(node: ast.stmt) -> Iterator[str]:
    """Names a statement binds itself (assignment, loop target, with ... as), its inner blocks left out."""
    heads: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        heads = list(node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign) or type(node).__name__ == "TypeAlias":
        if not isinstance(node, ast.AnnAssign) or node.value is not None:
            heads = [node.target if isinstance(node, ast.AnnAssign | ast.AugAssign) else node.name]  # type: ignore[attr-defined]
    elif isinstance(node, ast.For | ast.AsyncFor):
        heads = [node.target]
    elif isinstance(node, ast.With | ast.AsyncWith):
        heads = [item.optional_vars for item in node.items if item.optional_vars is not None]
    for head in heads:
        for part in walk(head):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id


def dotted(node: ast.expr) -> str:
    """A dotted name as text, generics without their arguments; "?" for anything else."""
    if isinstance(node, ast.Subscript):
        return dotted(node.value)
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def _read_class(made: Outline, node: ast.ClassDef, qualname: str, found: Words) -> None:
    members: dict[str, int] = {}
    own = Words(found.calls, found.stores, set())
    instance = own.instance

    def read(body: list[ast.stmt]) -> None:
        for part in body:
            if isinstance(part, _DEFS):
                members[part.name] = part.lineno
                arguments = [*part.args.posonlyargs, *part.args.args]
                scan(part, arguments[0].arg if arguments else "", own)
            elif isinstance(part, ast.ClassDef):
                members[part.name] = part.lineno
                _read_class(made, part, f"{qualname}.{part.name}", found)
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                members[part.target.id] = part.lineno
                if part.target.id == "__slots__":
                    continue
            elif isinstance(part, ast.Import | ast.ImportFrom):
                for alias in part.names:
                    members[alias.asname or alias.name.partition(".")[0]] = part.lineno
            else:
                for name in _stored(part):
                    members[name] = part.lineno
                for block in _blocks(part):
                    read(block)

    read(node.body)
    dynamic = "__getattr__" in members or "__getattribute__" in members
    bases = tuple(dotted(base) for base in node.bases)
    bases += tuple(f"metaclass={dotted(word.value)}" for word in node.keywords if word.arg == "metaclass")
    made.classes[qualname] = ClassOutline(qualname, node.lineno, bases, members, frozenset(instance), dynamic)


def _lazy_names(tree: ast.Module) -> frozenset[str] | None:
    """The names a module's `__getattr__` knows: keys of the module's dicts and texts it compares with; None: any."""
    tables = {
        target.id: part.value
        for part in walk(tree)
        if isinstance(part, ast.Assign | ast.AnnAssign) and isinstance(part.value, ast.Dict)
        for target in (part.targets if isinstance(part, ast.Assign) else [part.target])
        if isinstance(target, ast.Name)
    }
    hook = next(part for part in walk(tree) if isinstance(part, _DEFS) and part.name == "__getattr__")
    names: set[str] = set()
    found = False
    for part in walk(hook):
        if isinstance(part, ast.Name) and part.id in tables:
            found = True
            for key in tables[part.id].keys:
                if not isinstance(key, ast.Constant):
                    return None  # built from other tables
                names.add(str(key.value))
        elif isinstance(part, ast.Compare) and isinstance(part.comparators[0], ast.Constant):
            found = True
            names.add(str(part.comparators[0].value))
    return frozenset(names) if found else None


Job = tuple[str, bool, str, bytes]


def read_chunk(
    jobs: list[Job], core_version: str | None, keep: dict[str, ast.Module | None] | None = None
) -> list[Outline]:
    """The outlines of some files."""
    with uncollected():
        return [_read(job, core_version, keep) for job in jobs]


def _read(job: Job, core_version: str | None, keep: dict[str, ast.Module | None] | None) -> Outline:
    module, is_package, path, source = job
    try:
        tree = prune_if(parse(source, path), source, core_version)
        made = outline(module, is_package, tree)
    except (SyntaxError, RecursionError) as error:
        line = getattr(error, "lineno", None) or 1
        return Outline(module, open=True, problem=(line, f"cannot be parsed: {getattr(error, 'msg', error)}"))
    if keep is not None:
        keep[module] = tree
    return made


def prune_if(tree: ast.Module, source: bytes, core_version: str | None) -> ast.Module:
    """Prune a tree whose text asks for a version at all: most do not, and the walk is not free."""
    if any(word in source for word in (b"version_is(", b"vllm.__version__", b"sys.version_info")):
        return prune(tree, Conditions(core_version))
    return tree


def outlines(
    tree: Tree,
    core_version: str | None,
    processes: int | None = None,
    step: Callable[[int], None] = lambda n: None,
    keep: dict[str, ast.Module | None] | None = None,
) -> dict[str, Outline]:
    """The outline of every module; `step` is told how many files were read since it was last called.

    With `keep` one process reads them all and leaves their syntax trees there.
    """
    jobs = [
        (module, tree.is_package(module), tree.files[module], text) for module, text in sorted(tree.sources.items())
    ]
    made = {module: Outline(module, open=True) for module in tree.files if module not in tree.sources}
    chunks = [jobs[start : start + _CHUNK] for start in range(0, len(jobs), _CHUNK)]
    count = processes if processes is not None else min(4, os.cpu_count() or 1)
    if count > 1 and len(chunks) > 4 and keep is None:
        for chunk in workers.each(chunks, core_version, count):
            made.update((one.module, one) for one in chunk)
            step(len(chunk))
    else:
        for jobs in chunks:
            made.update((one.module, one) for one in read_chunk(jobs, core_version, keep))
            step(len(jobs))
    return made
