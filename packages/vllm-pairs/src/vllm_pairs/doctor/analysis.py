"""One core with one plugin: walk the plugin once, let every rule look, then give each finding its severity."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vllm_pairs.doctor.classes import Classes
from vllm_pairs.doctor.fields import Constructors
from vllm_pairs.doctor.findings import Finding, level_of
from vllm_pairs.doctor.infer import Inference
from vllm_pairs.doctor.places import is_core
from vllm_pairs.doctor.rules import BY_KIND
from vllm_pairs.doctor.scopes import Scope
from vllm_pairs.doctor.walk import Walker

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.doctor.findings import Confidence, Level, Severity
    from vllm_pairs.doctor.places import Place
    from vllm_pairs.doctor.world import Ref, Value, World


_AT_ONCE = ("missing-module", "missing-name", "missing-attribute")  # what raises as soon as a module reads it


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
    read_at: int | None = None  # the line of the module's own code that read what is used here; None: it is read here


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
        # a module of the plugin: core modules that are not there and that it imports (reading them fails thereafter)
        self.refused: dict[str, set[str]] = {}
        self.stand_ins: set[str] = set()  # modules that the plugin puts into sys.modules
        self._ends: dict[str, int] = {}

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
        """Keep what a rule found, without the syntax trees that its node and place hold on to."""
        place = draft.place
        statement = draft.node if isinstance(draft.node, ast.stmt) else place.statement
        line, end_line = _span(draft.node, statement)
        mark = ast.Pass(lineno=line, end_lineno=end_line)
        place = replace(place, scope=Scope(place.module, mark), statement=mark)
        core_line = draft.core_line if draft.core_line is not None else self.line_of(draft.core)
        self.drafts.append(replace(draft, node=mark, place=place, core_line=core_line))

    def put(self) -> tuple[Any, ...]:
        """What the plugin puts where, as far as this process has read it: for the other half."""
        return self.injected, self.stand_ins

    def take_put(self, put: tuple[Any, ...]) -> None:
        """And what another process has read."""
        injected, stand_ins = put
        for place, made in injected.items():
            self.injected.setdefault(place, []).extend(made)
        self.stand_ins |= stand_ins

    def found(self) -> tuple[Any, ...]:
        """All else that a process found."""
        return self.drafts, self.edges, self.imports, self.replaced, self.walker.too_deep

    def take_found(self, found: tuple[Any, ...]) -> None:
        """And what another did."""
        drafts, edges, loaded, replaced, too_deep = found
        self.drafts += drafts
        self.edges += edges
        for table, more in ((self.imports, loaded), (self.replaced, replaced)):
            for key, values in more.items():
                table.setdefault(key, []).extend(values)
        self.walker.too_deep |= too_deep

    def line_of(self, ref: Ref | None) -> int | None:
        """The line on which something is defined."""
        node = self.world.node(ref) if ref is not None and ref.qualname else None
        return getattr(node, "lineno", None)

    def findings(self, severity: Callable[[Draft], tuple[Severity, bool]]) -> list[Finding]:
        """The drafts as findings, each once; `severity` also says whether the place is reached on every such path."""
        made: dict[tuple[str, int, str], Finding] = {}
        self._ends = self._unfinished()
        for draft in self.drafts:
            finding = self._finding(draft, *severity(draft))
            made.setdefault((finding.id, finding.line, finding.core_file or ""), finding)
        return sorted(made.values(), key=lambda finding: finding.order)

    def _unfinished(self) -> dict[str, int]:
        """Modules of the plugin whose import fails for sure, with the line: nothing below it is ever put anywhere."""
        ends: dict[str, int] = {}
        for draft in self.drafts:
            place = draft.place
            if draft.kind not in _AT_ONCE or place.function is not None or draft.confidence != "high":
                continue
            if draft.harmless or place.conditional or place.handled or place.typing or self._is_put(draft) is not False:
                continue
            line, _ = _lines(draft)
            ends[place.module] = min(line, ends.get(place.module, line))
        return ends

    def _is_put(self, draft: Draft) -> bool | None:
        """Whether the plugin may itself have put there what is missing, before it is read; None: once mended.

        None stands for what a module would put there whose own import fails before: with that mended, it may be there.

        Code that keeps the original and then replaces it reads first: `old = core.f; core.f = new`; a function that
        stands below what a module reads when it is imported cannot have run by then.
        """
        if draft.symbol in self.stand_ins:
            return True
        module, function = draft.place.module, draft.place.function if draft.read_at is None else None
        line = draft.read_at or _lines(draft)[0]
        answer: bool | None = False
        for place in draft.injectable:
            for one in self.injected.get(place, ()):
                beside = one.module == module and function in (None, one.function)
                if beside and one.line >= line:
                    continue
                if one.line <= self._ends.get(one.module, one.line):
                    return True
                answer = None
        return answer

    def _finding(self, draft: Draft, severity: Severity, always: bool) -> Finding:
        rule = BY_KIND[draft.kind]
        line, end_line = _lines(draft)
        confidence: Confidence = draft.confidence
        if put := self._is_put(draft):
            confidence = "low"
        elif put is None and confidence == "high":
            confidence = "medium"
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
            core_line=draft.core_line,
            core_has=draft.core_has,
            scope=function.qualname if function is not None else "",
        )


def _lines(draft: Draft) -> tuple[int, int]:
    """The lines of a kept draft."""
    return draft.place.statement.lineno, draft.place.statement.end_lineno or draft.place.statement.lineno


def _span(node: ast.AST, statement: ast.stmt) -> tuple[int, int]:
    """The lines of a finding: an expression's own, a definition's head, else the statement's."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        return first, max(node.lineno, node.body[0].lineno - 1)
    line = getattr(node, "lineno", statement.lineno)
    return line, getattr(node, "end_lineno", None) or line
