"""What one client run against one server start left: per-request samples where there are any, and the tool's scalars.

Times are milliseconds. A metric is a flat name (`p99_itl_ms`, `output_throughput`); names that this package does not
know pass through, so that a newer tool's keys can be compared too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .errors import ResultError

if TYPE_CHECKING:
    from .stats._special import FloatArray, IntArray

Direction = Literal["higher", "lower"]
MAX_REQUESTS = 5_000_000
MAX_ITLS = 50_000_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_HIGHER = ("throughput", "goodput", "acceptance", "per_s", "rtfx", "hit_rate")
_LOWER = ("_ms", "_us", "_s", "latency", "duration", "error_rate", "_bytes", "_mib", "_gib", "memory")


@dataclass(frozen=True)
class Requests:
    """Per-request samples [requests]; NaN where the tool did not say. ITLs are flat, `itl_counts` a request."""

    ok: np.ndarray[Any, np.dtype[np.bool_]]
    ttft_ms: FloatArray
    e2el_ms: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    itl_ms: FloatArray
    itl_counts: IntArray

    def __post_init__(self) -> None:
        n = self.ok.size
        for name in ("ttft_ms", "e2el_ms", "input_tokens", "output_tokens", "itl_counts"):
            if getattr(self, name).shape != (n,):
                raise ResultError(f"`{name}` has {getattr(self, name).size} entries for {n} requests")
        if n > MAX_REQUESTS or self.itl_ms.size > MAX_ITLS:
            raise ResultError(f"{n} requests with {self.itl_ms.size} ITLs: more than one start may hold")
        if (self.itl_counts < 0).any() or int(self.itl_counts.sum()) != self.itl_ms.size:
            raise ResultError("`itl_counts` does not add up to the number of ITLs")
        if not np.isfinite(self.itl_ms).all() or (self.itl_ms < 0).any():
            raise ResultError("an ITL is negative or not finite")


@dataclass(frozen=True)
class Result:
    """One client run: which tool wrote it, identity of the workload, scalars as given, samples if detailed."""

    tool: str
    source: str
    date: str
    workload: dict[str, Any]
    scalars: dict[str, float]
    completed: int
    failed: int
    duration_s: float | None
    requests: Requests | None = None
    texts: tuple[str, ...] | None = None
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    server: str | None = None


def metrics(result: Result) -> dict[str, float]:
    """Every metric of one run: recomputed from the samples where they exist, else the tool's own scalar."""
    values = {name: value for name, value in result.scalars.items() if np.isfinite(value)}
    total = result.completed + result.failed
    if total:
        values["error_rate"] = result.failed / total
    if result.requests is not None:
        values.update(_from_samples(result.requests, result.duration_s))
    return values


def tail_samples(result: Result, metric: str) -> int | None:
    """Samples behind a tail metric such as `p99_ttft_ms`; None when it is no tail or was not recomputed here."""
    quantile, _, rest = metric.partition("_")
    if quantile not in ("p90", "p95", "p99") or result.requests is None:
        return None
    kind = rest.removesuffix("_ms")
    if kind == "itl":
        return int(result.requests.itl_ms.size)
    return int(np.count_nonzero(result.requests.ok)) if kind in ("ttft", "tpot", "e2el") else None


def direction(metric: str) -> Direction | None:
    """Which way is better, or None for a name that does not say."""
    if any(part in metric for part in _HIGHER):
        return "higher"
    if any(metric.endswith(part) or part in metric for part in _LOWER):
        return "lower"
    return None


def _from_samples(requests: Requests, duration_s: float | None) -> dict[str, float]:
    ok = requests.ok
    more = ok & (requests.output_tokens > 1)
    tpot = (requests.e2el_ms[more] - requests.ttft_ms[more]) / (requests.output_tokens[more] - 1)
    values: dict[str, float] = {}
    for kind, array in (
        ("ttft", requests.ttft_ms[ok]),
        ("e2el", requests.e2el_ms[ok]),
        ("tpot", tpot),
        ("itl", requests.itl_ms),
    ):
        known = array[np.isfinite(array)]
        if known.size:
            values[f"mean_{kind}_ms"] = float(known.mean())
            cuts = np.quantile(known, list(QUANTILES.values()))
            values.update({f"{name}_{kind}_ms": float(cut) for name, cut in zip(QUANTILES, cuts, strict=True)})
    if duration_s:
        values["request_throughput"] = float(np.count_nonzero(ok)) / duration_s
        tokens = requests.output_tokens[ok]
        if np.isfinite(tokens).all():
            values["output_throughput"] = float(tokens.sum()) / duration_s
    return values
