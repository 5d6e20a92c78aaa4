"""One core with one plugin: walk the plugin once, let every rule look, then give each finding its severity."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm_pairs.doctor.classes import Classes
from vllm_pairs.doctor.fields import Constructors
from vllm_pairs.doctor.findings import Finding, level_of
from vllm_pairs.doctor.infer import Inference
from vllm_pairs.doctor.rules import BY_KIND
from vllm_pairs.doctor.walk import Place, Walker, is_core

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.doctor.findings import Confidence, Level, Severity
    from vllm_pairs.doctor.world import Ref, Value, World


@dataclass(frozen=True)
class Draft:
    """A finding before its severity is known: `place` says where it stands, `node` which lines it spans."""

    kind: str
    symbol: str
    name: str
    node: ast.AST
    place: Place
    message: str
    confidence: Confidence = "high"
    core: Ref | None = None
    core_line: int | None = None
    core_has: str = ""
    harmless: bool = False  # handled or never run: a note whatever its confidence
    function: Ref | None = None  # what fails, where it is not where the node stands
    self_type: Ref | None = None  # and for which class of self
    conditional: bool = False
    soft: bool = False  # stands on an annotation of the plugin's, which nothing holds to
    injectable: tuple[tuple[str, str], ...] = ()  # places where the plugin itself may have put what is missing


@dataclass(frozen=True)
class Edge:
    """A call: who calls (None: the module's own code), what, and whether always."""

    module: str
    caller: Ref | None
    callee: Ref
    always: bool


@dataclass(frozen=True)
class Injection:
    """Where the plugin puts something into the core: module, function (None: the module's own code), line."""

    module: str
    function: Ref | None
    line: int


class Analysis:
    """The shared state of the rules: both trees, what is known of them, drafts and calls."""

    def __init__(self, world: World, core: str, plugin: str) -> None:
        self.world, self.core, self.plugin = world, core, plugin
        self.classes = Classes(world)
        self.inference = Inference(self.classes)
        self.constructors = Constructors(self.classes)
        self.walker = Walker(self.inference)
        self.drafts: list[Draft] = []
        self.edges: list[Edge] = []
        self.imports: dict[Ref | str, list[str]] = {}  # a module or function: the plugin's modules that it imports
        self.plugin_stores: frozenset[str] = frozenset().union(  # names that it sets on other objects
            *(world.outlines[module].stores for module in self.plugin_modules())
        )
        self.replaced: dict[Ref, list[Value]] = {}  # a core definition: what the plugin puts in its place
        # (module or class, name) of what the plugin puts into the core
        self.injected: dict[tuple[str, str], list[Injection]] = {}
        self.stand_ins: set[str] = set()  # modules that the plugin puts into sys.modules

    def plugin_modules(self) -> list[str]:
        """The plugin's modules, in order."""
        return sorted(self.world.roots[self.plugin].files)

    def is_core(self, value: Value | Ref) -> bool:
        """Whether a definition is the core's."""
        return is_core(value, self.core)

    def is_plugin(self, value: Value | Ref) -> bool:
        """Whether a definition is the plugin's."""
        return is_core(value, self.plugin)

    def add(self, draft: Draft) -> None:
        """Keep what a rule found."""
        self.drafts.append(draft)

    def line_of(self, ref: Ref | None) -> int | None:
        """The line on which something is defined."""
        node = self.world.node(ref) if ref is not None and ref.qualname else None
        return getattr(node, "lineno", None)

    def findings(self, severity: Callable[[Draft], tuple[Severity, bool]]) -> list[Finding]:
        """The drafts as findings, each once; `severity` also says whether the place is reached on every such path."""
        made: dict[tuple[str, int, str], Finding] = {}
        for draft in self.drafts:
            finding = self._finding(draft, *severity(draft))
            made.setdefault((finding.id, finding.line, finding.core_file or ""), finding)
        return sorted(made.values(), key=lambda finding: finding.order)

    def _put_before(self, draft: Draft, line: int) -> bool:
        """Whether the plugin may itself have put there what is missing, before it is read.

        Code that keeps the original and then replaces it reads first: `old = core.f; core.f = new`.
        """
        for place in draft.injectable:
            for one in self.injected.get(place, ()):
                beside = (one.module, one.function) == (draft.place.module, draft.place.function)
                if not beside or one.line < line:
                    return True
        return False

    def _finding(self, draft: Draft, severity: Severity, always: bool) -> Finding:
        rule = BY_KIND[draft.kind]
        statement = draft.node if isinstance(draft.node, ast.stmt) else draft.place.statement
        line, end_line = _span(draft.node, statement)
        confidence: Confidence = draft.confidence
        if draft.symbol in self.stand_ins or self._put_before(draft, line):
            confidence = "low"
        elif draft.soft and confidence == "high":
            confidence = "low" if severity == "rare-path" else "medium"
        level: Level = "note" if draft.harmless else level_of(severity, confidence, always)
        function = draft.place.function
        return Finding(
            rule=rule.id,
            kind=draft.kind,
            exception=rule.exception,
            severity=severity,
            level=level,
            confidence=confidence,
            symbol=draft.symbol,
            name=draft.name,
            file=self.world.path(draft.place.module) or draft.place.module,
            line=line,
            end_line=end_line,
            message=draft.message,
            core_file=self.world.path(draft.core.module) if draft.core is not None else None,
            core_line=draft.core_line if draft.core_line is not None else self.line_of(draft.core),
            core_has=draft.core_has,
            scope=function.qualname if function is not None else "",
        )


def _span(node: ast.AST, statement: ast.stmt) -> tuple[int, int]:
    """The lines of a finding: an expression's own, a definition's head, else the statement's."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return first, max(node.lineno, node.body[0].lineno - 1)
    line = getattr(node, "lineno", statement.lineno)
    return line, getattr(node, "end_lineno", None) or line
