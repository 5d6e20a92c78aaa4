"""The ledger of a folder of packets: which packets there are, in the order they came, each named by its hashes.

ledger.jsonl holds one object a line and is only ever added to: a packet that is gone or was replaced is a fault that
`check` finds, not a gap that nobody sees.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pydantic import ValidationError

from . import canonical, protocol
from .errors import PacketError
from .packet import verify
from .packet.read import MANIFEST, safe_name
from .packet.records import LedgerEntry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .packet import Verified

LEDGER = "ledger.jsonl"
MAX_LEDGER_BYTES = 8 * 1024 * 1024


def entries(folder: Path) -> list[LedgerEntry]:
    """What the ledger of a folder lists, in its order; empty without a ledger. Raises PacketError for a broken one."""
    path = folder / LEDGER
    if not path.exists():
        return []
    if path.is_symlink() or path.stat().st_size > MAX_LEDGER_BYTES:
        raise PacketError(f"{path}: a link, or larger than {MAX_LEDGER_BYTES} bytes")
    found = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        value = canonical.loads(line, f"{LEDGER} line {number}", PacketError)
        try:
            found.append(LedgerEntry.model_validate_json(canonical.dumps(value)))
        except ValidationError as problem:
            raise PacketError(f"{LEDGER} line {number}: {protocol.explain(problem)}") from None
    return found


def add(folder: Path, name: str, note: str = "") -> LedgerEntry:
    """Verify a packet of the folder and append it; raises PacketError when it is listed already or does not verify."""
    if not safe_name(name) or "/" in name:
        raise PacketError(f"{name!r}: the plain name of a packet's folder is needed")
    if any(entry.packet == name for entry in entries(folder)):
        raise PacketError(f"{name!r} is in the ledger already; a new packet gets a new name")
    verified = verify(folder / name)
    entry = LedgerEntry(
        packet=name,
        manifest_sha256=_manifest_hash(folder / name),
        protocol_sha256=verified.packet.protocol_hash,
        status=verified.verdict["status"],
        added=datetime.now(UTC).strftime("%Y-%m-%d"),
        note=note,
    )
    with (folder / LEDGER).open("a", encoding="utf-8") as stream:
        stream.write(canonical.dumps(entry.model_dump(mode="json")) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    return entry


def check(folder: Path, progress: Callable[[str], None] | None = None) -> list[tuple[LedgerEntry, Verified]]:
    """Verify every packet that the ledger lists, and that it lists every packet there is; raises PacketError."""
    listed = entries(folder)
    names = [entry.packet for entry in listed]
    if len(set(names)) != len(names):
        raise PacketError(f"{LEDGER}: a packet is listed twice")
    present = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if extra := sorted(set(present) - set(names)):
        raise PacketError(f"{extra[0]!r} is a folder beside the packets that the ledger does not list")
    found = []
    for entry in listed:
        verified = verify(folder / entry.packet, progress)
        if _manifest_hash(folder / entry.packet) != entry.manifest_sha256:
            raise PacketError(f"{entry.packet!r} is not the packet that was added: its manifest differs")
        if verified.verdict["status"] != entry.status:
            raise PacketError(f"{entry.packet!r} was added as {entry.status} and now says {verified.verdict['status']}")
        found.append((entry, verified))
    return found


def _manifest_hash(packet: Path) -> str:
    return canonical.sha256((packet / MANIFEST).read_bytes())
