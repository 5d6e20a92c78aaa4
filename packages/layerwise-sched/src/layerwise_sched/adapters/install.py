"""Put the hooks in for one engine, all or none, or say why not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vllm_pairs import Hook, HookRefused, current_pair, install, reliance
from vllm_pairs.settings import from_environment, object_setting

from layerwise_sched.adapters.contracts import GVA_RECEIVER, KEY_RECEIVER, OPTIONAL, RELIED_ON, WORKER, WRAPPED
from layerwise_sched.adapters.hooks import Hooks
from layerwise_sched.config import ENV, KEY, Config, parse
from layerwise_sched.errors import UnsupportedError

if TYPE_CHECKING:
    from vllm_pairs import Pair

logger = logging.getLogger(__name__)
PACKAGE = "layerwise-sched"
_hooks: Hooks | None = None


def config_of(vllm_config: Any) -> Config | None:
    """The package's configuration in an engine: its key, else the environment; None where neither is there."""
    additional = getattr(vllm_config, "additional_config", None)
    value = additional.get(KEY) if isinstance(additional, Mapping) else None
    value = object_setting(value, f"additional config key {KEY!r}") if value is not None else from_environment(ENV)
    return None if value is None else parse(value)


def _connectors(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A connector's extra config and, for a connector of connectors, those of its parts."""
    yield config
    for part in config.get("connectors") or ():
        if isinstance(part, Mapping):
            yield from _connectors(part.get("kv_connector_extra_config") or {})


def _not_layerwise(vllm_config: Any) -> str | None:
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    if transfer is None:
        return "this engine has no KV connector (--kv-transfer-config)"
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    if not any(config.get("use_layerwise") for config in _connectors(extra)):
        return "this engine's KV connector is not layer-wise (kv_connector_extra_config.use_layerwise)"
    return None


def hooks_of(shared: Hooks, pairs: tuple[str, ...] = ()) -> list[Hook]:
    """The hooks; those that run once a layer are closures."""
    wrappers: dict[str, tuple[Any, bool]] = {
        f"{WORKER}.__init__": (shared.worker_init, False),
        f"{WORKER}._start_kv_transfer_threads": (shared.start_threads, False),
        f"{WORKER}.process_layer_data": (shared.prepare, False),
        f"{WORKER}.wait_for_layer_load": (shared.wait_for_layer_load, True),
        f"{WORKER}.save_kv_layer": (shared.save_kv_layer, True),
        f"{WORKER}.set_external_slot_release_waiter": (shared.set_slot_waiter, False),
        f"{GVA_RECEIVER}.__init__": (shared.receiver_init, False),
        f"{KEY_RECEIVER}.__init__": (shared.receiver_init, False),
    }
    return [
        Hook(
            name=f"layerwise_sched.{target.rpartition(':')[2]}",
            target=target,
            wrapper=wrapper,
            ast_sha256=WRAPPED[target],
            pairs=pairs,
            hot=hot,
        )
        for target, (wrapper, hot) in wrappers.items()
    ]


def changed_reliance() -> str | None:
    """The first function that a hook depends on, wraps nothing of, and that is not as it was read; None: all are."""
    return reliance.changed_reliance(RELIED_ON, OPTIONAL)


def _unverified(pair: Pair) -> str | None:
    return reliance.unverified(pair, PACKAGE)


def _why_not(pair: Pair) -> str | None:
    if (unverified := _unverified(pair)) is not None:
        return unverified
    changed = changed_reliance()
    return f"what the hooks rely on has changed in {changed}" if changed is not None else None


def put_in() -> Hooks:
    """Install the hooks in this process, once. Raises HookRefused; then nothing is in."""
    global _hooks
    pair = current_pair()
    shared = _hooks if _hooks is not None else Hooks(config_of, {"pair": pair.id})
    install(hooks_of(shared, reliance.verified_with(PACKAGE)))
    _hooks = shared
    return shared


def enable(config: Config, vllm_config: Any) -> bool:
    """Put the hooks in for the engine of `vllm_config`; True when they are in.

    Where they cannot be: UnsupportedError under `strict`, else one warning, and upstream's own path is left untouched.
    """
    why = _not_layerwise(vllm_config) or _why_not(current_pair())
    if why is None:
        try:
            put_in()
        except HookRefused as refused:
            why = str(refused)
        else:
            return True
    text = f"layerwise-sched is not in place: {why}"
    if config.strict:
        raise UnsupportedError(f"{text}. Remove `strict`, or what it names.")
    logger.warning("%s. Upstream's own path runs.", text)
    return False
