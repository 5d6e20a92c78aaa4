"""What npu-smoke is asked to run, and what came of it, as data. No torch, no vLLM.

An *arm* is one set of plugins: ``off``, ``control`` (off once more, so that a device that does not repeat itself is
seen) and ``on-NAME`` for each plugin of this kit that registers itself here. A *unit* is a scenario or the profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ascend_sim.smoke.results import Comparison, Result
    from ascend_sim.smoke.scenarios import Scenario

PROFILE = "profile"
DEVICES = {"simulated": "simulated, no NPU", "npu": "NPU"}
OFF, CONTROL = "off", "control"
MODES = ("eager", "graph")


@dataclass(frozen=True)
class Plan:
    """What to run. `draft` enables the speculative scenarios; `devices` is how many NPUs there are (0: not known)."""

    model: Path
    out: Path
    scenarios: tuple[Scenario, ...]
    modes: tuple[str, ...]
    simulated: bool
    profile_steps: int = 8
    tensor_parallel_size: int = 1
    draft: Path | None = None
    graph_mode: str = "FULL_DECODE_ONLY"
    timeout_s: float = 1800.0
    devices: int = 0
    plugins: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # by name: additional_config

    @property
    def arms(self) -> dict[str, dict[str, Any]]:
        """Arms in the order in which they run, with their ``additional_config``."""
        return {OFF: {}, CONTROL: {}, **{f"on-{name}": config for name, config in self.plugins.items()}}

    @property
    def device(self) -> str:
        """Key of `DEVICES`."""
        return "simulated" if self.simulated else "npu"

    def left_out(self, scenario: Scenario) -> str:
        """Why a scenario cannot run here, or an empty string."""
        if scenario.speculative and self.draft is None:
            return "needs a draft model made for this one: give --draft"
        needed = scenario.engine.get("pipeline_parallel_size", 1) * self.tensor_parallel_size
        if not self.simulated and needed > max(self.devices, 1):
            return f"needs {needed} NPUs, {self.devices or 'an unknown number'} here"
        return ""


@dataclass(frozen=True)
class Row:
    """One unit of one arm in one mode. `status`: equal, differs, refused, failed, declined (the hook is not in place)
    or left out; `reason` says why.
    """

    mode: str
    unit: str
    arm: str
    status: str
    reason: str = ""
    result: Result | None = None
    comparison: Comparison | None = None
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Profile:
    """Counts of one arm's recorded decode steps. `status`: recorded, refused or failed; `reason` says why.

    `d2h`, `wait_event` (an order between streams) and `host_wait` are of rank 0 and over all recorded steps. `source`
    is what counted.
    """

    mode: str
    arm: str
    status: str
    steps: int = 0
    source: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    unmatched: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """Everything that ran: rows, profiles, what the engine's start did by mode, and the time it took."""

    rows: list[Row]
    profiles: list[Profile]
    stages: dict[str, dict[str, Any]]
    seconds: float

    @property
    def passed(self) -> bool:
        """Every comparison that could be made came out equal, nothing broke, and there is at least one."""
        statuses = [row.status for row in self.rows] + [one.status for one in self.profiles]
        broken = "differs" in statuses or "failed" in statuses
        return not broken and any(row.status == "equal" for row in self.rows)
