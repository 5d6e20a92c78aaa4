"""`vllm bench serve` result JSON, summary or detailed (--save-detailed): seconds a request, milliseconds in summaries.

Written from the source of vLLM 0.30.0. Keys are treated as open-ended: what is not known here passes through.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from ..errors import ResultError
from ..samples import Requests, Result
from . import _fields as f

TOOL = "vllm bench serve"
# Identity of the workload: two results are comparable only where these agree.
_IDENTITY = (
    "backend",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "ramp_up_strategy",
    "ramp_up_start_rps",
    "ramp_up_end_rps",
)


def matches(raw: Any) -> bool:
    """Whether the value looks like one result of this tool."""
    return isinstance(raw, dict) and "completed" in raw and "duration" in raw and "num_prompts" in raw


def parse(raw: dict[str, Any], source: str) -> Result:
    """One result object; raises ResultError with the key that is wrong."""
    completed = f.count(raw.get("completed"), f"{source}: `completed`")
    planned = f.count(raw.get("num_prompts"), f"{source}: `num_prompts`")
    requests = _requests(raw, source) if "itls" in raw and "ttfts" in raw else None
    failed_key = raw.get("failed")
    if failed_key is not None:
        failed = f.count(failed_key, f"{source}: `failed`")
    else:  # older versions write no count of failures
        failed = max(planned - completed, 0)
    identity = {key: raw[key] for key in _IDENTITY if raw.get(key) is not None}
    if requests is not None:
        lengths = requests.input_tokens.tobytes()
        identity["input_lens_sha256"] = hashlib.sha256(lengths).hexdigest()
    texts = raw.get("generated_texts")
    errors = raw.get("errors") or []
    return Result(
        tool=TOOL,
        source=source,
        date=str(raw.get("date", "")),
        workload=identity,
        scalars=f.scalars(raw),
        completed=completed,
        failed=failed,
        duration_s=f.number(raw["duration"], f"{source}: `duration`") or None,
        requests=requests,
        texts=tuple(str(text) for text in texts) if isinstance(texts, list) else None,
        errors=tuple(str(error)[-300:] for error in errors if error) if isinstance(errors, list) else (),
    )


def _requests(raw: dict[str, Any], source: str) -> Requests:
    ttft = f.numbers(raw["ttfts"], f"{source}: `ttfts`")
    itl, counts = f.ragged(raw["itls"], f"{source}: `itls`")
    if counts.size != ttft.size:
        raise ResultError(f"{source}: `itls` has {counts.size} entries and `ttfts` {ttft.size}")
    errors = raw.get("errors")
    if isinstance(errors, list) and len(errors) == ttft.size:
        ok = np.array([not error for error in errors], dtype=np.bool_)
    else:
        ok = ttft > 0
    if raw.get("latencies") is not None:
        e2el = f.numbers(raw["latencies"], f"{source}: `latencies`")
    else:  # older versions: the last token's time is what TTFT and ITLs add up to
        owner = np.repeat(np.arange(counts.size), counts)
        e2el = ttft + np.bincount(owner, weights=itl, minlength=counts.size)
    unknown = [None] * ttft.size
    return Requests(
        ok=ok,
        ttft_ms=np.where(ok, ttft * 1e3, np.nan),
        e2el_ms=np.where(ok, e2el * 1e3, np.nan),
        input_tokens=f.numbers(raw.get("input_lens", unknown), f"{source}: `input_lens`"),
        output_tokens=f.numbers(raw.get("output_lens", unknown), f"{source}: `output_lens`"),
        itl_ms=itl * 1e3,
        itl_counts=counts,
    )
