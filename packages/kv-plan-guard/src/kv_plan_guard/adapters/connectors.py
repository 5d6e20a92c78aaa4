"""KV connectors by name: what their metadata says about blocks; others leave CONN and LIFETIME inactive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kv_plan_guard.facts import ConnectorFacts


class ConnectorReader:
    """Reads one connector's metadata out of each SchedulerOutput."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def facts(self, scheduler_output: Any) -> ConnectorFacts | None:
        """The facts of one step; None without a connector, or with one that is not known here."""
        return None
