"""What the doctor says: findings, their order of weight, and the report of one core with one plugin."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["import-time", "start-up", "first-step", "rare-path"]
Level = Literal["error", "warning", "note"]
Confidence = Literal["high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("import-time", "start-up", "first-step", "rare-path")
LEVELS: tuple[Level, ...] = ("error", "warning", "note")
CONFIDENCES: tuple[Confidence, ...] = ("high", "medium", "low")
DEFAULT_CONFIDENCE: Confidence = "medium"


class DoctorError(ValueError):
    """The doctor cannot start: a tree, a version or a suppression file that cannot be used."""


@dataclass(frozen=True)
class Finding:
    """One incompatibility, with both sides.

    `file` is relative to the folder that holds the plugin's package, `core_file` to the one that holds the core's;
    lines count from 1 and `line`..`end_line` is the span of the plugin's statement or definition. `symbol` is
    "module:qualified.name" (or a module), `name` the bare name or the argument that Python's own message would have,
    `exception` what Python would raise ("" where nothing is raised). `id` does not change when lines move.
    """

    rule: str
    kind: str
    exception: str
    severity: Severity
    level: Level
    confidence: Confidence
    symbol: str
    name: str
    file: str
    line: int
    end_line: int
    message: str
    core_file: str | None = None
    core_line: int | None = None
    core_has: str = ""
    scope: str = ""
    since: str | None = None

    @property
    def id(self) -> str:
        """The rule and a hash of what is broken where, without lines."""
        text = "\0".join((self.file, self.scope, self.symbol, self.name, self.kind))
        return f"{self.rule}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return {"id": self.id, **dataclasses.asdict(self)}

    @property
    def order(self) -> tuple[Any, ...]:
        """Errors first, then what stops earliest, then what is surest, then where it is."""
        return (
            LEVELS.index(self.level),
            SEVERITIES.index(self.severity),
            CONFIDENCES.index(self.confidence),
            self.file,
            self.line,
            self.symbol,
            self.name,
        )


@dataclass(frozen=True)
class TreeInfo:
    """One side of a report: distribution, version (None where the tree tells none), content hash, files read."""

    name: str
    version: str | None
    sha256: str
    files: int


@dataclass(frozen=True)
class Report:
    """All findings of one core with one plugin, in order of weight; `suppressed` are those that a rule of the user hid.

    `seconds` is the time this run took, `cached` whether it was answered from the cache.
    """

    core: TreeInfo
    plugin: TreeInfo
    findings: tuple[Finding, ...]
    suppressed: tuple[Finding, ...] = ()
    seconds: float = 0.0
    cached: bool = False

    def at(self, confidence: Confidence = DEFAULT_CONFIDENCE) -> tuple[Finding, ...]:
        """The findings of at least this confidence."""
        most = CONFIDENCES.index(confidence)
        return tuple(finding for finding in self.findings if CONFIDENCES.index(finding.confidence) <= most)

    def count(self, level: Level, confidence: Confidence = DEFAULT_CONFIDENCE) -> int:
        """How many findings of one level there are."""
        return sum(finding.level == level for finding in self.at(confidence))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What stops the pair, at the default confidence."""
        return tuple(finding for finding in self.at() if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What breaks on a path that not every start takes, at the default confidence."""
        return tuple(finding for finding in self.at() if finding.level == "warning")

    def as_dict(self, confidence: Confidence = "low") -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "version": 1,
            "core": dataclasses.asdict(self.core),
            "plugin": dataclasses.asdict(self.plugin),
            "seconds": round(self.seconds, 3),
            "cached": self.cached,
            "counts": {level: self.count(level, confidence) for level in LEVELS},
            "findings": [finding.as_dict() for finding in self.at(confidence)],
            "suppressed": [finding.as_dict() for finding in self.suppressed],
        }


def report_from_dict(value: dict[str, Any]) -> Report:
    """A report as `as_dict` wrote it; KeyError or TypeError where it is something else."""

    def finding(item: dict[str, Any]) -> Finding:
        return Finding(**{name: part for name, part in item.items() if name != "id"})

    return Report(
        core=TreeInfo(**value["core"]),
        plugin=TreeInfo(**value["plugin"]),
        findings=tuple(map(finding, value["findings"])),
        suppressed=tuple(map(finding, value["suppressed"])),
        seconds=float(value["seconds"]),
        cached=bool(value["cached"]),
    )


def level_of(severity: Severity, confidence: Confidence, always: bool) -> Level:
    """An error stops every start or first step (`always`); what only some runs meet is a warning, a guess a note."""
    if confidence == "low":
        return "note"
    return "error" if always and severity != "rare-path" and confidence == "high" else "warning"
