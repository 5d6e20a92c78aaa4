"""What makes a run INVALID: each function returns sentences, empty when the run kept its protocol."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from . import canonical
from .schedule import plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .packet.records import PacketRecord, StartRecord
    from .protocol import Protocol
    from .samples import Result


def breaches(protocol: Protocol, packet: PacketRecord, runs: Mapping[tuple[int, str], Result]) -> list[str]:
    """Every breach of the protocol, in the order: lock, order, code, plugin, workload, outputs."""
    return [
        *_lock(protocol, packet),
        *_order(protocol, packet.starts),
        *_code(packet.starts),
        *_active(protocol, packet.starts),
        *_workload(protocol, packet.starts, runs),
        *_outputs(protocol, packet.starts, runs),
    ]


def output_report(
    protocol: Protocol, starts: Sequence[StartRecord], runs: Mapping[tuple[int, str], Result]
) -> list[str]:
    """For scenarios whose outputs are reported only: how many starts gave which texts; never a judgement."""
    found = []
    for scenario in protocol.scenarios:
        if scenario.outputs == "report":
            distinct, known = _texts(scenario.name, starts, runs)
            if known:
                found.append(
                    f"{scenario.name}: {distinct} distinct sets of texts in {known} starts (reported, not judged)"
                )
    return found


def _lock(protocol: Protocol, packet: PacketRecord) -> list[str]:
    found = []
    if packet.protocol_hash != protocol.hash:
        found.append("the protocol in the packet is not the one that was locked")
    if packet.starts and min(start.began_at for start in packet.starts) < packet.locked_at:
        found.append("the protocol is newer than the first start")
    others = [start for start in packet.starts if start.protocol_hash != packet.protocol_hash]
    if others:
        found.append(f"{len(others)} starts ran under another protocol")
    return found


def _order(protocol: Protocol, starts: Sequence[StartRecord]) -> list[str]:
    planned = plan(protocol.design)
    in_time = sorted(starts, key=lambda start: start.began_at)
    found = []
    if len(starts) != len(planned):
        found.append(f"{len(starts)} of {len(planned)} planned starts are complete")
    wanted = [(slot.index, slot.arm, slot.pair) for slot in planned]
    if [(start.index, start.arm, start.pair) for start in in_time] != wanted[: len(in_time)]:
        found.append("the starts did not run in the planned order")
    found += [
        f"start {start.index} ends before it begins"
        for start in starts
        if not start.began_at <= start.ready_at <= start.ended_at
    ]
    for before, after in pairwise(in_time):
        if after.began_at < before.ended_at:
            found.append(f"start {after.index} began before start {before.index} had ended")
    return found


def _code(starts: Sequence[StartRecord]) -> list[str]:
    found = []
    for arm in ("A", "B"):
        hashes = {start.code_hash for start in starts if start.arm == arm}
        if len(hashes) > 1:
            found.append(f"the code of arm {arm} changed between starts: {len(hashes)} different hashes")
    models = {str(start.environment.get("model_sha256")) for start in starts}
    if len(models) > 1:
        found.append(f"the model changed between starts: {len(models)} different hashes")
    return found


def _active(protocol: Protocol, starts: Sequence[StartRecord]) -> list[str]:
    found = []
    for arm, spec in sorted(protocol.arms.items()):
        if spec.active_log is not None:
            silent = [start.index for start in starts if start.arm == arm and start.active is not True]
            if silent:
                found.append(f"arm {arm} did not report itself active in starts {silent[:6]!r}")
    return found


def _workload(protocol: Protocol, starts: Sequence[StartRecord], runs: Mapping[tuple[int, str], Result]) -> list[str]:
    found = []
    for scenario in protocol.scenarios:
        prints = {
            canonical.fingerprint(runs[start.index, scenario.name].workload)
            for start in starts
            if (start.index, scenario.name) in runs
        }
        if len(prints) > 1:
            found.append(f"{scenario.name}: the starts ran {len(prints)} different workloads")
    return found


def _outputs(protocol: Protocol, starts: Sequence[StartRecord], runs: Mapping[tuple[int, str], Result]) -> list[str]:
    found = []
    for scenario in protocol.scenarios:
        if scenario.outputs == "equal":
            distinct, known = _texts(scenario.name, starts, runs)
            if known < len(starts):
                found.append(f"{scenario.name}: outputs must be equal, but {len(starts) - known} starts kept no texts")
            elif distinct > 1:
                found.append(f"{scenario.name}: outputs must be equal, but there are {distinct} different sets")
    return found


def _texts(scenario: str, starts: Sequence[StartRecord], runs: Mapping[tuple[int, str], Result]) -> tuple[int, int]:
    texts = [
        run.texts
        for start in starts
        if (run := runs.get((start.index, scenario))) is not None and run.texts is not None
    ]
    return len(set(texts)), len(texts)
