"""Traces keep the rules of their formats; no viewer was opened (the trace processor is a download of its own)."""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from layerwise_sched import UnsupportedError, make_policy
from layerwise_sched.export.chrome import write_chrome
from layerwise_sched.export.perfetto import write_perfetto
from layerwise_sched.simulation import Spec, generate, simulate

if TYPE_CHECKING:
    from pathlib import Path

    from layerwise_sched.runs import Run

# Trace Event Format: fields that each phase must have, and their types.
FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "X": {"name": str, "cat": str, "ts": float, "dur": float, "pid": int, "tid": int, "args": dict},
    "b": {"name": str, "cat": str, "ts": float, "pid": int, "tid": int, "id": str, "args": dict},
    "e": {"name": str, "cat": str, "ts": float, "pid": int, "tid": int, "id": str},
    "s": {"name": str, "cat": str, "ts": float, "pid": int, "tid": int, "id": int},
    "f": {"name": str, "cat": str, "ts": float, "pid": int, "tid": int, "id": int, "bp": str},
    "C": {"name": str, "ts": float, "pid": int, "args": dict},
    "M": {"name": str, "pid": int, "args": dict},
}


@pytest.fixture(scope="module")
def run() -> Run:
    spec = Spec(shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=6_000, straggler_layers=(1, 4), steps=2)
    return simulate(generate(spec), make_policy("fifo")).run()


def schema_errors(trace: dict[str, Any]) -> list[str]:
    errors = []
    open_async: dict[tuple[str, str], int] = defaultdict(int)
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    flows: dict[int, list[str]] = defaultdict(list)
    for number, event in enumerate(trace["traceEvents"]):
        phase = event.get("ph")
        if phase not in FIELDS:
            errors.append(f"{number}: phase {phase!r}")
            continue
        for name, kind in FIELDS[phase].items():
            if not isinstance(event.get(name), kind):
                errors.append(f"{number}: {name} is {event.get(name)!r}")
        if phase == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        if phase in "be":
            open_async[event["cat"], event["id"]] += 1 if phase == "b" else -1
        if phase in "sf":
            flows[event["id"]].append(phase)
    errors += [f"async {key} is open" for key, level in open_async.items() if level]
    errors += [f"flow {key}: {phases}" for key, phases in flows.items() if phases != ["s", "f"]]
    for track, slices in tracks.items():
        stack: list[float] = []
        for begin, end in sorted(slices, key=lambda piece: (piece[0], -piece[1])):
            while stack and stack[-1] <= begin + 1e-9:
                stack.pop()
            if stack and end > stack[-1] + 1e-6:
                errors.append(f"track {track}: a slice of {begin}..{end} does not nest")
            stack.append(end)
    return errors


@pytest.mark.parametrize("name", ["chrome_tracing.json", "trace.json.gz"])
def test_chrome_traces_keep_the_formats_rules(run: Run, name: str, tmp_path: Path) -> None:
    path = write_chrome(run, tmp_path / name, pid=7)
    text = gzip.decompress(path.read_bytes()).decode() if name.endswith(".gz") else path.read_text()
    trace = json.loads(text)
    assert schema_errors(trace) == []
    phases = {event["ph"] for event in trace["traceEvents"]}
    assert phases == set(FIELDS)
    named = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert named >= {"compute thread", "receive thread", "tasks", "head-of-line"}
    assert any(event["name"] == "L4 blocks L5" for event in trace["traceEvents"])
    total = sum(event["dur"] for event in trace["traceEvents"] if event["ph"] == "X" and event["name"] == "transfer")
    assert total * 1e3 == pytest.approx(sum(task.transfer_ns for task in run.tasks.values()))


def test_the_schema_check_can_fail() -> None:
    base = {"name": "a", "cat": "c", "pid": 1, "tid": 1, "args": {}}
    overlap = [{**base, "ph": "X", "ts": 0.0, "dur": 2.0}, {**base, "ph": "X", "ts": 1.0, "dur": 2.0}]
    assert schema_errors({"traceEvents": overlap})
    assert schema_errors({"traceEvents": [{**base, "ph": "b", "ts": 0.0, "id": "0x1"}]})
    assert schema_errors({"traceEvents": [{**base, "ph": "Z"}]})


def test_perfetto_traces_are_read_by_the_formats_own_classes(run: Run, tmp_path: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    path = write_perfetto(run, tmp_path / "trace.pftrace", pid=7)
    trace = protos.Trace()
    trace.ParseFromString(path.read_bytes())
    names = {packet.track_descriptor.uuid: packet.track_descriptor.name for packet in trace.packet
             if packet.HasField("track_descriptor")}  # fmt: skip
    depth: dict[int, list[str]] = defaultdict(list)
    transfer = last = 0
    begun: dict[int, int] = {}
    for packet in trace.packet:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        assert event.track_uuid in names
        assert packet.timestamp >= last
        last = packet.timestamp
        if event.type == protos.TrackEvent.TYPE_SLICE_BEGIN:
            depth[event.track_uuid].append(event.name)
            if event.name == "transfer":
                begun[event.track_uuid] = packet.timestamp
        elif event.type == protos.TrackEvent.TYPE_SLICE_END:
            name = depth[event.track_uuid].pop()  # an end without a begin raises
            if name == "transfer":
                transfer += packet.timestamp - begun[event.track_uuid]
    assert not any(depth.values())
    assert transfer == sum(task.transfer_ns for task in run.tasks.values())
    assert {"compute thread", "receive thread", "queued tasks"} <= set(names.values())


def test_without_the_extra_the_export_says_what_to_install(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "perfetto.trace_builder.proto_builder", None)
    with pytest.raises(UnsupportedError, match=r"layerwise-sched\[perfetto\]"):
        write_perfetto(run, tmp_path / "x.pftrace")
    assert not (tmp_path / "x.pftrace").exists()
