"""When a finding bites: at import, at start-up, at the first step, or on a rare path.

What runs when is read off the call graph. Import: a module's own code and what it always calls. Start-up and first
step: what the engine's entry points of a worker, runner or scheduler always reach. Anything behind a condition that
is not decided here, or that is not reached so, is a rare path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_pairs.doctor.world import Ref

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_pairs.doctor.analysis import Analysis, Draft
    from vllm_pairs.doctor.findings import Severity

# Methods that the engine calls on a worker, runner or platform before it serves, and in a step.
START_UP = frozenset(
    "__init__ init_device load_model get_kv_cache_spec determine_available_memory initialize_from_config "
    "initialize_kv_cache compile_or_warm_up_model warming_up_model profile_run capture_model "
    "check_and_update_config pre_register_and_update".split()
)
STEP = frozenset("execute_model sample_tokens schedule update_from_output".split())
_DRIVEN = ("GPUModelRunner", "WorkerBase", "Platform", "Scheduler")


class Severities:
    """Reads the call graph once, then answers for each draft."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        calls: dict[Ref | str, set[Ref]] = {}
        for edge in analysis.edges:
            if edge.always:
                calls.setdefault(edge.caller or edge.module, set()).add(edge.callee)
        self._calls = calls
        self.imported = self._reach(module for module in analysis.plugin_modules())
        self.starting = self._reach(self._roots(START_UP))
        self.stepping = self._reach(self._roots(STEP))

    def _reach(self, roots: Iterable[Ref | str]) -> set[Ref | str]:
        seen: set[Ref | str] = set()
        stack = list(roots)
        while stack:
            one = stack.pop()
            if one in seen:
                continue
            seen.add(one)
            stack.extend(self._calls.get(one, ()))
        return seen

    def _roots(self, names: frozenset[str]) -> list[Ref | str]:
        """The entry points, in the classes of the plugin that the engine drives."""
        classes = self.analysis.classes
        found: list[Ref | str] = []
        for module in self.analysis.plugin_modules():
            for qualname, outline in self.analysis.world.outlines[module].classes.items():
                bases = classes.mro(Ref(module, qualname)).refs
                if any(base.qualname in _DRIVEN and self.analysis.is_core(base) for base in bases):
                    found += [Ref(module, f"{qualname}.{name}") for name in names if name in outline.members]
        return found

    def of(self, draft: Draft) -> Severity:
        """When a draft's fault bites."""
        if draft.kind == "dataclass-order":
            return "import-time" if draft.place.function is None and not draft.place.conditional else "rare-path"
        function = draft.function or draft.place.function
        if draft.place.conditional and draft.function is None or draft.conditional:
            return "rare-path"
        if function is None:
            return "import-time"
        if function in self.imported:
            return "import-time"
        if function in self.starting:
            return "start-up"
        return "first-step" if function in self.stepping else "rare-path"
