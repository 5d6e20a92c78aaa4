"""Rule: a class of the plugin that does without the core's `__init__` while core methods read what only that sets."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.world import Ref

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.places import Place

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_uninitialised(analysis: Analysis, node: ast.AST, place: Place) -> None:
    """Look at one node: a class of the plugin with an `__init__` of its own."""
    if not isinstance(node, ast.ClassDef) or place.function is not None or place.scope.owner is not None:
        return
    ref = Ref(place.module, node.name)
    own = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    if own is None or analysis.classes.outline(ref) is None or not analysis.classes.mro(ref).complete:
        return
    bases = [one for one in analysis.classes.mro(ref).refs[1:] if analysis.is_core(one)]
    if not bases or len(analysis.classes.mro(ref).refs) != len(bases) + 1 or _hands_on(own):
        return  # the base's __init__ runs, or a class of the plugin between may call it
    only = {name for base in bases for name in _only_in_init(analysis, base)}
    missing = {name for name in only if not _has_otherwise(analysis, ref, bases, name)}
    for name, reader, line in _reads(analysis, ref, bases, missing) if missing else ():
        analysis.add(
            Draft(
                kind="uninitialised",
                symbol=f"{reader}",
                name=name,
                node=own,
                place=place,
                message=f"{node.name}.__init__ leaves out {name!r}, which the core's {reader.qualname} reads",
                confidence="high",
                core=reader,
                core_line=line,
                core_has=f"self.{name} set in the core's __init__ only",
                function=reader,
                soft=True,
            )
        )


def _hands_on(node: ast.AST) -> bool:
    """Whether an `__init__` calls another one, or fills the object in a way that cannot be read."""
    return any(
        isinstance(part, ast.Attribute) and part.attr in ("__init__", "__dict__", "__post_init__", "update")
        for part in walk(node)
    )


def _only_in_init(analysis: Analysis, base: Ref) -> Iterator[str]:
    outline = analysis.classes.outline(base)
    assigned = analysis.inference.assignments(base)
    for name in outline.instance if outline is not None else ():
        if {method.name for method, _ in assigned.get(name, ())} == {"__init__"}:
            yield name


def _has_otherwise(analysis: Analysis, ref: Ref, bases: list[Ref], name: str) -> bool:
    if analysis.classes.owner(ref, name) is not None or name in analysis.classes.stores:
        return True
    for one in {ref, *analysis.classes.subclasses(ref)}:
        outline = analysis.classes.outline(one)
        if outline is None or name in outline.instance or name in outline.members or outline.dynamic:
            return True
    return any((outline := analysis.classes.outline(base)) is None or outline.dynamic for base in bases)


def _reads(analysis: Analysis, ref: Ref, bases: list[Ref], names: set[str]) -> Iterator[tuple[str, Ref, int]]:
    """The core methods that still run for the class and read one of the names; the first place of each name."""
    left = set(names)
    for base in bases:
        node = analysis.world.node(base)
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(method, _FUNCTIONS) or method.name == "__init__" or not method.args.args:
                continue
            if analysis.classes.owner(ref, method.name) != base:
                continue
            own = method.args.args[0].arg
            for part in walk(method):
                if (
                    isinstance(part, ast.Attribute)
                    and part.attr in left
                    and isinstance(part.value, ast.Name)
                    and part.value.id == own
                    and isinstance(part.ctx, ast.Load)
                ):
                    left.discard(part.attr)
                    yield part.attr, Ref(base.module, f"{base.qualname}.{method.name}"), part.lineno
