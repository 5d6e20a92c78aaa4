"""What the guard did, in counts, and the two ways in which a scrape reaches them.

Workers live outside of the API process. Where the environment variable PROMETHEUS_MULTIPROC_DIR is set (by the user,
or by vLLM with several API servers), the counters are `prometheus_client` multiprocess counters: each worker maps a
file there, and the server's own `/metrics`, which then gathers that folder, shows them. In any case, with `stats_dir`,
each worker writes `kv-plan-guard-<pid>.json` and `.prom` (for a node exporter's textfile collector), as mrv2-metadata
does. Counters are pushed every `PERIOD` steps, at each finding and at the end: not in the hot path.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from kv_plan_guard.violation import Code

LOG = logging.getLogger("kv_plan_guard")
FORMAT: Final = 1
PERIOD: Final = 256
COUNTS: Final = ("steps", "audits", "slow_audits", "bad_audits", "rows", "tokens", "withheld", "replay_files")
_HELP: Final = {
    "steps": "scheduler decisions taken in",
    "audits": "plans audited, one per KV cache group and step",
    "slow_audits": "plans that the quick comparison handed to the full one",
    "bad_audits": "audits that found something",
    "rows": "batch rows audited",
    "tokens": "tokens audited",
    "withheld": "outputs that were not released",
    "replay_files": "replay files written",
}
_metrics: dict[str, Any] = {}


class Stats:
    """The counters of one worker. Plain attributes, so that counting costs an addition."""

    def __init__(self, folder: str | None = None) -> None:
        self.steps = self.audits = self.slow_audits = self.bad_audits = 0
        self.rows = self.tokens = self.withheld = self.replay_files = 0
        self.violations: Counter[Code] = Counter()
        self._folder = folder
        self._pushed: Counter[str] = Counter()

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data; every count and code is present, at 0 where nothing happened."""
        return {
            "format": FORMAT,
            "pid": os.getpid(),
            "counts": {name: getattr(self, name) for name in COUNTS},
            "violations": {code.value: self.violations[code] for code in Code},
        }

    def prometheus(self) -> str:
        """The counters in Prometheus' text format, labelled with the worker's process id."""
        pid = os.getpid()
        lines = []
        for name in COUNTS:
            lines += [
                f"# HELP kv_plan_guard_{name}_total {_HELP[name]}",
                f"# TYPE kv_plan_guard_{name}_total counter",
                f'kv_plan_guard_{name}_total{{pid="{pid}"}} {getattr(self, name)}',
            ]
        lines += [
            "# HELP kv_plan_guard_violations_total findings by code",
            "# TYPE kv_plan_guard_violations_total counter",
        ]
        lines += [
            f'kv_plan_guard_violations_total{{pid="{pid}",code="{code.value}"}} {self.violations[code]}'
            for code in Code
        ]
        return "\n".join(lines) + "\n"

    def tick(self) -> None:
        """Call once a step: pushes the counters now and then."""
        if self.steps % PERIOD == 0:
            self.write()

    def write(self) -> None:
        """Push the counters where a scrape finds them; a folder that cannot be written is logged, never raised."""
        try:
            if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
                self._push()
            if self._folder is not None:
                folder = Path(self._folder)
                folder.mkdir(parents=True, exist_ok=True)
                _replace(folder / f"kv-plan-guard-{os.getpid()}.json", json.dumps(self.to_json(), indent=1) + "\n")
                _replace(folder / f"kv-plan-guard-{os.getpid()}.prom", self.prometheus())
        except OSError as error:
            LOG.warning("the guard's counters cannot be written: %s", error)

    def _push(self) -> None:
        """Add what is new to the multiprocess counters of this process."""
        from prometheus_client import Counter as Metric

        if not _metrics:
            for name in COUNTS:
                _metrics[name] = Metric(f"kv_plan_guard_{name}", _HELP[name])
            _metrics["violations"] = Metric("kv_plan_guard_violations", "findings by code", ["code"])
        for name in COUNTS:
            if (new := getattr(self, name) - self._pushed[name]) > 0:
                _metrics[name].inc(new)
                self._pushed[name] += new
        for code, number in self.violations.items():
            if (new := number - self._pushed[code.value]) > 0:
                _metrics["violations"].labels(code.value).inc(new)
                self._pushed[code.value] += new


def _replace(path: Path, text: str) -> None:
    """Write a file whole or not at all: a reader never sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
