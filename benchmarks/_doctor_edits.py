"""Repairs of plugin sources as small recorded edits of their syntax trees.

The files stay as they are and every node keeps its line and column, so that a traceback of an edited module names the
released source. An edit repairs one site only: another site with the same fault fails for itself and is counted.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PLUGIN = "vllm_ascend"


@dataclass(frozen=True)
class Edit:
    """One repair: what is done to the node from `line`, `col` to `end_line`, `end_col` (as `ast` counts them).

    `name` is the imported name, argument or attribute it is about; for positional arguments their number.
    """

    file: str  # relative to the tree, e.g. vllm_ascend/platform.py
    kind: str
    line: int
    col: int
    end_line: int
    end_col: int
    name: str

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where the node stands."""
        return self.line, self.col, self.end_line, self.end_col


def apply(tree: ast.Module, edits: Iterable[Edit]) -> ast.Module:
    """The tree with the edits in it; raises LookupError when a site is not in it."""
    by_place: dict[tuple[int, int, int, int], list[Edit]] = {}
    for edit in edits:
        by_place.setdefault(edit.place, []).append(edit)
    editor = _Editor(by_place)
    edited = editor.visit(tree)
    if left := set(by_place) - editor.seen:
        raise LookupError(f"no node at {sorted(left)[0]} for {by_place[sorted(left)[0]]}")
    return ast.fix_missing_locations(edited)  # type: ignore[no-any-return]


class _Editor(ast.NodeTransformer):
    """Changes the nodes that edits name; a node may carry several edits."""

    def __init__(self, by_place: dict[tuple[int, int, int, int], list[Edit]]) -> None:
        self.by_place = by_place
        self.seen: set[tuple[int, int, int, int]] = set()

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        place = place_of(node)
        result: Any = node
        for edit in self.by_place.get(place, ()) if place else ():
            handler = _HANDLERS[edit.kind]
            if isinstance(node, handler[0]):
                result = handler[1](result, edit)
                self.seen.add(edit.place)
        return result


def place_of(node: ast.AST) -> tuple[int, int, int, int] | None:
    """Line, column, end line, end column; None for a node that has no place."""
    if (end := getattr(node, "end_lineno", None)) is None:
        return None
    return node.lineno, node.col_offset, end, node.end_col_offset  # type: ignore[attr-defined]


def _missing(name: str) -> ast.expr:
    return ast.parse(f"__doctor_missing__({name!r})", mode="eval").body


def _import(node: Any, edit: Edit) -> Any:
    """Bind a placeholder in place of one imported name; `name` is "module:name", name empty for the module itself."""
    statements = node if isinstance(node, list) else [node]
    module, _, name = edit.name.partition(":")
    done: list[ast.stmt] = []
    for statement in statements:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            done.append(statement)
            continue
        kept = []
        for alias in statement.names:
            gone = alias.name == name if name else isinstance(statement, ast.ImportFrom) or alias.name == module
            if not gone:
                kept.append(alias)
                continue
            if alias.name == "*":
                done.append(_placed(ast.Pass(), statement))
                continue
            bound = alias.asname or alias.name.partition(".")[0]
            full = f"{module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else alias.name
            if isinstance(statement, ast.Import) and not alias.asname and "." in alias.name:
                value = ast.parse(f"__doctor_partial__({alias.name!r})", mode="eval").body
            else:
                value = _missing(full)
            assign = ast.Assign([ast.Name(bound, ast.Store())], value)
            done.append(_placed(assign, statement))
        if kept:
            statement.names = kept
            done.append(statement)
    return done


def _placed(new: ast.AST, old: ast.AST) -> Any:
    """`new`, it and all inside it, at the place of `old`."""
    for inner in ast.walk(new):
        if "lineno" in inner._attributes:
            ast.copy_location(inner, old)
    return new


def _drop_keyword(node: ast.Call, edit: Edit) -> ast.Call:
    node.keywords = [keyword for keyword in node.keywords if keyword.arg != edit.name]
    if any(keyword.arg is None for keyword in node.keywords):
        for keyword in node.keywords:
            if keyword.arg is None:
                source = f"{{k: v for k, v in (0).items() if k != {edit.name!r}}}"
                made = ast.parse(source, mode="eval").body
                made.generators[0].iter.func.value = keyword.value  # type: ignore[attr-defined]
                keyword.value = _around(made, keyword.value, keyword.value)
    return node


def _drop_positional(node: ast.Call, edit: Edit) -> ast.Call:
    node.args = node.args[: len(node.args) - int(edit.name)]
    return node


def _add_argument(node: ast.Call, edit: Edit) -> ast.Call:
    """Pass a required argument by name: what the caller has under that name, else None."""
    source = f"__doctor_guess__({edit.name!r}, locals())"
    node.keywords.append(_placed(ast.keyword(edit.name, ast.parse(source, mode="eval").body), node))
    return node


def _around(made: ast.expr, kept: ast.expr, at: ast.AST) -> ast.expr:
    """`made` at the place of `at`, all but the released code `kept` inside it, which stays where it is."""
    inside = set(ast.walk(kept))
    for inner in ast.walk(made):
        if inner not in inside and "lineno" in inner._attributes:
            ast.copy_location(inner, at)
    return made


def _read(node: ast.Attribute, edit: Edit) -> ast.expr:
    """`x.name` becomes a read that does not fail: None, or a placeholder where it is called or `x` is a module."""
    made = ast.parse(f"__doctor_read__(0, {edit.name!r}, {edit.kind == 'read-callable'})", mode="eval").body
    made.args[0] = node.value  # type: ignore[attr-defined]
    return _around(made, node.value, node)


def _getattr(node: ast.Call, edit: Edit) -> ast.Call:
    """`getattr(x, name)` gives None for this one name; a loop may ask for others, which have to fail for themselves."""
    node.func = _placed(ast.Name("__doctor_getattr__", ast.Load()), node)
    node.args.append(_placed(ast.Constant(edit.name), node))
    return node


def _accept_keyword(node: ast.FunctionDef, edit: Edit) -> ast.FunctionDef:
    """Take this one keyword, and no other: the next one that the core passes has to fail for itself."""
    node.args.kwonlyargs.append(_placed(ast.arg(edit.name), node))
    node.args.kw_defaults.append(_placed(ast.Constant(None), node))
    return node


def _accept_positional(node: ast.FunctionDef, edit: Edit) -> ast.FunctionDef:
    if node.args.vararg is None:
        node.args.vararg = _placed(ast.arg("__doctor_positional"), node)
    return node


def _default(node: ast.FunctionDef, edit: Edit) -> ast.FunctionDef:
    """Give a required parameter, and those after it, the default None."""
    arguments = node.args
    for i, argument in enumerate(arguments.kwonlyargs):
        if argument.arg == edit.name and arguments.kw_defaults[i] is None:
            arguments.kw_defaults[i] = _placed(ast.Constant(None), node)
            return node
    every = [*arguments.posonlyargs, *arguments.args]
    index = next((i for i, argument in enumerate(every) if argument.arg == edit.name), None)
    if index is not None:
        wanted = len(every) - index
        have = len(arguments.defaults)
        arguments.defaults = [_placed(ast.Constant(None), node) for _ in range(wanted - have)] + arguments.defaults
    return node


def _callable_property(node: ast.FunctionDef, edit: Edit) -> ast.FunctionDef:
    """A property whose value can also be called, as the core does."""
    node.decorator_list.append(_placed(ast.Name("__doctor_callable__", ast.Load()), node))
    return node


def _callable_value(node: ast.FunctionDef, edit: Edit) -> ast.FunctionDef:
    """A method whose value can be read without a call, as the core does."""
    node.decorator_list.append(_placed(ast.Name("property", ast.Load()), node))
    return _callable_property(node, edit)


def _field_default(node: ast.ClassDef, edit: Edit) -> ast.ClassDef:
    """Give a dataclass field the default None: its base now ends with one that has a default."""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == edit.name:
            statement.value = _placed(ast.Constant(None), statement)
    return node


def _skip(node: Any, edit: Edit) -> Any:
    """A statement of a module that has no other repair: what it would bind is a placeholder."""
    if isinstance(node, ast.ClassDef):
        targets: list[ast.expr] = [ast.Name(node.name, ast.Store())]
    elif isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets):
        targets = node.targets
    else:
        return _placed(ast.Pass(), node)
    return _placed(ast.Assign(targets, _missing(edit.name)), node)


def _class_attribute(node: ast.ClassDef, edit: Edit) -> ast.ClassDef:
    node.body.append(_placed(ast.parse(f"{edit.name} = None").body[0], node))
    return node


def _stub(node: ast.ClassDef, edit: Edit) -> ast.ClassDef:
    node.body.append(_placed(ast.parse(f"def {edit.name}(self, *args, **kwargs): return None").body[0], node))
    return node


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_HANDLERS: dict[str, tuple[Any, Callable[[Any, Edit], Any]]] = {
    "import": ((ast.Import, ast.ImportFrom), _import),
    "drop-keyword": (ast.Call, _drop_keyword),
    "drop-positional": (ast.Call, _drop_positional),
    "add-argument": (ast.Call, _add_argument),
    "read": (ast.Attribute, _read),
    "read-callable": (ast.Attribute, _read),
    "getattr": (ast.Call, _getattr),
    "accept-keyword": (_FUNCTIONS, _accept_keyword),
    "accept-positional": (_FUNCTIONS, _accept_positional),
    "default": (_FUNCTIONS, _default),
    "callable-property": (_FUNCTIONS, _callable_property),
    "callable-value": (_FUNCTIONS, _callable_value),
    "field-default": (ast.ClassDef, _field_default),
    "skip": ((ast.Expr, ast.Assign, ast.ClassDef), _skip),
    "class-attribute": (ast.ClassDef, _class_attribute),
    "stub": (ast.ClassDef, _stub),
}
