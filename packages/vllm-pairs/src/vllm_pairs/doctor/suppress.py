"""Suppressions: one finding each, with a reason and the pair at which they end.

A suppression names a finding's id (rule and hash), never a whole rule, file or pattern. From the named core release on
it no longer counts and is itself reported, so that nothing stays hidden for ever.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from packaging.version import InvalidVersion, Version

from vllm_pairs.doctor.findings import DoctorError, Report

if TYPE_CHECKING:
    from pathlib import Path

_ID = re.compile(r"VPD\d{3}-[0-9a-f]{8}")
_FIELDS = {"id", "reason", "expires"}


@dataclass(frozen=True)
class Suppression:
    """One hidden finding: its id, why, and the core release with which it ends."""

    id: str
    reason: str
    expires: str

    def expired(self, core_version: str | None) -> bool:
        """Whether the core has reached the release; an unknown version counts as reached."""
        return core_version is None or Version(Version(core_version).public) >= Version(self.expires)


def load(path: Path) -> tuple[Suppression, ...]:
    """Read `[[suppress]]` tables of a TOML file; DoctorError names the entry and the field."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DoctorError(f"the suppression file {str(path)!r} cannot be read: {error}") from error
    rows = table.get("suppress", [])
    if set(table) - {"suppress"} or not isinstance(rows, list):
        raise DoctorError(f"{str(path)!r}: expected [[suppress]] tables only, got {sorted(table)}")
    return tuple(_one(f"{path}: suppress[{number}]", row) for number, row in enumerate(rows))


def _one(where: str, row: Any) -> Suppression:
    if not isinstance(row, dict) or set(row) != _FIELDS:
        found = sorted(row) if isinstance(row, dict) else repr(row)
        raise DoctorError(f"{where}: expected exactly the fields {sorted(_FIELDS)}, got {found}")
    for name, value in row.items():
        if not isinstance(value, str) or not value.strip():
            raise DoctorError(f"{where}: field {name!r} must be text, got {value!r}")
    if not _ID.fullmatch(row["id"]):
        raise DoctorError(f"{where}: field 'id' must be the id of one finding (VPD101-1a2b3c4d), got {row['id']!r}")
    try:
        Version(row["expires"])
    except InvalidVersion:
        raise DoctorError(
            f"{where}: field 'expires' must be a core release such as '0.31.0', got {row['expires']!r}"
        ) from None
    return Suppression(**row)


def apply(report: Report, suppressions: tuple[Suppression, ...]) -> tuple[Report, list[str]]:
    """The report without what is hidden, and what to say of suppressions that ended or hide nothing."""
    hiding = {one.id for one in suppressions if not one.expired(report.core.version)}
    found = {finding.id for finding in report.findings}
    said = [
        f"suppression {one.id} ended with core {one.expires} ({one.reason})"
        if one.expired(report.core.version)
        else f"suppression {one.id} hides nothing; remove it ({one.reason})"
        for one in suppressions
        if one.expired(report.core.version) or one.id not in found
    ]
    kept = tuple(finding for finding in report.findings if finding.id not in hiding)
    hidden = tuple(finding for finding in report.findings if finding.id in hiding)
    return replace(report, findings=kept, suppressed=(*report.suppressed, *hidden)), said
