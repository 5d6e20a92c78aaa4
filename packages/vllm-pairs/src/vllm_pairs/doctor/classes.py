"""Classes over both trees: order of bases, members, subclasses, and the kind of a member."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.externals import DYNAMIC, external_attributes, is_abstract_base
from vllm_pairs.doctor.outline import dotted
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.outline import ClassOutline
    from vllm_pairs.doctor.world import World

MemberKind = Literal["method", "classmethod", "staticmethod", "property", "class", "value"]
PROPERTIES = ("property", "cached_property", "abstractproperty", "classproperty")


@dataclass(slots=True)
class Bases:
    """What a class derives from, nearest first: classes of the trees, dotted paths of others, whether it is all."""

    refs: list[Ref] = field(default_factory=list)
    external: list[str] = field(default_factory=list)
    complete: bool = True
    meta: bool = False


class Classes:
    """Questions about classes, answered from outlines; a syntax tree is looked into only for kinds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._kinds: dict[tuple[Ref, str], MemberKind] = {}
        self._mro: dict[Ref, Bases] = {}
        self._subclasses: dict[Ref, set[Ref]] | None = None
        self.stores: frozenset[str] = frozenset().union(*(one.stores for one in world.outlines.values()))

    def outline(self, ref: Ref) -> ClassOutline | None:
        """The outline of a class, None for one that is defined in a function."""
        module = self.world.outlines.get(ref.module)
        return module.classes.get(ref.qualname) if module else None

    def mro(self, ref: Ref) -> Bases:
        """The class and its bases in Python's order."""
        if ref not in self._mro:
            self._mro[ref] = Bases([ref], complete=False)  # a class that derives from itself
            self._mro[ref] = self._linearise(ref)
        return self._mro[ref]

    def _linearise(self, ref: Ref) -> Bases:
        outline = self.outline(ref)
        if outline is None:
            return Bases([ref], complete=False)
        made = Bases([ref], complete="?" not in outline.bases)
        chains: list[list[Ref]] = []
        direct: list[Ref] = []
        for text in outline.bases:
            if text.startswith("metaclass="):
                path = self.external_path(ref.module, text.removeprefix("metaclass="))
                made.meta = True
                made.complete = made.complete and path is not None and external_attributes(path) is not None
                if path is not None:
                    made.external.append(path)
                continue
            base = self.base(ref, text)
            if isinstance(base, Ref):
                inner = self.mro(base)
                chains.append(list(inner.refs))
                direct.append(base)
                made.external += [path for path in inner.external if path not in made.external]
                made.complete = made.complete and inner.complete
                made.meta = made.meta or inner.meta
            elif base is None or external_attributes(base) is None:
                made.complete = False
                if base is not None and base not in made.external:
                    made.external.append(base)
            elif base not in made.external:
                made.external.append(base)
        made.refs += _merge([*chains, direct])
        return made

    def base(self, ref: Ref, text: str) -> Ref | str | None:
        """A base as written: a class of the trees, the dotted path of another library's, None where it is neither."""
        if "?" in text:
            return None
        node = ast.parse(text, mode="eval").body
        found = self.world.lookup(ref.module, node)
        if isinstance(found, Value):
            return found.ref if found.sort == "class" else None
        return self.external_path(ref.module, text)

    def external_path(self, module: str, text: str) -> str | None:
        """The dotted path of a name that another library defines, as this module sees it."""
        head, _, rest = text.partition(".")
        outline = self.world.outlines.get(module)
        bound = outline.names.get(head) if outline else None
        if bound is None:
            return f"builtins.{text}" if hasattr(builtins, head) else None
        if bound.kind != "import" or bound.target is None or self.world.tree_of(bound.target[0]) is not None:
            return None
        source, name = bound.target
        return ".".join(part for part in (source, name, rest) if part)

    def subclasses(self, ref: Ref) -> set[Ref]:
        """Every class that derives from this one, directly or not."""
        if self._subclasses is None:
            self._subclasses = {}
            for module, outline in self.world.outlines.items():
                for qualname in outline.classes:
                    for base in self.mro(Ref(module, qualname)).refs[1:]:
                        self._subclasses.setdefault(base, set()).add(Ref(module, qualname))
        return self._subclasses.get(ref, set())

    def owner(self, ref: Ref, name: str, *, after: Ref | None = None) -> Ref | None:
        """The class whose body defines a member, along the order of bases; `after` starts behind a class (super)."""
        refs = self.mro(ref).refs
        if after is not None:
            refs = refs[refs.index(after) + 1 :] if after in refs else []
        for one in refs:
            outline = self.outline(one)
            if outline is not None and name in outline.members:
                return one
        return None

    def setters(self, ref: Ref, name: str) -> list[Ref]:
        """The classes along the order of bases that set an attribute on self."""
        found = []
        for one in self.mro(ref).refs:
            outline = self.outline(one)
            if outline is not None and name in outline.instance:
                found.append(one)
        return found

    def has(self, ref: Ref, name: str, *, instance: bool) -> bool | None:
        """Whether an object (or the class itself) has an attribute; None where that cannot be known."""
        if name.startswith("__") and name.endswith("__"):
            return True
        bases = self.mro(ref)
        if self.owner(ref, name) is not None or any(
            name in (external_attributes(path) or ()) for path in bases.external
        ):
            return True
        outlines = [outline for one in bases.refs if (outline := self.outline(one)) is not None]
        if instance and any(name in outline.instance for outline in outlines):
            return True
        if not bases.complete:
            return None
        if instance:
            if any(outline.dynamic or "*" in outline.instance for outline in outlines):
                return None
            if DYNAMIC.intersection(bases.external):
                return None
        return False

    def elsewhere(self, ref: Ref, name: str) -> bool:
        """Whether a subclass, or a class that shares one with this (a mixin's partner), has the attribute."""
        below = self.subclasses(ref)
        beside = {one for lower in below for one in self.mro(lower).refs}
        for one in below | beside:
            outline = self.outline(one)
            if outline is not None and (name in outline.members or name in outline.instance or outline.dynamic):
                return True
        return False

    def kind(self, owner: Ref, name: str) -> MemberKind:
        """What sort of member a class's body defines."""
        key = (owner, name)
        if key not in self._kinds:
            self._kinds[key] = self._kind(owner, name)
        return self._kinds[key]

    def _kind(self, owner: Ref, name: str) -> MemberKind:
        node = self.world.node(Ref(owner.module, f"{owner.qualname}.{name}"))
        if isinstance(node, ast.ClassDef):
            return "class"
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return "value"
        names = {decorator_name(decorator) for decorator in node.decorator_list}
        if names.intersection(PROPERTIES):
            return "property"
        if "staticmethod" in names:
            return "staticmethod"
        return "classmethod" if "classmethod" in names or name == "__init_subclass__" else "method"

    def is_abstract(self, owner: Ref, name: str) -> bool:
        """Whether a member is marked abstract."""
        node = self.world.node(Ref(owner.module, f"{owner.qualname}.{name}"))
        return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            decorator_name(decorator).startswith("abstract") for decorator in node.decorator_list
        )

    def enforces_abstract(self, ref: Ref) -> bool:
        """Whether Python refuses to make an object of the class while abstract methods are left."""
        return any(is_abstract_base(path) for path in self.mro(ref).external)

    def left_abstract(self, ref: Ref) -> list[tuple[Ref, str]]:
        """Abstract members that nothing along the order of bases implements, with the class that asks for them."""
        left = []
        for one in self.mro(ref).refs[1:]:
            outline = self.outline(one)
            names = outline.members if outline is not None else ()
            left += [(one, name) for name in names if self.owner(ref, name) == one and self.is_abstract(one, name)]
        return left


def decorator_name(node: ast.expr) -> str:
    """The last name of a decorator, its call left out: `@torch.inference_mode()` gives "inference_mode"."""
    return last_name(node.func if isinstance(node, ast.Call) else node) or dotted(node)


def _merge(chains: list[list[Ref]]) -> list[Ref]:
    """Python's C3 merge; where it has no answer (Python would refuse the class), first come first."""
    merged: list[Ref] = []
    chains = [list(chain) for chain in chains if chain]
    while chains:
        head = next((chain[0] for chain in chains if not any(chain[0] in other[1:] for other in chains)), chains[0][0])
        merged.append(head)
        chains = [rest for chain in chains if (rest := [one for one in chain if one != head])]
    return merged
