"""Reading a stranger's folder: only plain files with plain names, all listed, all hashed, all within limits."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from ..errors import PacketError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MANIFEST = "manifest-sha256.txt"
MAX_FILES = 20_000
MAX_FILE_BYTES = 512 * 1024 * 1024
MAX_TOTAL_BYTES = 4 * 1024 * 1024 * 1024
MAX_MANIFEST_BYTES = 8 * 1024 * 1024
MAX_DEPTH = 6
_PART = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,127}")
_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def safe_name(name: str) -> bool:
    """Whether a manifest name is a plain relative path: no dots up, no root, no hidden or odd part."""
    parts = name.split("/")
    return len(parts) <= MAX_DEPTH and all(_PART.fullmatch(part) is not None for part in parts)


def write_manifest(folder: Path) -> None:
    """List and hash every file of a finished packet, in the form that `sha256sum -c` reads."""
    lines = [f"{_hash(folder / name)}  {name}\n" for name in sorted(_walk(folder)) if name != MANIFEST]
    (folder / MANIFEST).write_text("".join(lines), encoding="ascii")


def check_manifest(folder: Path, progress: Callable[[str], None] | None = None) -> dict[str, str]:
    """Names and hashes of a packet whose files are exactly those listed; raises PacketError at the first fault."""
    if folder.is_symlink() or not folder.is_dir():
        raise PacketError(f"{folder}: not a packet folder")
    listed = _manifest(folder / MANIFEST)
    present = set(_walk(folder)) - {MANIFEST}
    missing, extra = sorted(set(listed) - present), sorted(present - set(listed))
    if missing:
        raise PacketError(f"{missing[0]!r} is in the manifest but not in the packet")
    if extra:
        raise PacketError(f"{extra[0]!r} is in the packet but not in the manifest")
    for name, wanted in listed.items():
        if progress is not None:
            progress(name)
        if _hash(folder / name) != wanted:
            raise PacketError(f"{name!r} is not the file that the manifest names: its SHA-256 differs")
    return listed


def read_bytes(folder: Path, name: str, listed: dict[str, str], limit: int = MAX_FILE_BYTES) -> bytes:
    """Content of one listed file, hashed again: what is judged is what was checked."""
    if name not in listed:
        raise PacketError(f"{name!r} is not in the manifest")
    with _open(folder / name) as handle:
        data = handle.read(limit + 1)
    if len(data) > limit:
        raise PacketError(f"{name!r}: more than {limit} bytes")
    if hashlib.sha256(data).hexdigest() != listed[name]:
        raise PacketError(f"{name!r} changed while it was read")
    return data


def _manifest(path: Path) -> dict[str, str]:
    try:
        with _open(path) as handle:
            data = handle.read(MAX_MANIFEST_BYTES + 1)
    except PacketError:
        raise PacketError(f"{path.parent}: no readable {MANIFEST}, so not a packet") from None
    if len(data) > MAX_MANIFEST_BYTES:
        raise PacketError(f"{MANIFEST}: larger than {MAX_MANIFEST_BYTES} bytes")
    found: dict[str, str] = {}
    for number, raw in enumerate(data.decode("ascii", "replace").splitlines(), start=1):
        match = _LINE.fullmatch(raw)
        if match is None or not safe_name(match.group(2)):
            raise PacketError(f"{MANIFEST} line {number}: not `<sha256>  <plain relative name>`: {raw[:80]!r}")
        if match.group(2) in found:
            raise PacketError(f"{MANIFEST} line {number}: {match.group(2)!r} is listed twice")
        found[match.group(2)] = match.group(1)
    if len(found) > MAX_FILES:
        raise PacketError(f"{MANIFEST}: {len(found)} files, more than the {MAX_FILES} allowed")
    return found


def _walk(folder: Path) -> Iterator[str]:
    """Relative names of all files; refuses links, devices, odd names, and more than the limits."""
    total = files = 0
    stack: list[tuple[str, int]] = [("", 1)]
    while stack:
        prefix, depth = stack.pop()
        try:
            entries = sorted(os.scandir(folder / prefix), key=lambda entry: entry.name)
        except OSError as problem:
            raise PacketError(f"{prefix or folder}: cannot be listed: {problem.strerror}") from None
        for entry in entries:
            name = prefix + entry.name
            info = entry.stat(follow_symlinks=False)
            if _PART.fullmatch(entry.name) is None:
                raise PacketError(f"{name!r}: a name that no packet has")
            if stat.S_ISDIR(info.st_mode):
                if depth >= MAX_DEPTH:
                    raise PacketError(f"{name!r}: folders nested deeper than {MAX_DEPTH}")
                stack.append((name + "/", depth + 1))
                continue
            if not stat.S_ISREG(info.st_mode):
                raise PacketError(f"{name!r}: a link or a device; packets hold plain files only")
            files, total = files + 1, total + info.st_size
            if info.st_size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES or files > MAX_FILES:
                raise PacketError(f"{name!r}: the packet is larger than a packet may be")
            yield name


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    # No link is followed and no pipe blocks: a swap between the walk and this changes nothing.
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        raise PacketError(f"{path.name!r}: cannot be opened: {problem.strerror}") from None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise PacketError(f"{path.name!r}: a link or a device; packets hold plain files only")
        yield stream


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with _open(path) as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
