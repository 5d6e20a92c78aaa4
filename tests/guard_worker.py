"""What the tests of several workers add to each worker: plant a fault on one rank, and say what a guard counted.

vLLM mixes the class into its worker (`worker_extension_cls`), so that `collective_rpc` reaches it in worker processes.
"""

from __future__ import annotations

import os
from typing import Any

STEP = 6


class GuardWorker:
    """Methods of a worker; vLLM makes `self.model_runner`."""

    model_runner: Any

    def guard_plant(self, place: str) -> str:
        """Let step `STEP` of the rank at `place` ("tp1", "pp0", ...) write its first token one slot too far."""
        runner = self.model_runner
        guard = runner.__dict__["_kv_plan_guard"]
        if place not in guard.rank.text.split():
            return f"{guard.rank.text}: untouched"
        prepare, count = runner.prepare_attn, [-1]

        def prepare_attn(batch: Any) -> Any:
            tables, slots = prepare(batch)
            count[0] += 1
            if count[0] == STEP:
                slots[0, 0] += 1
            return tables, slots

        runner.prepare_attn = prepare_attn
        return f"{guard.rank.text}: planted"

    def guard_counts(self) -> dict[str, Any]:
        """What the guard of this worker counted so far."""
        guard = self.model_runner.__dict__["_kv_plan_guard"]
        guard.poll()
        return {
            "rank": guard.rank.text,
            "pid": os.getpid(),
            "counts": guard.guard.stats.to_json()["counts"],
            "figures": guard.figures(),
            "has_output": guard.rank.has_output,
            "is_read": guard.rank.is_read,
        }
