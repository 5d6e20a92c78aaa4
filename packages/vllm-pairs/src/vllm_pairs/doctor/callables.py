"""What can be called and how: the signature behind a value, where every decorator on the way is understood."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_pairs.doctor.classes import decorator_name
from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.signatures import Signature, signature_of
from vllm_pairs.doctor.words import words
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from vllm_pairs.doctor.analysis import Analysis

# Decorators that leave the parameters as they are.
_KEEPS = words(
    "abstractmethod cache classmethod compile contextmanager asynccontextmanager deprecated final inference_mode "
    "jit lru_cache no_grad override record_function runtime_checkable staticmethod torch_compile wraps custom_op "
    "disable allow_in_graph dont_skip_tracing instrument"
)
_FILLS = frozenset({"autotune", "heuristics"})  # of Triton: they pass arguments of their own


@dataclass(frozen=True, slots=True)
class Callable:
    """A signature and the definition it comes from (`strict`: a wrong call is a TypeError)."""

    signature: Signature
    defined_by: Ref
    strict: bool = True
    kernel: bool = False


class Callables:
    """Signatures of values."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis, self.world = analysis, analysis.world
        self._functions: dict[tuple[Ref, int], Callable | None] = {}
        self._transparent: dict[Ref, bool] = {}

    def of(self, value: Value) -> Callable | None:
        """How a value is called, None where that is not known."""
        if value.sort in ("class", "type"):
            made = self.analysis.constructors.of(value.ref)
            if made is None or not self.keeps_class(value.ref):
                return None
            return Callable(made.signature, made.defined_by, made.strict)
        if value.sort == "def":
            return self.function(value)
        if value.sort == "instance":
            owner = self.analysis.classes.owner(value.ref, "__call__")
            if owner is None or self.analysis.classes.mro(value.ref).external:
                return None  # torch's modules call forward with whatever they get
            return self.function(Value("def", Ref(owner.module, f"{owner.qualname}.__call__"), bound=1))
        return None

    def function(self, value: Value) -> Callable | None:
        """How a function is called through a value."""
        key = (value.ref, value.bound)
        if value.node is not None:
            return self._function(value)
        if key not in self._functions:
            self._functions[key] = self._function(value)
        return self._functions[key]

    def _function(self, value: Value) -> Callable | None:
        node = value.node or self.world.node(value.ref)
        if isinstance(node, ast.Lambda):
            return Callable(signature_of(node), value.ref)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        kernel = False
        for decorator in node.decorator_list:
            name = decorator_name(decorator)
            kernel = kernel or name == "jit"
            if name in _FILLS or not (name in _KEEPS or self._keeps(value.ref.module, decorator)):
                return None
        return Callable(signature_of(node, value.bound), value.ref, kernel=kernel)

    def keeps_class(self, ref: Ref) -> bool:
        """Whether a class's decorators leave its constructor as the class defines it."""
        node = self.world.node(ref)
        if not isinstance(node, ast.ClassDef):
            return False
        known = {"dataclass", "final", "runtime_checkable", "config", "register", "total_ordering", "deprecated"}
        return all(
            decorator_name(one) in known or self.analysis.constructors.data_kind(ref) is not None
            for one in node.decorator_list
        )

    def _keeps(self, module: str, decorator: ast.expr) -> bool:
        """Whether a decorator of the trees hands all arguments on: its inner function has *args and **kwargs."""
        head = decorator.func if isinstance(decorator, ast.Call) else decorator
        found = self.world.lookup(module, head)
        if not isinstance(found, Value) or found.sort != "def":
            return False
        if found.ref not in self._transparent:
            node = self.world.node(found.ref)
            self._transparent[found.ref] = isinstance(node, ast.FunctionDef) and any(
                isinstance(inner, ast.FunctionDef)
                and inner.args.vararg is not None
                and inner.args.kwarg is not None
                and not inner.args.args
                for inner in walk(node)
            )
        return self._transparent[found.ref]
