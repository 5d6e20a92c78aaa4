"""Rule: attributes read of the core's modules, classes and objects that nothing defines any more."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.world import MISSING, Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.findings import Confidence
    from vllm_pairs.doctor.places import Place


def check_attributes(analysis: Analysis, node: ast.AST, place: Place) -> None:
    """Look at one node: an attribute that is read, also by `getattr` without a default."""
    if place.typing:
        return
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        _read(analysis, Read(node, node.value, node.attr, place))
    elif isinstance(node, ast.Call) and _is_getattr(node):
        for name in _names(node, place):
            _read(analysis, Read(node, node.args[0], name, place))


@dataclass(frozen=True)
class Read:
    """One attribute of one object that is read: the whole expression, the object's, the name."""

    node: ast.expr
    of: ast.expr
    name: str
    place: Place


def _is_getattr(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) == 2 and not node.keywords


def _names(node: ast.Call, place: Place) -> list[str]:
    """The names that a `getattr` asks for: a text, or each of the texts that a loop around it goes over."""
    texts: list[ast.expr] = [node.args[1]]
    if isinstance(texts[0], ast.Name):
        loops = [
            one for one in walk(place.scope.node) if isinstance(one, ast.For) and any(p is node for p in walk(one))
        ]
        named = [one for one in loops if isinstance(one.target, ast.Name) and one.target.id == texts[0].id]
        texts = named[-1].iter.elts if named and isinstance(named[-1].iter, ast.Tuple | ast.List) else []
    return [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]


def _read(analysis: Analysis, read: Read) -> None:
    scope = read.place.scope
    if read.name in scope.tested or (scope.parent and read.name in scope.parent.tested):
        return
    base = analysis.inference.value(read.of, scope)
    if not isinstance(base, Value):
        return
    if base.sort == "module" and analysis.is_core(base):
        _of_module(analysis, base.ref.module, read)
    elif base.sort in ("instance", "class", "type", "super"):
        _of_class(analysis, base, read)


def _of_module(analysis: Analysis, module: str, read: Read) -> None:
    if analysis.world.member(module, read.name) is not MISSING:
        return
    has, line = analysis.world.nearest_name(module, read.name)
    analysis.add(
        Draft(
            kind="missing-attribute",
            symbol=f"{module}:{read.name}",
            name=read.name,
            node=read.node,
            place=read.place,
            message=f"module {module} of this core has no attribute {read.name!r}",
            confidence="medium" if f"{module}.{read.name}" in analysis.refused.get(read.place.module, ()) else "high",
            injectable=((module, read.name),),
            core=Ref(module),
            core_line=line,
            core_has=has,
            harmless=read.place.catches("AttributeError"),
        )
    )


def _of_class(analysis: Analysis, base: Value, read: Read) -> None:
    classes = analysis.classes
    ref = base.owner if base.sort == "super" and base.owner is not None else base.ref
    cores = [one for one in classes.mro(ref).refs if analysis.is_core(one)]
    if not cores:
        return
    if base.sort == "super":
        rest = classes.mro(ref)
        if (
            read.name.startswith("__")
            or classes.owner(ref, read.name, after=base.ref)
            or not rest.complete
            or rest.external
        ):
            return
    elif classes.has(ref, read.name, instance=base.sort == "instance") is not False or (
        base.sort != "instance"
        and any(
            (outline := classes.outline(one)) is not None and read.name in outline.instance
            for one in classes.mro(ref).refs
        )
    ):
        return
    confidence = _confidence(analysis, base, ref, read.name)
    if confidence is None:
        return
    if read.place.conditional and (read.place.scope.tested or read.place.scope.inspects):
        confidence = "low"  # the function asks what is there, and this is behind a condition
    at = cores[0]
    outline = classes.outline(at)
    known = [*outline.members, *outline.instance] if outline else []
    close = difflib.get_close_matches(read.name, known, n=1, cutoff=0.7)
    shown = f"{ref.qualname}" + (f" (a {at.qualname})" if at != ref else "")
    analysis.add(
        Draft(
            kind="missing-attribute",
            symbol=f"{at}.{read.name}",
            name=read.name,
            node=read.node,
            place=read.place,
            message=f"{shown} has no attribute {read.name!r} in this core",
            confidence=confidence,
            injectable=tuple((str(one), read.name) for one in classes.mro(ref).refs),
            core=at,
            core_has=f"{at.qualname} has no {read.name}" + (f"; it has {close[0]}" if close else ""),
            harmless=read.place.catches("AttributeError"),
            soft=_by_annotation(read.of, read.place),
        )
    )


def _by_annotation(node: ast.expr, place: Place) -> bool:
    """Whether all that is known of an object is what a parameter of the plugin's own function is annotated with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    bound = place.scope.find(node.id) if isinstance(node, ast.Name) else None
    return bound is not None and any(source.kind == "annotation" for source in bound[1])


def _confidence(analysis: Analysis, base: Value, ref: Ref, name: str) -> Confidence | None:
    """How sure it is that the class found is the object's; None: not sure at all."""
    classes = analysis.classes
    if base.sort in ("class", "super"):
        return "high"
    if classes.elsewhere(ref, name):
        return None
    return "low" if name in classes.stores else "high"
