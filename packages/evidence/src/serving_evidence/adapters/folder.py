"""A folder of result files as a list of results, whichever of the known tools wrote them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import canonical
from ..errors import ResultError
from . import aiperf, guidellm, vllm_bench, vllm_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..samples import Result

MAX_FILES = 5_000
_KNOWN = "`vllm bench serve --save-result` JSON, `vllm bench sweep` trees, GuideLLM JSON and AIPerf JSONL"


def read_folder(folder: Path) -> list[Result]:
    """Every result below `folder`, oldest first; links are refused, files of other kinds are passed over."""
    if not folder.is_dir():
        raise ResultError(f"{folder}: no such folder; give a folder of {_KNOWN}")
    results: list[Result] = []
    for path in _files(folder):
        results += read_run(path, str(path.relative_to(folder)))
    if not results:
        raise ResultError(f"{folder}: no result file found; known are {_KNOWN}")
    return sorted(results, key=lambda result: (result.date, result.source))


def read_run(path: Path, source: str | None = None) -> list[Result]:
    """Results of one file; empty when the file is JSON of another kind."""
    name = source or path.name
    if path.suffix == ".jsonl":
        return _read_jsonl(path, name)
    found: list[Result] = []
    for index, raw in enumerate(_objects(path, name)):
        if vllm_bench.matches(raw):
            result = vllm_bench.parse(raw, name if index == 0 else f"{name}#{index}")
            if vllm_sweep.is_run(path):
                result = replace(
                    result, server=vllm_sweep.server_of(path), notes=("a sweep repeats on one server: one start",)
                )
            found.append(result)
        elif guidellm.matches(raw):
            found += guidellm.parse(raw, name)
    return found


def _files(folder: Path) -> Iterator[Path]:
    seen = 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise ResultError(f"{path}: a link; copy the file itself into the folder")
        # The PyTorch dashboard copy and a sweep's summary repeat what the other files say.
        if not path.is_file() or path.name.endswith(".pytorch.json") or path.name == "summary.json":
            continue
        if path.suffix in (".json", ".jsonl"):
            seen += 1
            if seen > MAX_FILES:
                raise ResultError(f"{folder}: more than {MAX_FILES} JSON files; give the folder of one experiment")
            yield path


def _objects(path: Path, name: str) -> list[Any]:
    data = _bytes(path, name)
    try:
        return [canonical.loads(data, name)]
    except ResultError:
        # `--append-result` writes one object a line into one file.
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2 or not all(line.lstrip().startswith(b"{") for line in lines):
            raise
        return [canonical.loads(line, f"{name}:{i}") for i, line in enumerate(lines, start=1)]


def _read_jsonl(path: Path, name: str) -> list[Result]:
    data = _bytes(path, name)
    try:
        first = json.loads(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return []
    return [aiperf.parse(data, name)] if aiperf.matches(first) else []


def _bytes(path: Path, name: str) -> bytes:
    if path.stat().st_size > canonical.MAX_JSON_BYTES:
        raise ResultError(f"{name}: larger than {canonical.MAX_JSON_BYTES} bytes")
    return path.read_bytes()
