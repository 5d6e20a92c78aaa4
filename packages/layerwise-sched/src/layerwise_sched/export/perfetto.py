"""Perfetto's own protobuf (TrackEvent packets); needs the extra `layerwise-sched[perfetto]`.

Every overlapping slice gets a lane of its own among its track's lanes, so that begin and end packets nest. Written by
the format's own generated classes and read back with them in the tests. *Opening not run*: Perfetto's trace processor
is a download that was not to be had where this was made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerwise_sched.errors import UnsupportedError
from layerwise_sched.export.tracks import Slice, tracks_of

if TYPE_CHECKING:
    from pathlib import Path

    from layerwise_sched.runs import Run

_SEQUENCE = 1


def write_perfetto(run: Run, path: Path, pid: int = 1) -> Path:
    """Write the trace to `path`. Raises UnsupportedError where the extra is not installed."""
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackDescriptor, TrackEvent
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder
    except ImportError as error:
        raise UnsupportedError(f"Perfetto export needs `pip install 'layerwise-sched[perfetto]'` ({error})") from None
    tracks = tracks_of(run)
    with path.open("wb") as out:
        builder = StreamingTraceProtoBuilder(out)
        writer = _Writer(builder, TracePacket, TrackDescriptor, TrackEvent, tracks.begin)
        writer.process(pid)
        for piece in tracks.nested:
            writer.slice(piece, 0)
        for lane, piece in _lanes(tracks.overlapping):
            writer.slice(piece, lane)
        for counter in tracks.counters:
            writer.counter(counter.track, counter.at, counter.value)
        writer.flush()
    return path


def _lanes(pieces: list[Slice]) -> list[tuple[int, Slice]]:
    """Each slice with the first lane of its track that is free at its begin, from 1."""
    busy: dict[str, list[int]] = {}
    placed: list[tuple[int, Slice]] = []
    for piece in pieces:
        ends = busy.setdefault(piece.track, [])
        lane = next((number for number, end in enumerate(ends) if end <= piece.begin), len(ends))
        ends[lane : lane + 1] = [piece.end]
        placed.append((lane + 1, piece))
    return placed


class _Writer:
    """Packets of one trace. Slices are written sorted by time, as a begin and an end each."""

    def __init__(self, builder: Any, packet: Any, descriptor: Any, event: Any, begin: int) -> None:
        self._builder, self._packet, self._descriptor, self._event = builder, packet, descriptor, event
        self._begin = begin
        self._uuids: dict[tuple[str, int], int] = {}
        self._pending: list[tuple[int, int, int, Slice | None, int | None]] = []  # time, order, uuid, slice, counter

    def process(self, pid: int) -> None:
        """Name the process."""
        packet = self._builder.create_packet()
        packet.track_descriptor.uuid = 1
        packet.track_descriptor.process.pid = pid
        packet.track_descriptor.process.process_name = f"worker {pid}"
        self._builder.write_packet(packet)

    def _track(self, name: str, lane: int, counter: bool = False) -> int:
        key = name, lane
        if key not in self._uuids:
            packet = self._builder.create_packet()
            packet.track_descriptor.uuid = self._uuids[key] = len(self._uuids) + 2
            packet.track_descriptor.parent_uuid = 1
            packet.track_descriptor.name = name if lane < 2 else f"{name} {lane}"
            if counter:
                packet.track_descriptor.counter.SetInParent()
            self._builder.write_packet(packet)
        return self._uuids[key]

    def slice(self, piece: Slice, lane: int) -> None:
        """Keep a slice for `flush`."""
        uuid = self._track(piece.track, lane)
        length = piece.end - piece.begin
        if not length:
            return
        # At one time ends come before begins, inner ends before outer ones, outer begins before inner ones.
        self._pending.append((piece.begin, 2**62 - length, uuid, piece, None))
        self._pending.append((piece.end, length - 2**62, uuid, None, None))

    def counter(self, name: str, at: int, value: int) -> None:
        """Keep a counter's value for `flush`."""
        self._pending.append((at, 0, self._track(name, 0, counter=True), None, value))

    def flush(self) -> None:
        """Write everything kept, in the order of time."""
        for at, _, uuid, piece, counter in sorted(self._pending, key=lambda item: item[:3]):
            packet = self._builder.create_packet()
            packet.timestamp = at - self._begin
            packet.trusted_packet_sequence_id = _SEQUENCE
            event = packet.track_event
            event.track_uuid = uuid
            if counter is not None:
                event.type = self._event.TYPE_COUNTER
                event.counter_value = counter
            elif piece is None:
                event.type = self._event.TYPE_SLICE_END
            else:
                event.type = self._event.TYPE_SLICE_BEGIN
                event.name = piece.name
                if piece.flow >= 0:
                    event.flow_ids.append(piece.flow + 1)
                for name, value in piece.args.items():
                    note = event.debug_annotations.add()
                    note.name = name
                    note.string_value = str(value)
            self._builder.write_packet(packet)
