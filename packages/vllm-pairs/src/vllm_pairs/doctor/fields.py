"""What it takes to make an object: `__init__` or the fields of a dataclass, a named tuple, along the order of bases."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from griffe import ParameterKind

from vllm_pairs.doctor.classes import decorator_name
from vllm_pairs.doctor.outline import dotted
from vllm_pairs.doctor.signatures import Param, Signature, signature_of
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.classes import Classes

_KEYWORD_ONLY, _ANY = ParameterKind.keyword_only, ParameterKind.positional_or_keyword
_NOT_CONSTRUCTED = ("builtins.BaseException", "builtins.Exception", "enum.", "typing.TypedDict", "pydantic.")


@dataclass(frozen=True, slots=True)
class Field:
    """A dataclass field: who declares it, on which line, and how `__init__` takes it."""

    name: str
    owner: Ref
    line: int
    has_default: bool
    keyword_only: bool
    init: bool


@dataclass(frozen=True, slots=True)
class Constructor:
    """How an object of a class is made, and by which definition (`strict`: a wrong argument is a TypeError)."""

    signature: Signature
    defined_by: Ref
    strict: bool = True


class Constructors:
    """Signatures of classes."""

    def __init__(self, classes: Classes) -> None:
        self.classes, self.world = classes, classes.world
        self._made: dict[Ref, Constructor | None] = {}

    def of(self, ref: Ref) -> Constructor | None:
        """The constructor of a class, None where it cannot be told."""
        if ref not in self._made:
            self._made[ref] = self._of(ref)
        return self._made[ref]

    def _of(self, ref: Ref) -> Constructor | None:
        bases = self.classes.mro(ref)
        for path in bases.external:
            if path.startswith(_NOT_CONSTRUCTED):
                return None
        for one in bases.refs:
            outline = self.classes.outline(one)
            if outline is None:
                return None
            if "__new__" in outline.members:
                return None
            if "__init__" in outline.members:
                node = self.world.node(Ref(one.module, f"{one.qualname}.__init__"))
                if not isinstance(node, ast.FunctionDef) or node.decorator_list:
                    return None
                return Constructor(signature_of(node, bound=1), Ref(one.module, f"{one.qualname}.__init__"))
            if (kind := self.data_kind(one)) is not None and self.makes_init(one):
                made = self.init_of(one)
                return None if made is None else Constructor(made, one, strict=kind == "plain")
            if any(base in ("NamedTuple", "typing.NamedTuple") for base in outline.bases):
                return Constructor(_as_signature(self.own_fields(one)), one)
        if bases.external and not set(bases.external) <= {"abc.ABC", "abc.ABCMeta", "builtins.object"}:
            return None
        if not bases.complete or any("Generic" in path or "Protocol" in path for path in bases.external):
            return None
        return Constructor(Signature(()), ref)

    def data_kind(self, ref: Ref) -> str | None:
        """ "plain" for a dataclass, "validated" for one of pydantic, None for none."""
        node = self.world.node(ref)
        if not isinstance(node, ast.ClassDef):
            return None
        for decorator in node.decorator_list:
            head = decorator.func if isinstance(decorator, ast.Call) else decorator
            path = self.classes.external_path(ref.module, dotted(head)) or ""
            if path == "dataclasses.dataclass":
                return "plain"
            if path.startswith("pydantic"):
                return "validated"
            found = self.world.lookup(ref.module, head)
            made = self.world.node(found.ref) if isinstance(found, Value) and found.sort == "def" else None
            if isinstance(made, ast.FunctionDef) and any(
                decorator_name(one) == "dataclass_transform" for one in made.decorator_list
            ):
                return "validated"
        return None

    def _options(self, ref: Ref) -> dict[str, bool]:
        node = self.world.node(ref)
        found: dict[str, bool] = {}
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            for word in decorator.keywords if isinstance(decorator, ast.Call) else ():
                if word.arg is not None and isinstance(word.value, ast.Constant):
                    found[word.arg] = bool(word.value.value)
        return found

    def makes_init(self, ref: Ref) -> bool:
        """Whether the decorator writes an `__init__`."""
        return self._options(ref).get("init", True)

    def own_fields(self, ref: Ref) -> list[Field]:
        """The fields that a class's own body declares, in order."""
        node = self.world.node(ref)
        keyword_only = self._options(ref).get("kw_only", False)
        made: list[Field] = []
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
                continue
            annotation = ast.unparse(part.annotation)
            if "ClassVar" in annotation:
                continue
            if annotation.rpartition(".")[2] == "KW_ONLY":
                keyword_only = True
                continue
            made.append(_field(part, ref, keyword_only))
        return made

    def fields(self, ref: Ref) -> list[Field] | None:
        """All fields of a dataclass in the order of its `__init__`; None where a base is not known."""
        bases = self.classes.mro(ref)
        if not bases.complete:
            return None
        merged: dict[str, Field] = {}
        for one in reversed(bases.refs):
            if self.data_kind(one) is not None:
                for made in self.own_fields(one):
                    merged[made.name] = made  # an overridden field keeps its place
        return list(merged.values())

    def init_of(self, ref: Ref) -> Signature | None:
        """The signature of a dataclass's own `__init__`."""
        fields = self.fields(ref)
        return None if fields is None else _as_signature([made for made in fields if made.init])

    def wrong_order(self, ref: Ref) -> tuple[Field, Field] | None:
        """A field without default behind one with a default: Python refuses such a class when it is defined."""
        before: Field | None = None
        for made in self.fields(ref) or ():
            if not made.init or made.keyword_only:
                continue
            if made.has_default:
                before = made
            elif before is not None:
                return before, made
        return None


def _field(part: ast.AnnAssign, ref: Ref, keyword_only: bool) -> Field:
    name = part.target.id if isinstance(part.target, ast.Name) else ""
    has_default, init = part.value is not None, True
    if isinstance(part.value, ast.Call) and decorator_name(part.value) in ("field", "Field"):
        words = {word.arg: word.value for word in part.value.keywords}
        first = part.value.args[0] if part.value.args else None
        has_default = "default" in words or "default_factory" in words or (first is not None and not _is_dots(first))
        if isinstance(flag := words.get("init"), ast.Constant):
            init = bool(flag.value)
        if isinstance(flag := words.get("kw_only"), ast.Constant):
            keyword_only = bool(flag.value)
    if ast.unparse(part.annotation).rpartition(".")[2].startswith("InitVar"):
        init = True
    return Field(name, ref, part.lineno, has_default, keyword_only, init)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _as_signature(fields: list[Field]) -> Signature:
    ordered = [made for made in fields if not made.keyword_only] + [made for made in fields if made.keyword_only]
    return Signature(
        tuple(Param(made.name, _KEYWORD_ONLY if made.keyword_only else _ANY, not made.has_default) for made in ordered)
    )
