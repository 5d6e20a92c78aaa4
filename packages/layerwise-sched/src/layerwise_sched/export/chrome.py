"""Chrome Trace Event JSON: `chrome_tracing.json` for MindStudio Insight, gzipped for Perfetto.

Slices of one track nest, so they are complete events ("X"); whole tasks and head-of-line events overlap, so they are
async events ("b", "e") with an id of their own - overlapping duration events would land on an overflow track and
mislead. Times are microseconds with three decimals: the nanoseconds, exactly.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from layerwise_sched.export.tracks import tracks_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from layerwise_sched.runs import Run

_TRACKS = ("compute thread", "compute stream", "send thread", "receive thread", "tasks", "head-of-line")


def events(run: Run, pid: int = 1) -> Iterator[dict[str, Any]]:
    """The trace events of a run, metadata first."""
    tracks = tracks_of(run)
    yield {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": f"worker {pid}"}}
    for number, name in enumerate(_TRACKS, 1):
        yield {"ph": "M", "pid": pid, "tid": number, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": pid, "tid": number, "name": "thread_sort_index", "args": {"sort_index": number}}

    def us(ns: int) -> float:
        return (ns - tracks.begin) / 1e3

    for piece in tracks.nested:
        yield {
            "ph": "X", "pid": pid, "tid": _TRACKS.index(piece.track) + 1, "name": piece.name, "cat": piece.track,
            "ts": us(piece.begin), "dur": (piece.end - piece.begin) / 1e3, "args": piece.args,
        }  # fmt: skip
    for number, piece in enumerate(tracks.overlapping):
        common = {
            "pid": pid, "tid": _TRACKS.index(piece.track) + 1, "name": piece.name, "cat": piece.track,
            "id": f"0x{number + 1:x}",
        }  # fmt: skip
        yield {"ph": "b", "ts": us(piece.begin), "args": piece.args, **common}
        yield {"ph": "e", "ts": us(piece.end), "args": {}, **common}
    yield from _flows(run, pid, tracks.begin)
    for counter in tracks.counters:
        yield {
            "ph": "C", "pid": pid, "tid": 0, "name": counter.track, "ts": us(counter.at),
            "args": {"value": counter.value},
        }  # fmt: skip


def _flows(run: Run, pid: int, begin: int) -> Iterator[dict[str, Any]]:
    """Arrows from the end of a load to the compute thread that waited for its layer."""
    done = {(task.task.step, task.task.layer): task for task in run.tasks.values() if task.done is not None}
    for stall in run.stalls:
        task = done.get((stall.step, stall.layer))
        if task is None or task.done is None or not stall.begin <= task.done <= stall.end:
            continue
        common = {"pid": pid, "name": "load", "cat": "load", "id": task.task.cid}
        yield {"ph": "s", "tid": 3, "ts": (max(task.dequeued or 0, task.done - 1) - begin) / 1e3, **common}
        yield {"ph": "f", "bp": "e", "tid": 1, "ts": (stall.end - begin) / 1e3, **common}


def write_chrome(run: Run, path: Path, pid: int = 1) -> Path:
    """Write the trace to `path`: gzipped where the name ends in .gz. It is streamed, one event a line."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as out:
        out.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
        separator = ""
        for event in events(run, pid):
            out.write(separator + json.dumps(event))
            separator = ",\n"
        out.write("\n]}\n")
    return path
