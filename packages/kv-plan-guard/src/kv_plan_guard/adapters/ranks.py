"""Which worker this is, and whether anybody reads what it returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Rank:
    """`has_output`: the worker samples (last pipeline stage). `is_read`: the executor reads its output, so that a bad
    step can be held back there; on every other rank the worker must be taken down instead.
    """

    text: str
    has_output: bool
    is_read: bool


def rank_of(runner: Any) -> Rank:
    """The place of this worker in its engine.

    vLLM's executors read one rank: the first of the last pipeline stage (source: `MultiprocExecutor._get_output_rank`).
    """
    from vllm.distributed import parallel_state

    places = {"pp": parallel_state.get_pp_group(), "tp": parallel_state.get_tp_group()}
    parallel = runner.parallel_config
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        places["pcp"] = parallel_state.get_pcp_group()
    if getattr(parallel, "decode_context_parallel_size", 1) > 1:
        places["dcp"] = parallel_state.get_dcp_group()
    numbers = {name: int(group.rank_in_group) for name, group in places.items()}
    has_output = bool(runner.is_last_pp_rank)
    first = all(number == 0 for name, number in numbers.items() if name != "pp")
    text = " ".join(f"{name}{number}" for name, number in numbers.items())
    return Rank(f"{text} pid {os.getpid()}", has_output, has_output and first)
