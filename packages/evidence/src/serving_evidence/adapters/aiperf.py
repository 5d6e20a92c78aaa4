"""NVIDIA AIPerf `profile_export.jsonl`: one JSON object a request, metrics as value and unit.

Written from the record models of AIPerf 0.13.0, tested on a file that it wrote. Warm-up requests are told apart by
their phase and left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import canonical
from ..errors import ResultError
from ..samples import Requests, Result
from . import _fields as f

TOOL = "AIPerf"
_TO_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}
_OUTPUT_TOKENS = ("output_sequence_length", "output_token_count")


def matches(first_line: Any) -> bool:
    """Whether a JSONL file's first object looks like a record of this tool."""
    metadata = first_line.get("metadata") if isinstance(first_line, dict) else None
    return isinstance(metadata, dict) and "request_start_ns" in metadata


def parse(data: bytes, source: str) -> Result:
    """One Result from a whole JSONL file; every line must be a record."""
    records = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            where = f"{source}:{number}"
            record = f.mapping(canonical.loads(line, where), where)
            if f.mapping(record.get("metadata"), where).get("benchmark_phase", "profiling") == "profiling":
                records.append((where, record))
    if not records:
        raise ResultError(f"{source}: no profiling record in the file")
    starts = [f.number(record["metadata"].get("request_start_ns"), where) for where, record in records]
    ends = [f.number(record["metadata"].get("request_end_ns"), where) for where, record in records]
    ok = np.array([record.get("error") is None for _, record in records], dtype=np.bool_)
    itls = [_itls(record, where) for where, record in records]
    requests = Requests(
        ok=ok,
        ttft_ms=np.array([_time(record, "time_to_first_token", where) for where, record in records]),
        e2el_ms=np.array([_time(record, "request_latency", where) for where, record in records]),
        input_tokens=np.array([_number(record, ("input_sequence_length",), where) for where, record in records]),
        output_tokens=np.array([_number(record, _OUTPUT_TOKENS, where) for where, record in records]),
        itl_ms=np.concatenate(itls),
        itl_counts=np.array([itl.size for itl in itls], dtype=np.int64),
    )
    return Result(
        tool=TOOL,
        source=source,
        date=str(int(min(starts))),
        workload={"requests": len(records), "input_lens_sha256": f.fingerprint(requests.input_tokens)},
        scalars={},
        completed=int(ok.sum()),
        failed=int((~ok).sum()),
        duration_s=(max(ends) - min(starts)) * 1e-9 or None,
        requests=requests,
        errors=tuple(str(record["error"])[-300:] for _, record in records if record.get("error")),
    )


def _metric(record: dict[str, Any], name: str, where: str) -> tuple[Any, str] | None:
    found = f.mapping(record.get("metrics"), f"{where}: `metrics`").get(name)
    if found is None:
        return None
    entry = f.mapping(found, f"{where}: `{name}`")
    return entry.get("value"), str(entry.get("unit"))


def _scale(unit: str, name: str, where: str) -> float:
    if unit not in _TO_MS:
        raise ResultError(f"{where}: `{name}` has unit {unit!r}; times are known in {sorted(_TO_MS)!r}")
    return _TO_MS[unit]


def _time(record: dict[str, Any], name: str, where: str) -> float:
    found = _metric(record, name, where)
    return float("nan") if found is None else f.number(found[0], f"{where}: `{name}`") * _scale(found[1], name, where)


def _number(record: dict[str, Any], names: tuple[str, ...], where: str) -> float:
    for name in names:
        found = _metric(record, name, where)
        if found is not None:
            return f.number(found[0], f"{where}: `{name}`")
    return float("nan")


def _itls(record: dict[str, Any], where: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    # Gaps between streamed chunks: the per-token list; `inter_token_latency` is one mean a request.
    found = _metric(record, "inter_chunk_latency", where)
    if found is None:
        return np.zeros(0)
    return f.numbers(found[0], f"{where}: `inter_chunk_latency`") * _scale(found[1], "inter_chunk_latency", where)
