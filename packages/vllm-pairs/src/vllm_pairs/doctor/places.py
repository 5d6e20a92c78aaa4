"""Where a node stands: its module and scope, whether it always runs, what is caught around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    import ast

    from vllm_pairs.doctor.scopes import Scope

_ALL = ("Exception", "BaseException")


@dataclass(slots=True, eq=False)
class Place:
    """Where a node stands.

    `function` is the definition whose body it is in, None for code that runs when the module is imported.
    `conditional`: a condition that is not decided lies before it, which a parameter of
    the function alone decides where `by_parameter`. `handled`: exceptions caught around it. `typing`:
    under TYPE_CHECKING, never run.
    """

    module: str
    scope: Scope
    statement: ast.stmt
    function: Ref | None = None
    conditional: bool = False
    handled: frozenset[str] = frozenset()
    typing: bool = False
    by_parameter: bool = False

    def doubted(self, *, by_parameter: bool = False, scope: Scope | None = None) -> Place:
        """Behind one more condition that is not decided here."""
        only = by_parameter and (self.by_parameter or not self.conditional)
        return Place(
            self.module,
            scope or self.scope,
            self.statement,
            self.function,
            True,
            self.handled,
            self.typing,
            only,
        )

    def at(self, statement: ast.stmt) -> Place:
        """The same surroundings, another statement."""
        return Place(
            self.module,
            self.scope,
            statement,
            self.function,
            self.conditional,
            self.handled,
            self.typing,
            self.by_parameter,
        )

    def catches(self, exception: str) -> bool:
        """Whether an exception of this name would be caught here."""
        parents = {"ModuleNotFoundError": ("ModuleNotFoundError", "ImportError")}.get(exception, (exception,))
        return bool(self.handled.intersection((*parents, *_ALL)))


def is_core(value: Value | Ref, core: str) -> bool:
    """Whether a definition lies in the core's package."""
    ref = value.ref if isinstance(value, Value) else value
    return ref.module == core or ref.module.startswith(f"{core}.")
