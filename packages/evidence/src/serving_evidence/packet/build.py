"""A finished run folder made into a packet: copied, tabled, judged, hashed, and put in place in one step."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__, canonical
from ..adapters import read_run
from ..errors import PacketError
from ..evaluate import evaluate
from . import tables
from .read import write_manifest
from .records import PacketRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..protocol import Protocol
    from ..samples import Result
    from .records import CalibrationRecord, Deviation, ExclusionRecord, StartRecord

PACKET, PROTOCOL, VERDICT = "packet.json", "protocol.json", "verdict.json"
MAX_LOG_BYTES = 4 * 1024 * 1024


def build(
    target: Path,
    *,
    protocol: Protocol,
    protocol_text: str,
    locked_at: float,
    starts: Sequence[tuple[StartRecord, Path]],
    excluded: Sequence[tuple[ExclusionRecord, Path]] = (),
    deviations: Sequence[Deviation] = (),
    calibration: CalibrationRecord | None = None,
    host: Mapping[str, object] | None = None,
    progress: Callable[[str], None] | None = None,
) -> PacketRecord:
    """Write the packet folder `target` (which must not exist) from start folders; half a packet is never seen there.

    starts: record and folder of each complete start; excluded: the same for those that do not count.
    """
    if target.exists():
        raise PacketError(f"{target}: already exists; a packet is never overwritten")
    record = PacketRecord(
        format="serving-evidence packet",
        version=1,
        name=protocol.name,
        written_by=f"serving-evidence {__version__}",
        protocol_hash=protocol.hash,
        locked_at=locked_at,
        who_ran=protocol.who_runs,
        independent=protocol.independent,
        starts=tuple(item for item, _ in starts),
        excluded=tuple(item for item, _ in excluded),
        deviations=tuple(deviations),
        calibration=calibration,
        host=dict(host or {}),
    )
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "data").mkdir(parents=True)
    (partial / "protocol.toml").write_text(protocol_text, encoding="utf-8")
    (partial / PROTOCOL).write_text(protocol.canonical(), encoding="utf-8")
    (partial / PACKET).write_text(canonical.dumps(record.model_dump(mode="json")), encoding="utf-8")
    for start, source in starts:
        _copy(source, partial / "starts" / start_folder(start))
    for item, source in excluded:
        _copy(source, partial / "excluded" / f"{item.index:03d}-{item.arm}-attempt{item.attempt}")
    runs = read_runs(partial, record)
    tables.write(partial / "data", runs, [scenario.name for scenario in protocol.scenarios])
    verdict = evaluate(protocol, record, runs, progress)
    (partial / VERDICT).write_text(canonical.pretty(verdict), encoding="utf-8")
    write_manifest(partial)
    os.replace(partial, target)
    return record


def start_folder(start: StartRecord) -> str:
    """Folder name of a start inside `starts/`."""
    return f"{start.index:03d}-{start.arm}"


def read_runs(folder: Path, record: PacketRecord) -> dict[tuple[int, str], Result]:
    """Every client run of a packet, parsed from the tools' own files."""
    runs = {}
    for start in record.starts:
        for scenario, name in start.files.items():
            where = f"starts/{start_folder(start)}/{name}"
            found = read_run(folder / where, where)
            if len(found) != 1:
                raise PacketError(f"{where}: {len(found)} results where one client run should be")
            runs[start.index, scenario] = found[0]
    return runs


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        if path.suffix == ".log":
            (target / path.name).write_bytes(without_paths(_log(path)))
        else:
            shutil.copyfile(path, target / path.name)


def _log(path: Path) -> bytes:
    if path.stat().st_size <= MAX_LOG_BYTES:
        return path.read_bytes()
    # The end of a log says why a server died; the middle of a gigabyte says nothing.
    with path.open("rb") as stream:
        head = stream.read(MAX_LOG_BYTES // 4)
        stream.seek(-3 * MAX_LOG_BYTES // 4, os.SEEK_END)
        return head + b"\n[... log shortened ...]\n" + stream.read()


def without_paths(log: bytes) -> bytes:
    """A log with the folders of this host replaced by what they are: a packet travels, its readers need none of them.

    Logs are kept for people; no number is read from the copy in a packet.
    """
    places = {
        Path.cwd(): "{cwd}",
        Path(sys.prefix): "{prefix}",
        Path(sys.base_prefix): "{python}",
        Path.home(): "{home}",
    }
    for place, name in sorted(places.items(), key=lambda item: -len(str(item[0]))):
        if len(place.parts) > 1:
            log = log.replace(os.fsencode(place), name.encode())
    return log
