"""The protocol: what is compared, how, and what will count as proof; written and hashed before the first start."""

from __future__ import annotations

import re
import tomllib
from math import log1p
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from . import canonical
from .errors import ProtocolError
from .stats import MIN_PAIRS

if TYPE_CHECKING:
    from pathlib import Path

Text = Annotated[str, Field(min_length=1, max_length=4_000)]
Slug = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
Command = Annotated[tuple[Text, ...], Field(min_length=1, max_length=256)]
Arm = Literal["A", "B"]
ExclusionRule = Literal[
    "server-not-ready", "server-died", "client-failed", "result-unreadable", "runner-killed", "requests-failed"
]
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
PLACEHOLDERS = frozenset({"host", "port", "base_url", "result_dir", "result_file", "additional_config", "model"})


class _Model(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ArmSpec(_Model):
    """One arm: the server command, what it adds to the environment, and how its plugin shows that it is active."""

    label: Text
    command: Command
    environment: dict[Slug | Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")], str] = {}
    additional_config: dict[str, Any] | None = None
    active_log: str | None = None

    @field_validator("active_log")
    @classmethod
    def _is_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as problem:
                raise ValueError(f"not a regular expression: {problem}") from None
        return value


class Scenario(_Model):
    """One client command against a ready server; `outputs` says whether texts must be equal across starts."""

    name: Slug
    command: Command
    outputs: Literal["equal", "report"] = "report"
    timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 3_600.0


class Claim(_Model):
    """What is claimed of one metric: B better than A by more than the margin, not worse, or the same within it.

    margin: a fraction (0.01 is 1 %); direction: needed only for metrics this package does not know.
    """

    metric: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,80}$")]
    scenario: Slug
    rule: Literal["better", "not-worse", "same"] = "better"
    margin: Annotated[float, Field(ge=0, lt=1)] = 0.0
    direction: Literal["higher", "lower"] | None = None

    @model_validator(mode="after")
    def _same_needs_margin(self) -> Claim:
        if self.rule == "same" and self.margin == 0:
            raise ValueError('rule "same" needs a margin above 0: nothing is ever shown to be exactly equal')
        return self

    @property
    def log_margin(self) -> float:
        """The margin in log-ratio units."""
        return log1p(self.margin)


class Design(_Model):
    """How many pairs of starts, in ABBA/BAAB blocks drawn from the seed, and how often one start is tried again."""

    pairs: Annotated[int, Field(ge=1, le=1_000)] = 10
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    order: Literal["ABBA/BAAB"] = "ABBA/BAAB"
    attempts: Annotated[int, Field(ge=1, le=20)] = 3


class Decision(_Model):
    """Numbers of the decision rule."""

    level: Annotated[float, Field(ge=0.8, lt=1)] = 0.95
    resamples: Annotated[int, Field(ge=999, le=100_000)] = 9_999
    power: Annotated[float, Field(ge=0.5, lt=1)] = 0.8


class Host(_Model):
    """Where server and client run: CPUs they are bound to, how readiness is asked, how long each wait may last."""

    server_cpus: tuple[Annotated[int, Field(ge=0, le=4_095)], ...] = ()
    client_cpus: tuple[Annotated[int, Field(ge=0, le=4_095)], ...] = ()
    address: Literal["127.0.0.1"] = "127.0.0.1"
    ready_path: Annotated[str, Field(pattern=r"^/[A-Za-z0-9_/.-]*$")] = "/health"
    ready_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    stop_timeout_s: Annotated[float, Field(gt=0, le=3_600)] = 60.0


class Cache(_Model):
    """State of the server's caches when measuring begins; a new process per start makes `cold` true by itself."""

    policy: Literal["cold", "warmed"] = "cold"
    note: str = ""


class CounterRule(_Model):
    """An exact expectation of one counter in each arm: the mechanism, apart from any time."""

    counter: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,80}$")]
    A: float
    B: float


class Mechanism(_Model):
    """Counters read after the scenarios: the command's JSON output (flat name: number), and what it must say."""

    command: Command
    rules: Annotated[tuple[CounterRule, ...], Field(min_length=1)]


class Protocol(_Model):
    """A whole protocol; `hash` names it, and a packet whose data are older than it is INVALID."""

    version: Literal[1]
    name: Slug
    question: Text
    notes: str = ""
    arms: dict[Arm, ArmSpec]
    scenarios: Annotated[tuple[Scenario, ...], Field(min_length=1, max_length=32)]
    primary: Claim
    gates: tuple[Claim, ...] = ()
    secondary: tuple[Claim, ...] = ()
    design: Design = Design()
    decision: Decision = Decision()
    host: Host = Host()
    warm_up: Command | None = None
    cache: Cache = Cache()
    exclude_when: tuple[ExclusionRule, ...] = (
        "server-not-ready",
        "server-died",
        "client-failed",
        "result-unreadable",
        "runner-killed",
    )
    code_paths: tuple[Text, ...] = ()
    model: Text | None = None
    mechanism: Mechanism | None = None
    independent: bool = False
    who_runs: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> Protocol:
        if set(self.arms) != {"A", "B"}:
            raise ValueError(f"`arms` must be A (control) and B (treatment), got {sorted(self.arms)!r}")
        names = [scenario.name for scenario in self.scenarios]
        if len(set(names)) != len(names):
            raise ValueError(f"scenario names must differ, got {names!r}")
        for claim in self.claims():
            if claim.scenario not in names:
                raise ValueError(f"claim on {claim.metric!r} names scenario {claim.scenario!r}; known are {names!r}")
        both = set(self.host.server_cpus) & set(self.host.client_cpus)
        if both:
            raise ValueError(f"server and client share CPUs {sorted(both)!r}: pin them apart or pin neither")
        for where, command in self._commands():
            unknown = {name for word in command for name in _PLACEHOLDER.findall(word) if name.isidentifier()}
            unknown -= PLACEHOLDERS
            if unknown:
                raise ValueError(f"{where} uses {{{sorted(unknown)[0]}}}; placeholders are {sorted(PLACEHOLDERS)!r}")
            if self.model is None and any("{model}" in word for word in command):
                raise ValueError(f"{where} uses {{model}}, and the protocol names no `model` folder")
        return self

    def _commands(self) -> list[tuple[str, tuple[str, ...]]]:
        commands = [(f"arms.{name}.command", arm.command) for name, arm in self.arms.items()]
        commands += [(f"scenario {scenario.name!r}", scenario.command) for scenario in self.scenarios]
        if self.warm_up is not None:
            commands.append(("warm_up", self.warm_up))
        if self.mechanism is not None:
            commands.append(("mechanism.command", self.mechanism.command))
        return commands

    def claims(self) -> tuple[Claim, ...]:
        """Primary, gates and secondary family, in that order."""
        return (self.primary, *self.gates, *self.secondary)

    def canonical(self) -> str:
        """Canonical JSON of every field, defaults included: a changed default changes the hash."""
        return canonical.dumps(self.model_dump(mode="json"))

    @property
    def hash(self) -> str:
        """Hex SHA-256 of the canonical form."""
        return canonical.sha256(self.canonical().encode("utf-8"))

    def warnings(self) -> list[str]:
        """What a reader should know before starting, one sentence each."""
        found = []
        if self.design.pairs < MIN_PAIRS:
            found.append(f"{self.design.pairs} pairs can only end INCONCLUSIVE: a verdict needs {MIN_PAIRS}")
        if not self.host.server_cpus or not self.host.client_cpus:
            found.append("server and client are not both pinned to CPUs: expect wider intervals")
        if len(self.secondary) * 2.0 ** (1 - self.design.pairs) > 1 - self.decision.level:
            found.append(
                f"{len(self.secondary)} secondary metrics at {self.design.pairs} pairs: "
                "Holm's correction of the exact test can never reach significance"
            )
        return found


def substitute(command: tuple[str, ...], values: dict[str, str]) -> list[str]:
    """The command with its {placeholders} filled in; other braces (JSON) are left alone."""
    return [_PLACEHOLDER.sub(lambda m: values.get(m.group(1), m.group(0)), word) for word in command]


def parse(text: str, name: str = "protocol.toml") -> Protocol:
    """Protocol from TOML text; raises ProtocolError with field, value and what was expected."""
    try:
        raw = tomllib.loads(text)
        return Protocol.model_validate_json(canonical.dumps(raw))
    except tomllib.TOMLDecodeError as problem:
        raise ProtocolError(f"{name}: not TOML: {problem}") from None
    except ValidationError as problem:
        raise ProtocolError(f"{name}: {explain(problem)}") from None
    except (TypeError, ValueError, RecursionError) as problem:
        raise ProtocolError(f"{name}: a value that a protocol cannot hold (date, NaN or too deep): {problem}") from None


def load(path: Path) -> Protocol:
    """Protocol from a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as problem:
        raise ProtocolError(f"{path}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ProtocolError(f"{path}: not UTF-8 text") from None
    return parse(text, path.name)


def explain(problem: ValidationError) -> str:
    """First validation error as one sentence: field, value, reason."""
    first = problem.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "protocol"
    more = f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
    return f"`{where}` = {str(first['input'])[:80]!r}: {first['msg']}{more}"
