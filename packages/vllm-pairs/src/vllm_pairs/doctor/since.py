"""Since which core release something is broken: the same findings looked for in older cores."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.version import Version

from vllm_pairs.doctor.findings import DoctorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.doctor.engine import Workbench
    from vllm_pairs.doctor.findings import Finding, Report


def bisect(report: Report, cores: list[str], run: Callable[[str], Report], bench: Workbench) -> Report:
    """Give each finding the first of `cores` (paths or distributions, any order) from which on it is there.

    `run` makes the report of the same plugin with one of them. A core is only run while a finding's first one is not
    settled, by halving: a finding that comes and goes gets the start of its last stretch as far as it was looked.
    DoctorError where a core tells no version.
    """
    versions = {where: bench.core(where).version for where in cores}
    if missing := [where for where, version in versions.items() if version is None]:
        raise DoctorError(f"--since: {missing[0]!r} tells no version, so it has no place among the releases")
    releases = sorted(cores, key=lambda where: Version(versions[where] or "0"))
    reports: dict[int, set[str]] = {}

    def has(number: int, finding: Finding) -> bool:
        if number >= len(releases):
            return True  # the core of the report itself
        if number not in reports:
            reports[number] = {one.id for one in run(releases[number]).findings}
        return finding.id in reports[number]

    def first(finding: Finding) -> str | None:
        low, high = 0, len(releases)  # it is there at `high`
        while low < high:
            middle = (low + high) // 2
            if has(middle, finding):
                high = middle
            else:
                low = middle + 1
        return versions[releases[high]] if high < len(releases) else report.core.version

    return replace(report, findings=tuple(replace(one, since=first(one)) for one in report.findings))
