"""When a finding bites: at import, at start-up, at the first step, or on a rare path.

Read off the call graph of both trees, from the methods that the engine calls on a worker, runner, platform or
scheduler. A call behind a condition that is not decided here may or may not be made, so there are two answers: when
it can bite at the earliest, and whether every run of that phase meets it. Only the second makes an error.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from vllm_pairs.doctor.nodes import walk
from vllm_pairs.doctor.words import words
from vllm_pairs.doctor.world import Ref, Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from vllm_pairs.doctor.analysis import Analysis, Draft
    from vllm_pairs.doctor.findings import Severity

# Methods that the engine calls before it serves, and in a step.
START_UP = sorted(
    words(
        "__init__ init_device load_model get_kv_cache_spec determine_available_memory initialize_from_config "
        "initialize_kv_cache compile_or_warm_up_model warming_up_model profile_run check_and_update_config "
        "pre_register_and_update"
    )
)
STEP = sorted(words("execute_model sample_tokens schedule update_from_output"))
_DRIVEN = ("GPUModelRunner", "WorkerBase", "Platform", "Scheduler")
Call = tuple[Ref, "Ref | None"]  # a function, and the class that self is of


class Severities:
    """Follows the calls once, then answers for each draft."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.classes = analysis.classes
        self._nested = {one.ref: one.node for put in analysis.replaced.values() for one in put if one.node is not None}
        self._callees: dict[Call, list[tuple[Call, bool]]] = {}
        self._by_module: dict[str, list[tuple[Call, bool]]] = {}
        for edge in analysis.edges:
            if edge.caller is None:
                self._by_module.setdefault(edge.module, []).append(((edge.callee, None), edge.always))
        self.driven = [
            Ref(module, qualname)
            for module in analysis.plugin_modules()
            for qualname in analysis.world.outlines[module].classes
            if self._is_driven(Ref(module, qualname))
        ]
        self.starting, self.may_start = self._phase(START_UP)
        self.stepping, self.may_step = self._phase(STEP)
        self.loaded = self._loaded(self._entries())
        self.imported = self._at_import()
        for _ in range(3):  # what runs at start imports modules, which run more
            running = self.imported | self.starting | self._entry_functions
            inside = [module for function in running for module in analysis.imports.get(function, ())]
            self.loaded = self._loaded([*self.loaded, *inside])
            self.imported = self._at_import()

    def _is_driven(self, ref: Ref) -> bool:
        bases = self.classes.mro(ref).refs
        return any(base.qualname in _DRIVEN and self.analysis.is_core(base) for base in bases)

    def _phase(self, names: list[str]) -> tuple[set[Ref], set[Ref]]:
        roots = [
            (Ref(owner.module, f"{owner.qualname}.{name}"), one)
            for one in self.driven
            for name in names
            if (owner := self.classes.owner(one, name)) is not None
        ]
        return self._reach(roots, always=True), self._reach(roots, always=False)

    def _reach(self, roots: Iterable[Call], *, always: bool) -> set[Ref]:
        seen: set[Call] = set()
        stack = list(roots)
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            stack += [callee for callee, sure in self._calls(one) if sure or not always]
        return {function for function, _ in seen}

    def _calls(self, call: Call) -> list[tuple[Call, bool]]:
        """What a function calls, for a class of self. Of the core only the classes that the plugin derives from."""
        if call not in self._callees:
            function, own = call
            follow = self.analysis.is_plugin(function) or (own is not None and self.analysis.is_plugin(own))
            self._callees[call] = list(self._read(function, own)) if follow else []
        return self._callees[call]

    def _read(self, function: Ref, own: Ref | None) -> Iterator[tuple[Call, bool]]:
        node = self.analysis.world.node(function) or self._nested.get(function)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        outer = Ref(function.module, function.qualname.rpartition(".")[0])
        owner = outer if self.classes.outline(outer) is not None else None
        for part, place in self.analysis.walker.function(function, node, owner, own):
            if not isinstance(part, ast.Call) or place.function != function:
                continue
            value = self.analysis.inference.value(part.func, place.scope)
            for one in (value, *self.analysis.replaced.get(value.ref, ())) if isinstance(value, Value) else ():
                if (callee := self._callee(one)) is not None:
                    yield callee, not (place.conditional or place.handled)

    def _callee(self, value: Value) -> Call | None:
        if value.sort in ("class", "type"):
            owner = self.classes.owner(value.ref, "__init__")
            return (Ref(owner.module, f"{owner.qualname}.__init__"), value.ref) if owner is not None else None
        if value.sort != "def":
            return None
        return value.ref, value.owner if value.bound else None

    def _at_import(self) -> set[Ref]:
        calls = [call for module in self.loaded for call, always in self._by_module.get(module, ()) if always]
        return self._reach(calls, always=True)

    def _entries(self) -> list[str]:
        """Where every start comes in: the plugin's package, what it names in texts, and what its platform names."""
        world, plugin = self.analysis.world, self.analysis.plugin
        entries = [plugin, *(one.module for one in self.driven if one.qualname.endswith("Platform"))]
        for module in list(entries):
            tree = world.syntax(module)
            for part in walk(tree) if tree is not None else ():
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    text = part.value
                    entries += [text.rpartition(".")[0]] if text.startswith(f"{plugin}.") else []
        # The package's functions are its entry points.
        package = (
            [Ref(plugin, name) for name, bound in world.outlines[plugin].names.items() if bound.kind == "def"]
            if (plugin in world.outlines)
            else []
        )
        self._entry_functions = self._reach([(function, None) for function in package], always=True)
        return entries

    def _loaded(self, stack: list[str]) -> set[str]:
        """The plugin's modules that these import, always."""
        world, plugin = self.analysis.world, self.analysis.plugin
        seen: set[str] = set()
        while stack:
            module = stack.pop()
            if module in seen or module not in world.roots[plugin].files:
                continue
            seen.add(module)
            stack += self.analysis.imports.get(module, ())
            stack.append(module.rpartition(".")[0])
        return seen

    def of(self, draft: Draft) -> tuple[Severity, bool]:
        """When a draft's fault bites, and whether every run of that phase meets it."""
        place, function = draft.place, draft.function or draft.place.function
        conditional = draft.conditional if draft.function is not None else place.conditional
        if function is None or draft.kind == "dataclass-order":
            if conditional:
                return "rare-path", False
            return "import-time", place.module in self.loaded and place.function is None
        if function in self.imported:
            return ("rare-path" if conditional else "import-time"), not conditional
        if function in self.may_start:
            return "start-up", function in self.starting and not conditional
        if function in self.may_step:
            return "first-step", function in self.stepping and not conditional
        return "rare-path", False
