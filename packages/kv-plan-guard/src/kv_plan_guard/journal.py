"""What a replay needs: the state of a while ago, and every fact since. Written when something is wrong.

A replay file is one JSON document, bounded in size; it holds block ids, counts and request ids, and no token.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard import config as config_module
from kv_plan_guard import layout as layout_module
from kv_plan_guard import serial, state

if TYPE_CHECKING:
    from kv_plan_guard.config import Config
    from kv_plan_guard.facts import OutputFacts, PlanFacts, StepFacts
    from kv_plan_guard.layout import Layout
    from kv_plan_guard.mirror import Mirror
    from kv_plan_guard.transfers import Transfers
    from kv_plan_guard.violation import Violation

LOG = logging.getLogger("kv_plan_guard")
FORMAT: Final = "kv-plan-guard replay"
VERSION: Final = 1
#: Steps between two copies of the state; facts of that many steps are held (by reference).
PERIOD: Final = 64


class Journal:
    """The journal of one guard; does nothing where no replay file may be written."""

    def __init__(self, config: Config, layout: Layout, mirror: Mirror, transfers: Transfers) -> None:
        self._config = config
        self._layout = layout
        self._mirror = mirror
        self._transfers = transfers
        self._on = config.replay_files > 0
        self._state: state.State | None = None
        self._since: list[tuple[str, StepFacts | OutputFacts]] = []
        self._steps = 0
        self._folder: Path | None = None
        self.written = 0

    def observe(self, facts: StepFacts) -> None:
        """A decision is about to be taken in."""
        if not self._on:
            return
        if self._state is None or self._steps >= PERIOD:
            self._state = state.capture(self._mirror, self._transfers)
            self._since = []
            self._steps = 0
        self._steps += 1
        self._since.append(("observe", facts))

    def settle(self, facts: OutputFacts) -> None:
        """An output is about to be taken in."""
        if self._on:
            self._since.append(("settle", facts))

    def write(self, violations: tuple[Violation, ...], plan: PlanFacts | None) -> Path | None:
        """Write a replay file; None where the number of files is used up, or it would be too large or fails."""
        if not self._on or self.written >= self._config.replay_files or self._state is None:
            return None
        try:
            text = json.dumps(self._document(violations, plan))
        except (
            TypeError,
            ValueError,
            KeyError,
        ) as error:  # facts of a kind that JSON has not: the finding matters more
            LOG.warning("no replay file: %s", error)
            return None
        if len(text) > self._config.replay_bytes:
            LOG.warning("no replay file: %d bytes, replay_bytes allows %d", len(text), self._config.replay_bytes)
            return None
        try:
            folder = self._make_folder()
            path = folder / f"kv-plan-guard-{os.getpid()}-{self.written:04d}.json"
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            LOG.warning("no replay file: %s", error)
            return None
        self.written += 1
        return path

    def _make_folder(self) -> Path:
        if self._folder is None:
            if self._config.replay_dir is None:
                self._folder = Path(tempfile.mkdtemp(prefix="kv-plan-guard-"))
            else:
                self._folder = Path(self._config.replay_dir)
                self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def _document(self, violations: tuple[Violation, ...], plan: PlanFacts | None) -> dict[str, Any]:
        assert self._state is not None
        write = {"observe": serial.step_to_json, "settle": serial.output_to_json}
        config = replace(self._config, replay_dir=None, stats_dir=None)
        return {
            "format": FORMAT,
            "version": VERSION,
            "config": config_module.to_json(config),
            "layout": layout_module.to_json(self._layout),
            "state": state.to_json(self._state, self._layout),
            "facts": [[kind, write[kind](facts)] for kind, facts in self._since],  # type: ignore[operator]
            "plan": None if plan is None else serial.plan_to_json(plan),
            "violations": [violation.to_json() for violation in violations],
        }
