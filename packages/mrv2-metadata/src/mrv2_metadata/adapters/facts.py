"""Read the facts of a runner and of a step; what cannot be read is UNKNOWN, never a default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mrv2_metadata.authority import UNKNOWN, Known, RunnerFacts, StepFacts, Unknown

if TYPE_CHECKING:
    from mrv2_metadata.config import Config

_MISSING = object()


def _read(holder: Any, *path: str) -> Any:
    """The attribute at `path`, or UNKNOWN where a part of it is missing; None is a value."""
    value = holder
    for name in path:
        value = getattr(value, name, _MISSING)
        if value is _MISSING:
            return UNKNOWN
    return value


def _typed(value: Any, kind: type) -> Any:
    return value if type(value) is kind else UNKNOWN


def _speculation(config: Any) -> tuple[Known[str | None], Known[int]]:
    spec = _read(config, "speculative_config")
    if spec is None:
        return None, 0
    if isinstance(spec, Unknown):
        return UNKNOWN, UNKNOWN
    return _typed(_read(spec, "method"), str), _typed(_read(spec, "num_speculative_tokens"), int)


def _load_can_fail(config: Any) -> Known[bool]:
    """A failed load is recomputed, and the count rewound, under one policy only; the other ends the request."""
    transfer = _read(config, "kv_transfer_config")
    if transfer is None:
        return False
    connector = _read(transfer, "kv_connector")
    if connector is None:
        return False
    policy = _read(transfer, "kv_load_failure_policy")
    return {"fail": False, "recompute": True}.get(policy, UNKNOWN) if isinstance(policy, str) else UNKNOWN


def _adaptive(runner: Any) -> bool:
    """Whether the runner holds a manager for it; a runner without the attribute is older than the feature."""
    return getattr(runner, "adaptive_verification", None) is not None


def runner_facts(vllm_config: Any, config: Config, runner: Any = None) -> RunnerFacts:
    """Facts of a runner from vLLM's configuration, and from the `runner` itself once it exists.

    Without a runner its rank counts as 0 and one token a step is assumed: enough to refuse or decline at start, and
    read again before the first step.
    """
    method, steps = _speculation(vllm_config)
    parallel = _read(vllm_config, "parallel_config")
    pooling = _read(vllm_config, "model_config", "runner_type")
    size = _typed(_read(parallel, "pipeline_parallel_size"), int)
    if runner is not None:
        tokens = _typed(_read(runner, "model_state", "num_new_sampled_tokens_per_step"), int)
        rank = _pp_rank(runner, size)
    else:
        tokens, rank = 1, 0
    return RunnerFacts(
        speculative_method=method,
        num_speculative_steps=steps,
        async_scheduling=_typed(_read(vllm_config, "scheduler_config", "async_scheduling"), bool),
        tokens_per_step=tokens,
        diffusion=_typed(_read(vllm_config, "model_config", "is_diffusion"), bool),
        pp_size=size,
        pp_rank=rank,
        dcp_size=_typed(_read(parallel, "decode_context_parallel_size"), int),
        pcp_size=_typed(_read(parallel, "prefill_context_parallel_size"), int),
        dynamic_eplb=_dynamic_eplb(vllm_config, runner),
        pooling=UNKNOWN if isinstance(pooling, Unknown) else pooling != "generate",
        kv_load_can_fail=_load_can_fail(vllm_config),
        adaptive_verification=_adaptive(runner),
        speculative_sync=config.speculative_sync,
    )


def _dynamic_eplb(vllm_config: Any, runner: Any) -> Known[bool]:
    """vLLM's own switch, or vllm-ascend's: as it parsed it once there is a runner, before that as it was given."""
    core = _typed(_read(vllm_config, "parallel_config", "enable_eplb"), bool)
    if core is not False:
        return core
    if runner is not None:
        from vllm_ascend.ascend_config import get_ascend_config

        eplb = _read(get_ascend_config(), "eplb_config")
        parsed = _read(eplb, "config")  # a dict in a holder, or fields
        return _typed(parsed.get("dynamic_eplb") if isinstance(parsed, dict) else _read(eplb, "dynamic_eplb"), bool)
    additional = _read(vllm_config, "additional_config")
    if not isinstance(additional, dict):
        return False if additional is None else UNKNOWN
    raw = additional.get("eplb_config")
    if raw is None:
        return False
    return _typed(raw.get("dynamic_eplb", False), bool) if isinstance(raw, dict) else UNKNOWN


def _pp_rank(runner: Any, size: Known[int]) -> Known[int]:
    """This rank's place in the pipeline, from vLLM's group; the runner itself knows only whether it is the last."""
    if size == 1:
        return 0
    from vllm.distributed.parallel_state import get_pp_group

    rank: Known[int] = _typed(get_pp_group().rank_in_group, int)
    last = _read(runner, "is_last_pp_rank")
    if not isinstance(last, bool) or isinstance(rank, Unknown) or isinstance(size, Unknown):
        return UNKNOWN
    return rank if last is (rank == size - 1) else UNKNOWN


def step_facts(scheduler_output: Any, counts_continuous: bool) -> StepFacts:
    """Facts of one step from the scheduler's output."""
    drafts = _read(scheduler_output, "scheduled_spec_decode_tokens")
    return StepFacts(
        num_draft_tokens=len(drafts) if isinstance(drafts, dict) else UNKNOWN,
        structured_output=_typed(_read(scheduler_output, "has_structured_output_requests"), bool),
        counts_continuous=counts_continuous,
    )
