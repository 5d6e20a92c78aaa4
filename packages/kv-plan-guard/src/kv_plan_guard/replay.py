"""Reproduce a finding from its file, on any machine: no torch, no vLLM, nothing written.

The file is data from elsewhere: it is bounded before it is read, every value is checked, and whatever else may go
wrong with it is one ReplayError.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard import config as config_module
from kv_plan_guard import layout as layout_module
from kv_plan_guard import report, serial, state, values
from kv_plan_guard.errors import GuardError, ReplayError
from kv_plan_guard.guard import Guard
from kv_plan_guard.journal import FORMAT, VERSION
from kv_plan_guard.violation import Violation

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES: Final = 64 << 20
MAX_FACTS: Final = 4096
#: What a damaged file can make the guard stumble over; anything else would be a fault of the guard itself.
_STUMBLES: Final = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    AssertionError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The outcome: the findings of the replay, what the file says was found, and the report."""

    violations: tuple[Violation, ...]
    recorded: tuple[str, ...]
    text: str

    @property
    def reproduced(self) -> bool:
        """Whether the replay found what the file says."""
        return bool(self.recorded) and tuple(report.first_line(v) for v in self.violations) == self.recorded


def read(path: Path) -> dict[str, Any]:
    """The document of a file; ReplayError says what is wrong with it."""
    try:
        if not path.is_file():
            raise ReplayError(f"{str(path)!r} is no file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise ReplayError(f"{path.name!r} has {size} bytes; a replay file has at most {MAX_BYTES}")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, ReplayError):
            raise
        raise ReplayError(f"{str(path)!r} cannot be read: {error}") from None
    return parse(data)


def parse(data: bytes) -> dict[str, Any]:
    """The document of a file's bytes."""
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError, MemoryError) as error:
        raise ReplayError(f"not a JSON document: {str(error)[:120] or type(error).__name__}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ReplayError(f'not a replay file: its "format" is not {FORMAT!r}')
    if document.get("version") != VERSION:
        raise ReplayError(f"replay file of version {str(document.get('version'))[:20]}; this program reads {VERSION}")
    return document


def run(document: dict[str, Any]) -> Replayed:
    """Build the guard as it was, feed it the facts, and audit the plan again."""
    try:
        return _run(document)
    except ReplayError:
        raise
    except GuardError as error:
        raise ReplayError(f"the replay file contradicts itself: {str(error)[:200]}") from None
    except _STUMBLES as error:
        raise ReplayError(f"the replay file is damaged ({type(error).__name__}: {str(error)[:120]})") from None


def _run(document: dict[str, Any]) -> Replayed:
    config = replace(config_module.parse(document["config"]), action="log", replay_files=0, stats_dir=None)
    layout = layout_module.from_json(document["layout"])
    _bound(layout)
    guard = Guard(config, layout)
    state.restore(document["state"], guard.mirror, guard.transfers)
    groups = len(layout.groups)
    facts = values.items("facts", document["facts"])
    if len(facts) > MAX_FACTS:
        raise ReplayError(f"{len(facts)} facts; a replay file has at most {MAX_FACTS}")
    found: tuple[Violation, ...] = ()
    for entry in facts:
        parts = values.items("fact", entry)
        if len(parts) != 2 or parts[0] not in ("observe", "settle"):
            raise values.refuse("fact", "observe or settle with its values", entry)
        if parts[0] == "observe":
            found = guard.observe(serial.step_from_json(parts[1], groups)).violations
        else:
            guard.settle(serial.output_from_json(parts[1]))
    plan = None
    if document["plan"] is not None:
        plan = serial.plan_from_json(document["plan"], groups)
        found = guard.audit(plan).violations
    recorded = tuple(_recorded(entry) for entry in values.items("violations", document["violations"]))
    text = guard.report(found, plan) if found else "nothing found"
    return Replayed(found, recorded, text)


def _bound(layout: layout_module.Layout) -> None:
    """A layout of a size that cannot be used to ask for memory."""
    for number, group in enumerate(layout.groups):
        if group.pool_blocks > values.MAX_POOL or group.block_size > 1 << 20 or group.ratio > 4096:
            raise ReplayError(
                f"group {number} is too large for a replay: {group.pool_blocks} blocks, {group.block_size} tokens each"
            )
        for name in ("window", "shards", "interleave", "state_blocks", "row_width", "kernel_pool_blocks"):
            value = getattr(group, name)
            if value is not None:
                values.whole(f"group {number}.{name}", value, 0, values.MAX_LENGTH)
    for name in ("pcp_size", "steps_in_flight", "num_speculative_tokens", "tokens_per_write"):
        values.whole(f"layout.{name}", getattr(layout, name), 0, 1 << 16)


def _recorded(value: object) -> str:
    plain = values.table("violation", value)
    known = {name: plain[name] for name in Violation.__slots__ if name in plain}
    from kv_plan_guard.violation import Code

    known["code"] = Code(known["code"])
    return report.first_line(Violation(**known))
