"""GuideLLM JSON reports (`kind=json`, report schema version 2): one result a benchmark in the report.

Written from the report schema of GuideLLM 0.8.1, tested on a file that it wrote. It keeps one mean ITL a request, no
list of ITLs, so percentiles over tokens cannot be had from it and are not made up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..samples import Requests, Result
from . import _fields as f

TOOL = "GuideLLM"


def matches(raw: Any) -> bool:
    """Whether the value looks like a report of this tool."""
    return (
        isinstance(raw, dict)
        and isinstance(raw.get("benchmarks"), list)
        and isinstance(raw.get("metadata"), dict)
        and "guidellm_version" in raw["metadata"]
    )


def parse(raw: dict[str, Any], source: str) -> list[Result]:
    """One Result a benchmark; failed requests are counted, never dropped."""
    return [_benchmark(f.mapping(item, source), f"{source}#{i}", i) for i, item in enumerate(raw["benchmarks"])]


def _benchmark(raw: dict[str, Any], source: str, index: int) -> Result:
    groups = f.mapping(raw.get("requests"), f"{source}: `requests`")
    listed = {
        name: f.items(groups.get(name), f"{source}: `{name}`") for name in ("successful", "errored", "incomplete")
    }
    good = [f.mapping(item, source) for item in listed["successful"]]
    bad = [f.mapping(item, source) for name in ("errored", "incomplete") for item in listed[name]]
    both = good + bad
    config = raw.get("config")
    strategy = config.get("strategy") if isinstance(config, dict) else None

    def column(name: str, scale: float = 1.0) -> np.ndarray[Any, np.dtype[np.float64]]:
        return f.numbers([item.get(name) for item in both], f"{source}: `{name}`") * scale

    requests = Requests(
        ok=np.arange(len(both)) < len(good),
        ttft_ms=column("time_to_first_token_ms"),
        e2el_ms=column("request_latency", 1e3),
        input_tokens=column("prompt_tokens"),
        output_tokens=column("output_tokens"),
        itl_ms=np.zeros(0),
        itl_counts=np.zeros(len(both), dtype=np.int64),
    )
    duration = raw.get("duration")
    return Result(
        tool=TOOL,
        source=source,
        date=str(raw.get("start_time", "")),
        workload={
            "benchmark": index,
            "strategy": strategy,
            "input_lens_sha256": f.fingerprint(requests.input_tokens),
        },
        scalars=f.scalars(raw),
        completed=len(good),
        failed=len(bad),
        duration_s=f.number(duration, f"{source}: `duration`") if duration else None,
        requests=requests if both else None,
    )
