"""The one thing that an installed package does while it is off, shared by every package that has a key.

General plugins are loaded in every process before any config exists, so a package cannot know yet whether it is wanted.
Its entry point calls `bootstrap`, which does two things and nothing else, each when the module concerned is imported:

- vllm-ascend's config class refuses foreign keys in the additional config: the registered keys, and no others, are
  kept from it. `vllm_config.additional_config` itself stays as the user gave it.
- a gate before `WorkerWrapperBase.init_device` (the config is there, the runner is not yet) looks for each registered
  key and calls its package. Without a key nothing more is wrapped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm_pairs.adapters import after_import
from vllm_pairs.adapters.ascend_config import CONFIG_TARGET, complete, config_hook
from vllm_pairs.adapters.worker import GATE_TARGET, gate_hook
from vllm_pairs.errors import ConfigError, HookRefused
from vllm_pairs.hooks import install
from vllm_pairs.settings import from_environment, object_setting
from vllm_pairs.targets import TargetProblem, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm_pairs.hooks import Hook

    OnWorker = Callable[[dict[str, Any], Any], object]

logger = logging.getLogger(__name__)
# vLLM shows what loggers below its own say: the one line by which a served engine's log tells that a plugin is on.
served_logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True)
class _Entry:
    key: str
    env_var: str
    on_worker: OnWorker

    def config(self, vllm_config: Any) -> dict[str, Any] | None:
        """The package's config in this engine, or None when it is not asked for."""
        additional = getattr(vllm_config, "additional_config", None)
        by_key = additional.get(self.key) if isinstance(additional, Mapping) else None
        by_env = from_environment(self.env_var)
        if by_key is not None:
            by_key = object_setting(by_key, f"additional config key {self.key!r}")
        if by_key is not None and by_env is not None and by_key != by_env:
            raise ConfigError(
                f"additional config key {self.key!r} is {by_key!r} and environment variable {self.env_var} is "
                f"{by_env!r}; give one of them, or the same in both"
            )
        return by_key if by_key is not None else by_env


class Bootstrap:
    """The registered keys and the two hooks. One object serves a process; tests make their own."""

    def __init__(self, gate_target: str = GATE_TARGET, config_target: str = CONFIG_TARGET) -> None:
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()
        self._started = False
        self._refused: HookRefused | None = None
        self.gate = gate_hook(self._on_init_device, gate_target)
        self.config = config_hook(self._own_keys, config_target)

    @property
    def keys(self) -> frozenset[str]:
        """The keys that pass vllm-ascend's config class."""
        return frozenset(self._entries)

    def register(self, key: str, env_var: str, on_worker: OnWorker) -> None:
        """Add one package's key; the same registration again changes nothing. See `bootstrap`."""
        entry = _Entry(key, env_var, on_worker)
        from_environment(env_var)  # an unreadable variable stops the first process, not a worker much later
        with self._lock:
            known = self._entries.get(key)
            if known is not None and known != entry:
                raise ConfigError(f"additional config key {key!r} is registered already by {known.on_worker!r}")
            self._entries[key] = entry
            if self._started:
                return
            self._started = True
        after_import(self.gate.target, lambda: self._install(self.gate))
        after_import(self.config.target, self._install_config)

    def _install(self, hook: Hook) -> None:
        """Put one of the two hooks in. Nobody may have asked for anything yet, so a refusal alone stops no engine."""
        try:
            install([hook])
        except HookRefused as refused:
            self._refused = refused
            if asked := [entry.env_var for entry in self._entries.values() if os.environ.get(entry.env_var)]:
                logger.error("%s is set, and cannot be followed", ", ".join(asked))
                raise
            logger.warning("keys %s of the additional config cannot work here: %s", sorted(self._entries), refused)

    def _install_config(self) -> None:
        with contextlib.suppress(TargetProblem):  # a missing class is `install`'s to refuse
            complete(resolve(self.config.target).holder)
        self._install(self.config)

    def _own_keys(self, given: frozenset[str]) -> frozenset[str]:
        """Which of the given keys are ours; with our gate refused a key that was given is an error, not a no-op."""
        ours = given & self.keys
        if ours and self._refused is not None:
            raise self._refused
        return ours

    def _on_init_device(self, vllm_config: Any) -> None:
        for entry in tuple(self._entries.values()):
            if (config := entry.config(vllm_config)) is not None:
                served_logger.info("%s: on in this worker (pid %d)", entry.key, os.getpid())
                entry.on_worker(config, vllm_config)


_shared = Bootstrap()


def bootstrap(key: str, env_var: str, on_worker: OnWorker) -> None:
    """Register a package: what its `vllm.general_plugins` entry point calls, in every process, any number of times.

    `key` is its key in vLLM's additional config, `env_var` the environment variable that may hold the same JSON object
    (its name should begin with VLLM_, so that it reaches every process). `on_worker(config, vllm_config)` is called in
    each worker process whose engine has either, before the worker's device and runner exist; what it raises ends the
    worker's start. Raises ConfigError for JSON that cannot be read, and for a key that another package registered.
    """
    _shared.register(key, env_var, on_worker)
