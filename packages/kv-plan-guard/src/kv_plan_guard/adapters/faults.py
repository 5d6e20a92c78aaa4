"""The catalogue: each fault as it would be made by wrong code of a runner, on the runner's own tensors and objects."""

from __future__ import annotations

from kv_plan_guard.adapters import faults_plan, faults_runner  # noqa: F401  # they fill the catalogue
from kv_plan_guard.adapters.planting import FAULTS

__all__ = ["FAULTS"]
