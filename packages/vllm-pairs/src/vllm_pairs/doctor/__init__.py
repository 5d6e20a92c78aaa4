"""The compatibility doctor: reads a core's and a plugin's source without importing them and says what will break."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_pairs.doctor.engine import Workbench
from vllm_pairs.doctor.findings import DoctorError, Finding, Report

if TYPE_CHECKING:
    from pathlib import Path


def doctor(
    core: str | Path = "",
    plugin: str | Path = "",
    *,
    core_version: str | None = None,
    plugin_version: str | None = None,
) -> Report:
    """All findings of one core with one plugin.

    Each side is a path (source tree, folder that holds the package, wheel) or an installed distribution's name; ""
    stands for the installed one. DoctorError where a side cannot be used.
    """
    bench = Workbench()
    return bench.run(bench.core(core, core_version), bench.plugin(plugin, plugin_version))


__all__ = ["DoctorError", "Finding", "Report", "Workbench", "doctor"]
