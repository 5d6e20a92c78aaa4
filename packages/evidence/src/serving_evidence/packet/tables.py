"""Per-request samples as Parquet with numeric columns only: no strings, no lists, nothing that can unfold in memory.

requests.parquet: start (u16), scenario (u16, position in the protocol), request (u32), ok (u8), ttft_ms, e2el_ms,
input_tokens, output_tokens (f64, NaN unknown), itl_count (u32). itls.parquet: itl_ms (f64), in the order of requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..errors import PacketError
from ..samples import MAX_ITLS, MAX_REQUESTS, Requests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ..samples import Result

_REQUESTS: dict[str, Any] = {
    "start": pl.UInt16,
    "scenario": pl.UInt16,
    "request": pl.UInt32,
    "ok": pl.UInt8,
    "ttft_ms": pl.Float64,
    "e2el_ms": pl.Float64,
    "input_tokens": pl.Float64,
    "output_tokens": pl.Float64,
    "itl_count": pl.UInt32,
}
_ITLS: dict[str, Any] = {"itl_ms": pl.Float64}
Key = tuple[int, str]


def write(folder: Path, runs: Mapping[Key, Result], scenarios: Sequence[str]) -> None:
    """Write both tables of a packet; runs without samples leave no row."""
    frames, itls = [], []
    for (start, name), run in sorted(runs.items(), key=lambda item: (item[0][0], scenarios.index(item[0][1]))):
        if run.requests is not None:
            frames.append(_frame(start, scenarios.index(name), run.requests))
            itls.append(run.requests.itl_ms)
    requests = pl.concat(frames) if frames else pl.DataFrame(schema=_REQUESTS)
    flat = np.concatenate(itls) if itls else np.zeros(0)
    requests.write_parquet(folder / "requests.parquet", compression="zstd", statistics=False)
    pl.DataFrame({"itl_ms": flat}, schema=_ITLS).write_parquet(
        folder / "itls.parquet", compression="zstd", statistics=False
    )


def read(folder: Path, scenarios: Sequence[str]) -> dict[Key, Requests]:
    """Samples by (start, scenario); refuses a table that is not exactly of the form above."""
    requests = _load(folder / "requests.parquet", _REQUESTS, MAX_REQUESTS)
    itls = _load(folder / "itls.parquet", _ITLS, MAX_ITLS)["itl_ms"].to_numpy()
    counts = requests["itl_count"].to_numpy().astype(np.int64)
    if int(counts.sum()) != itls.size:
        raise PacketError("itls.parquet does not hold as many ITLs as requests.parquet counts")
    offsets = np.concatenate([[0], np.cumsum(counts)])
    found: dict[Key, Requests] = {}
    if requests.height == 0:
        return found
    start, scenario = requests["start"].to_numpy(), requests["scenario"].to_numpy()
    edges = np.flatnonzero((np.diff(start.astype(np.int64)) != 0) | (np.diff(scenario.astype(np.int64)) != 0)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), requests.height], strict=True):
        if scenario[low] >= len(scenarios):
            raise PacketError(f"requests.parquet names scenario {int(scenario[low])}; there are {len(scenarios)}")
        key = (int(start[low]), scenarios[int(scenario[low])])
        if key in found:
            raise PacketError("requests.parquet has the rows of one start in two places")
        part = requests.slice(low, high - low)
        found[key] = Requests(
            ok=part["ok"].to_numpy().astype(np.bool_),
            ttft_ms=part["ttft_ms"].to_numpy(),
            e2el_ms=part["e2el_ms"].to_numpy(),
            input_tokens=part["input_tokens"].to_numpy(),
            output_tokens=part["output_tokens"].to_numpy(),
            itl_ms=itls[offsets[low] : offsets[high]],
            itl_counts=counts[low:high],
        )
    return found


def _frame(start: int, scenario: int, requests: Requests) -> pl.DataFrame:
    n = requests.ok.size
    return pl.DataFrame(
        {
            "start": np.full(n, start),
            "scenario": np.full(n, scenario),
            "request": np.arange(n),
            "ok": requests.ok.astype(np.uint8),
            "ttft_ms": requests.ttft_ms,
            "e2el_ms": requests.e2el_ms,
            "input_tokens": requests.input_tokens,
            "output_tokens": requests.output_tokens,
            "itl_count": requests.itl_counts,
        },
        schema=_REQUESTS,
    )


def _load(path: Path, schema: Mapping[str, Any], limit: int) -> pl.DataFrame:
    # Broken files make polars panic (a BaseException) as well as raise, so all of them are caught; the limits are
    # asked of the footer before a page is unpacked, and fixed-width columns keep a bomb from growing past them.
    try:
        if dict(pl.read_parquet_schema(path)) != dict(schema):
            raise PacketError(f"{path.name}: the columns are not those of this format")
        rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
        if rows > limit:
            raise PacketError(f"{path.name}: {rows} rows, more than the {limit} allowed")
        frame = pl.read_parquet(path)
    except (PacketError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:
        raise PacketError(f"{path.name}: not readable as Parquet ({type(problem).__name__})") from None
    if frame.height != rows or any(frame[name].null_count() for name in schema):
        raise PacketError(f"{path.name}: rows are missing or null")
    return frame
