"""From the rings to a folder while the engine runs: integers as they are, no format, no rename, no library.

`<folder>/layerwise-<pid>.spool/` holds `rows.bin` (chunks of little-endian int64: rows as `layerwise_sched.rows` has
them, one behind the other) and `tasks.jsonl`. It is appended to
by one thread and may end anywhere when a process is killed: a broken last chunk is left out when it is read.
`timeline_file.seal` makes Parquet and JSONL of it, in the user's own process, later.
"""

from __future__ import annotations

import array
import json
import logging
import os
import sys
import threading
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from layerwise_sched.model import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from layerwise_sched.model import LayerPlan
    from layerwise_sched.timeline import Ring, Timeline

logger = logging.getLogger(__name__)
FORMAT: Final = 2
"""Of a spool; 1 had rows of one event each, four integers wide, and was never released."""
SUFFIX: Final = ".spool"
HEADER: Final = 2
"""Integers before each chunk's rows: the ring's number, the number of integers that follow."""


class Spool:
    """Empties a timeline's rings into a folder, every `period_s`, in a daemon thread of its own.

    A full or unwritable disk ends the recording with one message; the engine goes on.
    """

    def __init__(
        self, timeline: Timeline, folder: str | Path, period_s: float = 0.2, facts: dict[str, Any] | None = None
    ):
        self.timeline = timeline
        self.path = Path(folder) / f"layerwise-{os.getpid()}{SUFFIX}"
        self._facts = facts or {}
        self._period_s = period_s
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._failed = False
        self._named = -1  # rings that the meta file names
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "rows.bin").write_bytes(b"")
        (self.path / "tasks.jsonl").write_text("", encoding="utf-8")
        self._thread = threading.Thread(target=self._run, daemon=True, name="layerwise-spool")

    def start(self) -> None:
        """Begin."""
        self.flush()
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.wait(self._period_s) and not self._failed:
            self.flush()

    def flush(self) -> None:
        """Write what the rings hold now. Never raises."""
        with self._lock:
            if self._failed:
                return
            try:
                self._write()
            except Exception:
                self._failed = True
                logger.exception("the timeline in %s ends here", self.path)

    def close(self) -> None:
        """Write the rest and end the thread."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(5)
        for write_open in self.timeline.closing:
            try:
                write_open()
            except Exception:
                logger.exception("what a thread had not written yet is not in %s", self.path)
        self.flush()

    def _write(self) -> None:
        rings = self.timeline.rings
        if len(rings) != self._named:  # first: a killed process is to leave no row of a ring that has no name
            self._write_meta(rings)
        with (
            (self.path / "rows.bin").open("ab") as rows,
            (self.path / "tasks.jsonl").open("a", encoding="utf-8") as tasks,
        ):
            for number, ring in enumerate(rings):
                taken, found = ring.take()
                # Tasks first: a row may then lack its neighbours when the process is killed, never its task.
                if found:
                    tasks.writelines(task_lines(found))
                    tasks.flush()
                if taken:
                    cells = list(chain.from_iterable(taken))
                    chunk = array.array("q", [number, len(cells)])
                    chunk.fromlist(cells)
                    if sys.byteorder == "big":
                        chunk.byteswap()
                    rows.write(chunk.tobytes())
        self._write_meta(rings)

    def _write_meta(self, rings: tuple[Ring, ...]) -> None:
        meta = {
            "format": FORMAT,
            "pid": os.getpid(),
            "offset_ns": self.timeline.offset_ns,
            "rings": [ring.name for ring in rings],
            "dropped": self.timeline.dropped,
            "policies": self.timeline.policies,
            "plan": None if self.timeline.plan is None else plan_row(self.timeline.plan),
            "facts": self._facts,
        }
        partial = self.path / "meta.json.partial"
        partial.write_text(json.dumps(meta) + "\n", encoding="utf-8")
        partial.replace(self.path / "meta.json")
        self._named = len(rings)


def task_row(task: Task) -> dict[str, Any]:
    """A task as JSON has it."""
    return task._asdict()


_LINE: Final = "{" + ", ".join(f'"{name}": ' + ('"%s"' if name == "path" else "%s") for name in Task._fields) + "}\n"
_WORDS: Final = {True: "true", False: "false"}


def task_lines(tasks: Iterable[Task]) -> Iterator[str]:
    """`task_row` of each task, a line of JSON. Half of the encoder's time or less: most of what the drainer does."""
    requests: tuple[str, ...] = ()
    names = "[]"
    for task in tasks:
        if task.requests != requests:  # mostly those of the task before, and the only text that is not ours
            requests = task.requests
            names = json.dumps(requests)
        cid, step, layer, path, source, gate, chain, groups, _, *flags = task
        yield _LINE % (
            cid, step, layer, path, "null" if source is None else source, "null" if gate is None else gate,
            chain, list(groups), names, *map(_WORDS.__getitem__, flags),
        )  # fmt: skip


def plan_row(plan: LayerPlan) -> dict[str, Any]:
    """A plan as JSON has it: the map as a list of (layer, source)."""
    row = plan._asdict()
    row["prefetch_layer_map"] = sorted(plan.prefetch_layer_map.items())
    row["chains"] = list(plan.chains)
    return row
