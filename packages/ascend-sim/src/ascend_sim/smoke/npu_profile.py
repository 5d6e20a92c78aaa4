"""Counts of device-to-host copies and waits in the trace that torch_npu's profiler exports.

The file is ``<name>_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json``, Chrome trace events in a list (or under
``traceEvents``). Three layers of it are counted, each on its own, since one copy shows up in all three:

- torch_npu's task queue: ``Enqueue@NAME`` on the host thread, ``Dequeue@NAME`` on the queue's thread. NAME
  ``acl_memcpy_device_to_host`` is a copy to the host, ``wait_event`` a stream that waits for an event (the names are
  in libtorch_npu.so). With the task queue off, NAME may stand alone.
- CANN's host API: ``AscendCL@aclrt...``. ``aclrtSynchronizeEvent``/``...Stream`` block the host.
- the device: a copy has an argument ``device to host``; a wait is named ``EVENT_WAIT``.

Only complete events (``ph`` "X") count. Names that look like copies or waits and are in no rule are reported, so that a
renamed event is seen and does not pass as a zero. This module was written from torch_npu's sources and public traces;
it has not yet read a trace of this project's own, since no NPU was at hand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

D2H = "acl_memcpy_device_to_host"
WAIT_EVENT = "wait_event"
HOST_EVENT_WAIT = "host_event_wait"
HOST_STREAM_WAIT = "host_stream_wait"
ACL_STREAM_WAIT = "acl_stream_wait_event"
DEVICE_D2H = "device_memcpy_d2h"
DEVICE_EVENT_WAIT = "device_event_wait"
KINDS = (D2H, WAIT_EVENT, HOST_EVENT_WAIT, HOST_STREAM_WAIT, ACL_STREAM_WAIT, DEVICE_D2H, DEVICE_EVENT_WAIT)

_TASKS = (D2H, WAIT_EVENT)
# Newer CANN appends WithTimeout, Ex and the like.
_HOST_API = {
    "aclrtSynchronizeEvent": HOST_EVENT_WAIT,
    "aclrtSynchronizeStream": HOST_STREAM_WAIT,
    "aclrtStreamWaitEvent": ACL_STREAM_WAIT,
}
_SUSPECT = re.compile(r"memcpy.*(host|d2h)|d2h|wait.?event|event.?wait|synchroniz", re.IGNORECASE)
# Seen beside the counted layers, known, and of another kind: uploads, and records of CANN's own lower layers.
_KNOWN = re.compile(
    r"^(Enqueue@|Dequeue@)?acl_memcpy_(host_to_device|device_to_device|host_to_host)$|^(Runtime|Node|HCCL)@|^aten::"
)
_STEP = re.compile(r"^ProfilerStep#\d+$")


class ProfileError(ValueError):
    """A profiler file cannot be used; the message names it and says why."""


@dataclass(frozen=True)
class Counts:
    """Counts of one trace by kind (each of `KINDS`, 0 where nothing was found).

    `profiler_steps` is how many ``ProfilerStep#N`` spans the trace has, `events` how many complete events in all.
    `unmatched` names events that look like copies or waits and that no rule counted.
    """

    by_kind: dict[str, int]
    profiler_steps: int
    events: int
    unmatched: dict[str, int] = field(default_factory=dict)


def count(events: Iterable[Any]) -> Counts:
    """Count the complete events of a trace."""
    tasks: Counter[tuple[str, str]] = Counter()
    found: Counter[str] = Counter()
    unmatched: Counter[str] = Counter()
    steps: set[str] = set()
    total = 0
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        total += 1
        name = str(event.get("name", ""))
        if _STEP.match(name):
            steps.add(name)
        elif not _count_one(name, event, tasks, found) and _SUSPECT.search(name) and not _KNOWN.match(name):
            unmatched[name] += 1
    by_kind = {kind: found[kind] for kind in KINDS}
    for task in _TASKS:
        # One task is enqueued once and dequeued once: the host's side decides, the other only where that is missing.
        by_kind[task] = next((n for side in ("Enqueue", "", "Dequeue") if (n := tasks[side, task])), 0)
    return Counts(by_kind, len(steps), total, dict(sorted(unmatched.items())))


def _count_one(name: str, event: dict[str, Any], tasks: Counter[tuple[str, str]], found: Counter[str]) -> bool:
    """Whether a rule counted the event."""
    side, at, base = name.rpartition("@")
    if base in _TASKS and side in ("", "Enqueue", "Dequeue"):
        tasks[side, base] += 1
        return True
    if at and side == "AscendCL":
        for prefix, kind in _HOST_API.items():
            if base.startswith(prefix):
                found[kind] += 1
                return True
    # The key is spelt differently by version; the value is not.
    arguments = event.get("args")
    values = arguments.values() if isinstance(arguments, dict) else ()
    if any(isinstance(value, str) and value.lower().replace("_", " ") == "device to host" for value in values):
        found[DEVICE_D2H] += 1
        return True
    if name.upper() == "EVENT_WAIT":
        found[DEVICE_EVENT_WAIT] += 1
        return True
    return False


def read(path: Path) -> Counts:
    """Count the events of a trace file; raises `ProfileError` where it is none or holds no complete event."""
    try:
        loaded = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path.name!r} cannot be read as a trace: {error}") from error
    events = loaded.get("traceEvents") if isinstance(loaded, dict) else loaded
    if not isinstance(events, list):
        raise ProfileError(f"{path.name!r} is no Chrome trace: neither a list of events nor an object with traceEvents")
    counts = count(events)
    if not counts.events:
        raise ProfileError(f"{path.name!r} holds no complete event (ph 'X'): the profiler recorded nothing")
    return counts


def traces(folder: Path) -> list[Path]:
    """The exported traces under a profiler's folder, one a rank, in the order of their names."""
    return sorted(folder.glob("**/ASCEND_PROFILER_OUTPUT/trace_view.json"))
