"""Put the guard in for one engine, or refuse to start: a guard that silently checks nothing is worse than none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vllm_pairs import HookRefused, current_pair, install, reliance

from kv_plan_guard.adapters.contracts import RELIED_ON
from kv_plan_guard.adapters.hooks import Hooks
from kv_plan_guard.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm_pairs import Pair

    from kv_plan_guard.config import Config

PACKAGE: Final = "kv-plan-guard"
_hooks: Hooks | None = None


def installed() -> Hooks | None:
    """What the hooks of this process share, or None where no engine was ever guarded."""
    return _hooks


def _unverified(pair: Pair) -> str | None:
    return reliance.unverified(pair, PACKAGE)


def changed_reliance() -> str | None:
    """The first function that the hooks rely on and that is not as it was read; None: all are."""
    return reliance.changed_reliance(RELIED_ON)


def why_not(pair: Pair, vllm_config: Any) -> str | None:
    """Why an enabled guard must not start with this engine, or None."""
    if not getattr(vllm_config, "use_v2_model_runner", False):
        return (
            "this engine uses Model Runner V1, which has none of the boundaries the guard reads; "
            "set VLLM_USE_V2_MODEL_RUNNER=1 or remove kv_guard_config"
        )
    if (unverified := _unverified(pair)) is not None:
        return unverified
    changed = changed_reliance()
    return f"what the guard relies on has changed in {changed}" if changed is not None else None


def enable(config: Config, vllm_config: Any) -> None:
    """Put the hooks in for the engine of `vllm_config`; UnsupportedError ends the worker's start and says why."""
    global _hooks
    pair = current_pair()
    why = why_not(pair, vllm_config)
    if why is None:
        shared = _hooks if _hooks is not None else Hooks(pair.id, reliance.verified_with(PACKAGE))
        try:
            install(shared.hooks())
        except HookRefused as refused:
            why = str(refused)
        else:
            _hooks = shared
            shared.admit(vllm_config, config)
            return
    raise UnsupportedError(f"kv-plan-guard refuses to start: {why}")
