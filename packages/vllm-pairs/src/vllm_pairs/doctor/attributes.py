"""Rule: attributes read of the core's modules, classes and objects that nothing defines any more."""

from __future__ import annotations

import ast
import difflib
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft
from vllm_pairs.doctor.world import MISSING, Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.findings import Confidence
    from vllm_pairs.doctor.walk import Place


def check_attributes(analysis: Analysis, node: ast.AST, place: Place) -> None:
    """Look at one node: an attribute that is read."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or place.typing:
        return
    if node.attr in place.scope.tested or (place.scope.parent and node.attr in place.scope.parent.tested):
        return
    base = analysis.inference.value(node.value, place.scope)
    if not isinstance(base, Value):
        return
    if base.sort == "module" and analysis.is_core(base):
        _of_module(analysis, base.ref.module, node, place)
    elif base.sort in ("instance", "class", "type", "super"):
        _of_class(analysis, base, node, place)


def _of_module(analysis: Analysis, module: str, node: ast.Attribute, place: Place) -> None:
    if analysis.world.member(module, node.attr) is not MISSING:
        return
    has, line = analysis.world.nearest_name(module, node.attr)
    analysis.add(
        Draft(
            kind="missing-attribute",
            symbol=f"{module}:{node.attr}",
            name=node.attr,
            node=node,
            place=place,
            message=f"module {module} of this core has no attribute {node.attr!r}",
            injectable=((module, node.attr),),
            core=Ref(module),
            core_line=line,
            core_has=has,
            harmless=place.catches("AttributeError"),
        )
    )


def _of_class(analysis: Analysis, base: Value, node: ast.Attribute, place: Place) -> None:
    classes = analysis.classes
    ref = base.owner if base.sort == "super" and base.owner is not None else base.ref
    cores = [one for one in classes.mro(ref).refs if analysis.is_core(one)]
    if not cores:
        return
    if base.sort == "super":
        rest = classes.mro(ref)
        if (
            node.attr.startswith("__")
            or classes.owner(ref, node.attr, after=base.ref)
            or not rest.complete
            or rest.external
        ):
            return
    elif classes.has(ref, node.attr, instance=base.sort == "instance") is not False or (
        base.sort != "instance"
        and any(
            (outline := classes.outline(one)) is not None and node.attr in outline.instance
            for one in classes.mro(ref).refs
        )
    ):
        return
    confidence = _confidence(analysis, base, ref, node)
    if confidence is None:
        return
    if place.conditional and (place.scope.tested or place.scope.inspects):
        confidence = "low"  # the function asks what is there, and this is behind a condition
    at = cores[0]
    outline = classes.outline(at)
    known = [*outline.members, *outline.instance] if outline else []
    close = difflib.get_close_matches(node.attr, known, n=1, cutoff=0.7)
    shown = f"{ref.qualname}" + (f" (a {at.qualname})" if at != ref else "")
    analysis.add(
        Draft(
            kind="missing-attribute",
            symbol=f"{at}.{node.attr}",
            name=node.attr,
            node=node,
            place=place,
            message=f"{shown} has no attribute {node.attr!r} in this core",
            confidence=confidence,
            injectable=tuple((str(one), node.attr) for one in classes.mro(ref).refs),
            core=at,
            core_has=f"{at.qualname} has no {node.attr}" + (f"; it has {close[0]}" if close else ""),
            harmless=place.catches("AttributeError"),
            soft=_by_annotation(node.value, place),
        )
    )


def _by_annotation(node: ast.expr, place: Place) -> bool:
    """Whether all that is known of an object is what a parameter of the plugin's own function is annotated with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    bound = place.scope.find(node.id) if isinstance(node, ast.Name) else None
    return bound is not None and any(source.kind == "annotation" for source in bound[1])


def _confidence(analysis: Analysis, base: Value, ref: Ref, node: ast.Attribute) -> Confidence | None:
    """How sure it is that the class found is the object's; None: not sure at all."""
    classes = analysis.classes
    if base.sort in ("class", "super"):
        return "high"
    if classes.elsewhere(ref, node.attr):
        return None
    return "low" if node.attr in classes.stores else "high"
