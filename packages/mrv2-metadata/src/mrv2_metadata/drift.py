"""The comparison of host and device lengths of one step, and the report that stops the engine.

A host length that promises to be exact must equal the device's; an upper bound must not lie below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the host believed in one step: `host` [num_reqs] int32 tokens, `exact` [num_reqs] bool, in batch order."""

    step: int
    req_ids: tuple[str, ...]
    host: NDArray[np.int32]
    exact: NDArray[np.bool_]
    source: str
    reasons: tuple[str, ...]
    rank: str


def wrong_rows(snapshot: Snapshot, device: NDArray[np.int32]) -> NDArray[np.intp]:
    """Batch rows whose host length breaks its promise against `device` [num_reqs] int32."""
    if device.shape != snapshot.host.shape:
        raise ValueError(f"device lengths have shape {device.shape}, host lengths {snapshot.host.shape}")
    wrong = np.where(snapshot.exact, snapshot.host != device, snapshot.host < device)
    return np.flatnonzero(wrong)


def report(snapshot: Snapshot, device: NDArray[np.int32], rows: NDArray[np.intp]) -> str:
    """Every wrong row with both lengths, and all that is needed to find the step again."""
    lines = [
        f"mrv2-metadata: host and device sequence lengths differ in {len(rows)} of {len(snapshot.host)} rows "
        f"(step {snapshot.step}, {snapshot.rank}, authority {snapshot.source}"
        f"{', reasons ' + ', '.join(snapshot.reasons) if snapshot.reasons else ''}). The engine stops: attention would "
        "read a wrong part of the KV cache. Turn the hook off, or report this text.",
    ]
    for row in rows:
        promise = "exact" if snapshot.exact[row] else "upper bound"
        host, true = int(snapshot.host[row]), int(device[row])
        lines.append(
            f"  row {row} request {snapshot.req_ids[row]!r}: host {host} ({promise}), device {true}, "
            f"difference {host - true:+d}"
        )
    return "\n".join(lines)
