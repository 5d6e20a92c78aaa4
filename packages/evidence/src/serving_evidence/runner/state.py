"""The run folder on disk: what is locked, done, excluded; every change is one rename, so a kill never tears it.

run.json            id, protocol hash, time of locking      starts/NNN-A/     complete starts (start.json last)
protocol.toml       as locked                               work/NNN-A/       the start being measured
deviations.jsonl    added to, never changed                 excluded/...      begun and not counted, exclusion.json
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from .. import canonical, protocol
from ..errors import RunError
from ..packet.records import Deviation, ExclusionRecord, StartRecord

if TYPE_CHECKING:
    from pathlib import Path

    from ..protocol import Protocol
    from ..schedule import Slot


# A runner killed between fork and exec of a server leaves the lock with that child until the child's exec.
_LOCK_WAIT_S = 3.0


class State:
    """One run folder, held by one runner at a time."""

    def __init__(self, folder: Path, declared: Protocol, text: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        # Held open for as long as the run lasts; `close` lets go.
        self._lock = (folder / ".lock").open("w")
        try:
            self._claim(declared, text)
        except BaseException:
            self.close()
            raise

    def _claim(self, declared: Protocol, text: str) -> None:
        """Take the folder for this runner, and the protocol that is locked in it."""
        folder = self.folder
        self._take(folder)
        if not (folder / "run.json").exists():
            if not _fresh(folder, text):
                raise RunError(f"{folder}: not empty and not a run folder; give a new one")
            _write(folder / "protocol.toml", text)
            _write(
                folder / "run.json",
                canonical.dumps({"id": uuid.uuid4().hex, "protocol_hash": declared.hash, "locked_at": time.time()}),
            )
        found = canonical.read(folder / "run.json", RunError)
        self.run_id, self.locked_at = str(found["id"]), float(found["locked_at"])
        self.protocol = protocol.load(folder / "protocol.toml")
        self.protocol_text = (folder / "protocol.toml").read_text(encoding="utf-8")
        if self.protocol.hash != found["protocol_hash"]:
            raise RunError(f"{folder}/protocol.toml was changed after it was locked")
        if declared.hash != self.protocol.hash:
            raise RunError(
                "the protocol differs from the one locked in this folder; take a new folder, or keep the "
                "locked one and say what changes with --deviation"
            )
        for name in ("starts", "work", "excluded"):
            (folder / name).mkdir(exist_ok=True)

    def _take(self, folder: Path) -> None:
        deadline = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    raise RunError(f"{folder}: another runner is at work in this folder") from None
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        """Let another runner in."""
        self._lock.close()

    def recover(self) -> int:
        """Put away what a killed runner left in work/: finished starts count, others do not."""
        found = 0
        for path in sorted((self.folder / "work").iterdir()):
            found += 1
            slot = self._slot_of(path)
            if _record(path) is not None and not self.done(slot):
                os.replace(path, self.folder / "starts" / slot.name)
            else:
                self.exclude(slot, "runner-killed", "the runner was killed while this start was measured")
        return found

    def done(self, slot: Slot) -> bool:
        """Whether the slot has its complete start."""
        return (self.folder / "starts" / slot.name / "start.json").exists()

    def begin(self, slot: Slot) -> Path:
        """A new empty folder for measuring a slot."""
        path = self.folder / "work" / slot.name
        path.mkdir()
        return path

    def attempt(self, slot: Slot) -> int:
        """Number of the next attempt, from 1."""
        return 1 + len(self._exclusions(slot))

    def failures(self, slot: Slot) -> int:
        """Attempts that failed by themselves; a killed runner is not the server's fault."""
        return sum(record.rule != "runner-killed" for record, _ in self._exclusions(slot))

    def complete(self, slot: Slot, record: StartRecord) -> None:
        """Write start.json and move the start to where it counts."""
        path = self.folder / "work" / slot.name
        _write(path / "start.json", canonical.dumps(record.model_dump(mode="json")))
        os.replace(path, self.folder / "starts" / slot.name)

    def exclude(self, slot: Slot, rule: str, reason: str) -> None:
        """Move the slot's work to excluded/, with the reason beside it."""
        path = self.folder / "work" / slot.name
        record = ExclusionRecord(
            index=slot.index, arm=slot.arm, attempt=self.attempt(slot), rule=rule, reason=reason[:4_000], at=time.time()
        )
        _write(path / "exclusion.json", canonical.dumps(record.model_dump(mode="json")))
        os.replace(path, self.folder / "excluded" / f"{slot.name}-attempt{record.attempt}")

    def add_deviation(self, text: str) -> None:
        """Append to the list that nothing removes from."""
        line = canonical.dumps({"at": time.time(), "text": text})
        with (self.folder / "deviations.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def deviations(self) -> list[Deviation]:
        """Every deviation so far."""
        path = self.folder / "deviations.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [Deviation.model_validate_json(line) for line in lines if line.strip()]

    def starts(self) -> list[tuple[StartRecord, Path]]:
        """Complete starts with their folders, in order."""
        paths = sorted((self.folder / "starts").iterdir())
        return [(record, path) for path in paths if (record := _record(path)) is not None]

    def excluded(self) -> list[tuple[ExclusionRecord, Path]]:
        """Excluded starts with their folders, in order."""
        paths = sorted((self.folder / "excluded").iterdir())
        return [(_exclusion(path), path) for path in paths]

    def _exclusions(self, slot: Slot) -> list[tuple[ExclusionRecord, Path]]:
        return [item for item in self.excluded() if item[0].index == slot.index]

    def _slot_of(self, path: Path) -> Slot:
        from ..schedule import plan

        for slot in plan(self.protocol.design):
            if slot.name == path.name:
                return slot
        raise RunError(f"{path}: not a start of this protocol; move it out of the run folder")


def _fresh(folder: Path, text: str) -> bool:
    # A runner killed while it locked the protocol leaves that protocol, or half of it, and nothing else.
    ours = {".lock", "protocol.toml.new", "run.json.new"}
    left = [path for path in folder.iterdir() if path.name not in ours]
    return all(path.name == "protocol.toml" and path.read_text(encoding="utf-8") == text for path in left)


def _record(path: Path) -> StartRecord | None:
    try:
        return StartRecord.model_validate_json((path / "start.json").read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as problem:
        raise RunError(f"{path}/start.json: {protocol.explain(problem)}") from None


def _exclusion(path: Path) -> ExclusionRecord:
    try:
        return ExclusionRecord.model_validate_json((path / "exclusion.json").read_bytes())
    except (OSError, ValidationError) as problem:
        raise RunError(f"{path}/exclusion.json: unreadable: {problem}") from None


def _write(path: Path, text: str) -> None:
    """Whole or not at all, and on the disk before anything that depends on it."""
    new = path.with_name(path.name + ".new")
    with new.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(new, path)


def read_counters(data: bytes) -> dict[str, float]:
    """Flat name: number from the mechanism command's output; raises RunError otherwise."""
    value: Any = canonical.loads(data, "mechanism output", RunError)
    if not isinstance(value, dict) or not all(
        isinstance(x, int | float) and not isinstance(x, bool) for x in value.values()
    ):
        raise RunError(f"mechanism output: expected a flat JSON object of numbers, got {json.dumps(value)[:200]}")
    return {str(name): float(number) for name, number in value.items()}
