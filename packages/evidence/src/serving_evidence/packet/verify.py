"""`verify`: hashes first, then every number again from the raw files, then compared with what the packet says."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from .. import canonical, protocol
from ..adapters import read_run
from ..errors import EvidenceError, PacketError
from ..evaluate import evaluate
from . import tables
from .build import PACKET, PROTOCOL, VERDICT, start_folder
from .read import check_manifest, read_bytes
from .records import PacketRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ..samples import Requests, Result

MAX_RECORD_BYTES = 32 * 1024 * 1024
# Matrix products differ in the last bits between machines; nothing that is shown does.
_RELATIVE = 1e-9


@dataclass(frozen=True)
class Verified:
    """A packet that is what it says: its protocol, record and recomputed verdict, and how many files were hashed."""

    protocol: protocol.Protocol
    packet: PacketRecord
    verdict: dict[str, Any]
    runs: Mapping[tuple[int, str], Result]
    files: int
    hashes: Mapping[str, str] = field(default_factory=dict)


def verify(folder: Path, progress: Callable[[str], None] | None = None) -> Verified:
    """Check a packet from anyone; raises PacketError with the first thing that is wrong, and writes nothing."""
    try:
        return _verify(folder, progress)
    except PacketError:
        raise
    except EvidenceError as problem:
        raise PacketError(f"the packet's data cannot be judged: {problem}") from None
    except (OverflowError, ValueError, ArithmeticError, MemoryError, RecursionError, OSError, KeyError) as problem:
        raise PacketError(
            f"the packet's data cannot be judged: {type(problem).__name__}: {str(problem)[:200]}"
        ) from None


def _verify(folder: Path, progress: Callable[[str], None] | None) -> Verified:
    listed = check_manifest(folder, progress)
    declared = _protocol(read_bytes(folder, PROTOCOL, listed, MAX_RECORD_BYTES))
    _same_toml(declared, read_bytes(folder, "protocol.toml", listed, MAX_RECORD_BYTES))
    record = _record(read_bytes(folder, PACKET, listed, MAX_RECORD_BYTES))
    _known_scenarios(declared, record)
    runs: dict[tuple[int, str], Result] = {}
    for start in record.starts:
        for scenario, name in start.files.items():
            where = f"starts/{start_folder(start)}/{name}"
            if progress is not None:
                progress(where)
            if where not in listed:
                raise PacketError(f"{where!r}: the result of a start is not in the packet")
            found = read_run(folder / where, where)
            if len(found) != 1:
                raise PacketError(f"{where}: {len(found)} results where one client run should be")
            runs[start.index, scenario] = found[0]
    names = [scenario.name for scenario in declared.scenarios]
    _same_tables(tables.read(folder / "data", names), runs)
    claimed = canonical.loads(read_bytes(folder, VERDICT, listed, MAX_RECORD_BYTES), VERDICT, PacketError)
    verdict = evaluate(declared, record, runs, progress)
    difference = first_difference(canonical.loads(canonical.dumps(verdict).encode(), VERDICT), claimed)
    if difference is not None:
        raise PacketError(f"{VERDICT}: {difference}")
    return Verified(declared, record, verdict, runs, len(listed), listed)


def first_difference(computed: Any, claimed: Any, where: str = "") -> str | None:
    """First place where a claimed value is not the computed one (numbers within 1e-9), or None."""
    if isinstance(computed, dict) and isinstance(claimed, dict):
        for key in sorted(set(computed) | set(claimed)):
            if key not in computed or key not in claimed:
                return f"{where}{key} is {'not computed' if key in claimed else 'missing'}"
            found = first_difference(computed[key], claimed[key], f"{where}{key}.")
            if found:
                return found
        return None
    if isinstance(computed, list) and isinstance(claimed, list) and len(computed) == len(claimed):
        for i, (one, other) in enumerate(zip(computed, claimed, strict=True)):
            found = first_difference(one, other, f"{where}{i}.")
            if found:
                return found
        return None
    if _is_number(computed) and _is_number(claimed):
        if isclose(computed, claimed, rel_tol=_RELATIVE, abs_tol=1e-12):
            return None
    elif type(computed) is type(claimed) and computed == claimed:
        return None
    return f"{where.rstrip('.')} says {str(claimed)[:80]!r}, recomputed {str(computed)[:80]!r}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _protocol(data: bytes) -> protocol.Protocol:
    value = canonical.loads(data, PROTOCOL, PacketError)
    try:
        found = protocol.Protocol.model_validate_json(canonical.dumps(value))
    except ValidationError as problem:
        raise PacketError(f"{PROTOCOL}: {protocol.explain(problem)}") from None
    if found.canonical().encode("utf-8") != data:
        raise PacketError(f"{PROTOCOL}: not in canonical form, so its hash means nothing")
    return found


def _same_toml(declared: protocol.Protocol, text: bytes) -> None:
    try:
        written = protocol.parse(text.decode("utf-8"))
    except (EvidenceError, UnicodeDecodeError) as problem:
        raise PacketError(f"protocol.toml: {problem}") from None
    if written.hash != declared.hash:
        raise PacketError("protocol.toml and protocol.json are not the same protocol")


def _record(data: bytes) -> PacketRecord:
    value = canonical.loads(data, PACKET, PacketError)
    try:
        return PacketRecord.model_validate_json(canonical.dumps(value))
    except ValidationError as problem:
        raise PacketError(f"{PACKET}: {protocol.explain(problem)}") from None


def _known_scenarios(declared: protocol.Protocol, record: PacketRecord) -> None:
    names = {scenario.name for scenario in declared.scenarios}
    if len({start.index for start in record.starts}) != len(record.starts):
        raise PacketError(f"{PACKET}: two starts have one index")
    for start in record.starts:
        if set(start.files) != names:
            raise PacketError(
                f"{PACKET}: start {start.index} has files for {sorted(start.files)!r}, not {sorted(names)!r}"
            )


def _same_tables(read: Mapping[tuple[int, str], Requests], runs: Mapping[tuple[int, str], Result]) -> None:
    detailed = {key: run.requests for key, run in runs.items() if run.requests is not None and run.requests.ok.size}
    if set(read) != set(detailed):
        raise PacketError("data/requests.parquet does not hold the starts that the raw files hold")
    for key, requests in detailed.items():
        for name, column in requests.__dict__.items():
            if not np.array_equal(getattr(read[key], name), column, equal_nan=column.dtype.kind == "f"):
                raise PacketError(f"data/: `{name}` of start {key[0]} ({key[1]}) differs from the raw file")
