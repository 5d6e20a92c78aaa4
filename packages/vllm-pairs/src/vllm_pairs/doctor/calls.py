"""Rule: calls of the core with arguments that it does not take; the calls are also the edges of the call graph."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.analysis import Draft, Edge
from vllm_pairs.doctor.conditions import last_name
from vllm_pairs.doctor.signatures import CallShape, Misfit, misfit, misfits, shape_of
from vllm_pairs.doctor.spread import keys_of
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.analysis import Analysis
    from vllm_pairs.doctor.callables import Callable, Callables
    from vllm_pairs.doctor.findings import Confidence
    from vllm_pairs.doctor.places import Place


class CallRule:
    """Checks every call of a plugin."""

    def __init__(self, analysis: Analysis, callables: Callables) -> None:
        self.analysis, self.callables = analysis, callables

    def check(self, node: ast.AST, place: Place) -> None:
        """Look at one node: a call."""
        if not isinstance(node, ast.Call) or place.typing:
            return
        launched = isinstance(node.func, ast.Subscript)
        function = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        value = self.analysis.inference.value(function, place.scope)
        if not isinstance(value, Value):
            return
        self._edge(value, place)
        found = self.callables.of(value)
        if found is None or (launched and not found.kernel):
            return
        if not self._concerns_core(value, found):
            return
        shape = shape_of(node, lambda spread: keys_of(spread, place.scope))
        if launched:  # the launcher's own options (num_warps, num_stages, ...) go by name
            names = {param.name for param in found.signature.params}
            shape = CallShape(
                shape.positions, tuple(w for w in shape.keywords if w in names), shape.star, shape.double_star
            )
        wrong = misfits(found.signature, shape)
        for one in wrong:
            self._report(node, place, value, found, one)
        if not wrong and value.sort == "class" and self.analysis.constructors.data_kind(found.defined_by) is not None:
            self._order(node, place, found)

    def _edge(self, value: Value, place: Place) -> None:
        callee = value.ref
        if value.sort in ("class", "type"):
            owner = self.analysis.classes.owner(value.ref, "__init__")
            callee = Ref(owner.module, f"{owner.qualname}.__init__") if owner else value.ref
        elif value.sort != "def":
            return
        self.analysis.edges.append(Edge(place.module, place.function, callee, not (place.conditional or place.handled)))

    def _concerns_core(self, value: Value, found: Callable) -> bool:
        """Whether what the call has to fit is the core's: its definition, or fields that a core base brings."""
        if self.analysis.is_core(found.defined_by):
            return True
        if value.sort in ("class", "type") and "." not in found.defined_by.qualname.removeprefix(value.ref.qualname):
            fields = self.analysis.constructors.fields(found.defined_by) or []
            return any(self.analysis.is_core(field.owner) for field in fields)
        return False

    def _report(self, node: ast.Call, place: Place, value: Value, found: Callable, wrong: Misfit) -> None:
        confidence: Confidence = "high" if found.strict else "medium"
        last = value.ref.qualname.rpartition(".")[2]
        owner = None if self._is_exact(node, place) else value.owner
        if owner is not None and value.bound and not self._certain(owner, last, node):
            confidence = "low"
        put = owner is not None and not last.startswith("__") and last in self.analysis.plugin_stores
        # Code that asks what is there then chooses what it passes: behind a condition, or with `**`.
        chosen = place.scope.inspects and (place.conditional or any(word.arg is None for word in node.keywords))
        if chosen or put:  # or the plugin puts another function on the object
            confidence = "low"
        constructed = value.sort in ("class", "type")
        symbol = str(found.defined_by) if not constructed else _constructor(found.defined_by)
        self.analysis.add(
            Draft(
                kind="call-argument",
                symbol=symbol,
                name=wrong.argument,
                node=node,
                place=place,
                message=f"{symbol.partition(':')[2]} {wrong.text} in this core",
                confidence=confidence,
                injectable=(_place(value.ref), _place(found.defined_by), *self._below(value, owner)),
                read_at=self._taken_at(node, place) if value.sort == "def" else None,
                core=self._core_side(value, found),
                core_has=found.signature.text(),
                harmless=place.catches("TypeError"),
            )
        )

    def _is_exact(self, node: ast.Call, place: Place) -> bool:
        """Whether it is a function of a class that is named, `C.f(...)` or `super().f(...)`, or one with a bare name.

        Neither a class below nor an attribute of the object can then come between.
        """
        if not isinstance(node.func, ast.Attribute):
            return isinstance(node.func, ast.Name)
        base = self.analysis.inference.value(node.func.value, place.scope)
        return isinstance(base, Value) and base.sort in ("class", "super")

    def _taken_at(self, node: ast.Call, place: Place) -> int | None:
        """The line of the module's own code that took the function called, `kept = core.f` or `from core import f`.

        What is put in its place later does not reach the call.
        """
        if not isinstance(node.func, ast.Name) or place.scope.find(node.func.id) is not None:
            return None
        bound = self.analysis.world.outlines[place.module].names.get(node.func.id)
        taken = bound is not None and bound.kind in ("value", "import") and not bound.several
        return bound.line if bound is not None and taken else None

    def _below(self, value: Value, owner: Ref | None) -> list[tuple[str, str]]:
        """The same member of classes below, which the object may be of; of a class what makes its objects."""
        if value.sort in ("class", "type"):
            return [(str(one), "__init__") for one in self.analysis.classes.mro(value.ref).refs]
        name = value.ref.qualname.rpartition(".")[2]
        return [(str(one), name) for one in self.analysis.classes.subclasses(owner)] if owner else []

    def _order(self, node: ast.Call, place: Place, found: Callable) -> None:
        """Fields passed by position: an argument that is called like one field must not stand in another's place."""
        fields = [param.name for param in found.signature.free if param.positional]
        for argument, field in zip(node.args, fields, strict=False):
            if isinstance(argument, ast.Starred):
                return
            name = last_name(argument).lstrip("_")
            if name == field or name not in fields:
                continue
            self.analysis.add(
                Draft(
                    kind="dataclass-field",
                    symbol=f"{found.defined_by}.{field}",
                    name=field,
                    node=node,
                    place=place,
                    message=f"{ast.unparse(argument)} is passed by position as field {field!r} of "
                    f"{found.defined_by.qualname}",
                    confidence="medium",
                    core=self._core_side(Value("class", found.defined_by), found),
                    core_has=found.signature.text(),
                )
            )
            return

    def _core_side(self, value: Value, found: Callable) -> Ref:
        if self.analysis.is_core(found.defined_by):
            return found.defined_by
        cores = [one for one in self.analysis.classes.mro(value.ref).refs if self.analysis.is_core(one)]
        return cores[0] if cores else found.defined_by

    def _certain(self, owner: Ref, name: str, node: ast.Call) -> bool:
        """Whether every override that the object may have refuses the call too."""
        shape = shape_of(node)
        for one in self.analysis.classes.subclasses(owner):
            outline = self.analysis.classes.outline(one)
            if outline is None or name not in outline.members:
                continue
            other = self.callables.function(Value("def", Ref(one.module, f"{one.qualname}.{name}"), bound=1))
            if other is None or misfit(other.signature, shape) is None:
                return False
        return True


def _place(ref: Ref) -> tuple[str, str]:
    """Where a definition lies, as the plugin's assignments into the core name it."""
    outer, _, name = ref.qualname.rpartition(".")
    return (str(Ref(ref.module, outer)) if outer else ref.module, name)


def _constructor(ref: Ref) -> str:
    return str(ref) if ref.qualname.endswith("__init__") else f"{ref}.__init__"
