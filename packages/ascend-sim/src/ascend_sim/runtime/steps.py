"""Engine steps as the runner sees them, for the counters."""

from __future__ import annotations

import functools
from typing import Any

from ascend_sim import counters

from .patches import put


def is_ordinary_decode(scheduler_output: Any) -> bool:
    """One token for every request, no draft, no request that is new, still in its prompt or back from preemption."""
    cached = scheduler_output.scheduled_cached_reqs
    return (
        not scheduler_output.scheduled_new_reqs
        and not scheduler_output.scheduled_spec_decode_tokens
        and not getattr(cached, "resumed_req_ids", None)
        and all(n > 0 for n in getattr(cached, "num_output_tokens", ()))
        and all(n == 1 for n in scheduler_output.num_scheduled_tokens.values())
    )


def count_steps(runner_class: Any) -> None:
    """Open and close the counters' steps at `runner_class`'s `execute_model` and `sample_tokens`.

    Dummy runs and steps without a token are no steps.
    """
    own_execute, own_sample = runner_class.execute_model, runner_class.sample_tokens

    @functools.wraps(own_execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens and not kwargs.get("dummy_run"):
            requests = len(scheduler_output.num_scheduled_tokens)
            counters.begin_step(requests, tokens, is_ordinary_decode(scheduler_output))
        return own_execute(self, scheduler_output, *args, **kwargs)

    @functools.wraps(own_sample)
    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return own_sample(self, *args, **kwargs)
        finally:
            counters.end_step()

    put(runner_class, "execute_model", execute_model)
    put(runner_class, "sample_tokens", sample_tokens)
