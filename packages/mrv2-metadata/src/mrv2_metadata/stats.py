"""What the hook did, in counts, and how long the host took, in a histogram of bounded size.

Workers live outside the API process, and vLLM gathers Prometheus metrics across processes only when several API
servers run. So the transport is files: each worker writes `mrv2-metadata-<pid>.json` and `.prom` (the text format a
node exporter's textfile collector reads) into `stats_dir`, atomically.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

# 16 buckets per power of two: a quantile is at most 1/32 away from the true value.
_SUB_BITS: Final = 4
_SUB: Final = 1 << _SUB_BITS
_NUM_BUCKETS: Final = 64 * _SUB
_LONGEST_NS: Final = (1 << 53) - 1  # 104 days; longer ones count as that
_FOLD_AT: Final = 256
FORMAT: Final = 1

COUNTS: Final = (
    "steps",
    "scheduler_steps",
    "device_steps",
    "length_copies",
    "length_copy_bytes",
    "length_waits",
    "corrected_rows",
    "uploads_avoided",
    "uploads_kept",
    "snapshots_taken",
    "snapshots_dropped",
    "verified_steps",
    "verified_rows",
    "drift_rows",
)


class Histogram:
    """Durations in nanoseconds, in buckets whose width grows with the value; memory does not grow with the count.

    Values wait in a short list and are put into their buckets many at a time: in a step, `add` is an append.
    """

    def __init__(self) -> None:
        self._buckets = np.zeros(_NUM_BUCKETS, np.int64)
        self._waiting: list[int] = []
        self._total_ns = 0

    def add(self, ns: int) -> None:
        """Count one duration of `ns` nanoseconds; negative ones (a clock that went back) count as 0."""
        waiting = self._waiting
        waiting.append(ns)
        if len(waiting) >= _FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        values = np.array([min(max(ns, 0), _LONGEST_NS) for ns in self._waiting], np.int64)
        self._waiting.clear()
        self._total_ns += int(values.sum())
        # frexp's exponent is the bit length, exactly so below 2**53.
        shift = np.maximum(np.frexp(values.astype(np.float64))[1] - 1 - _SUB_BITS, 0)
        low = values >> shift
        buckets = np.where(values < _SUB, values, (shift + 1) * _SUB + (low - _SUB))
        self._buckets += np.bincount(buckets, minlength=_NUM_BUCKETS)

    @property
    def count(self) -> int:
        """How many durations were added."""
        return int(self._buckets.sum()) + len(self._waiting)

    @property
    def total_ns(self) -> int:
        """Their sum, in nanoseconds."""
        self._fold()
        return self._total_ns

    @staticmethod
    def _middle(bucket: int) -> float:
        if bucket < _SUB:
            return float(bucket)
        shift, sub = bucket // _SUB - 1, bucket % _SUB
        low = (_SUB + sub) << shift
        return low + ((1 << shift) - 1) / 2

    def quantile_ns(self, q: float) -> float | None:
        """The `q` quantile (0..1) in nanoseconds, within 1/32; None without a value."""
        if not 0 <= q <= 1:
            raise ValueError(f"q must be within 0 and 1, got {q!r}")
        self._fold()
        if not self.count:
            return None
        seen = np.cumsum(self._buckets)
        return self._middle(int(np.searchsorted(seen, q * (self.count - 1), side="right")))

    def summary(self) -> dict[str, float | int | None]:
        """Count, and median and 99th percentile in microseconds."""

        def in_us(ns: float | None) -> float | None:
            return None if ns is None else round(ns / 1e3, 3)

        return {"count": self.count, "median_us": in_us(self.quantile_ns(0.5)), "p99_us": in_us(self.quantile_ns(0.99))}


@dataclass
class Stats:
    """The counters and histograms of one worker."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    reasons: Counter[str] = field(default_factory=Counter)
    update: Histogram = field(default_factory=Histogram)
    prepare: Histogram = field(default_factory=Histogram)

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data; every count is present, at 0 where nothing happened."""
        return {
            "format": FORMAT,
            "pid": os.getpid(),
            "counts": {name: self.counts[name] for name in COUNTS},
            "device_reasons": dict(sorted(self.reasons.items())),
            "length_update": self.update.summary(),
            "prepare": self.prepare.summary(),
        }

    def line(self) -> str:
        """One line for the log at exit."""
        counts = ", ".join(f"{name} {self.counts[name]}" for name in COUNTS)
        update, prepare = self.update.summary(), self.prepare.summary()
        return (
            f"{counts}; length update median {update['median_us']} us, p99 {update['p99_us']} us; "
            f"prepare median {prepare['median_us']} us, p99 {prepare['p99_us']} us"
        )

    def prometheus(self) -> str:
        """The counters in Prometheus' text format, labelled with the worker's process id."""
        label = f'{{pid="{os.getpid()}"}}'
        lines = []
        for name in COUNTS:
            lines += [f"# TYPE mrv2_metadata_{name}_total counter"]
            lines += [f"mrv2_metadata_{name}_total{label} {self.counts[name]}"]
        for name, histogram in (("length_update", self.update), ("prepare", self.prepare)):
            metric = f"mrv2_metadata_{name}_seconds"
            lines.append(f"# TYPE {metric} summary")
            for q in (0.5, 0.99):
                value = histogram.quantile_ns(q)
                if value is not None:
                    lines.append(f'{metric}{{pid="{os.getpid()}",quantile="{q}"}} {value / 1e9:.9f}')
            lines.append(f"{metric}_sum{label} {histogram.total_ns / 1e9:.9f}")
            lines.append(f"{metric}_count{label} {histogram.count}")
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write both files into `folder`, each by an atomic rename; OSError is the caller's to log."""
        folder.mkdir(parents=True, exist_ok=True)
        base = folder / f"mrv2-metadata-{os.getpid()}"
        _replace(base.with_suffix(".json"), json.dumps(self.to_json(), indent=1) + "\n")
        _replace(base.with_suffix(".prom"), self.prometheus())


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)  # mkstemp makes it private; a collector runs as somebody else
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
