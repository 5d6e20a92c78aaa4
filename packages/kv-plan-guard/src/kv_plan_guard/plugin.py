"""The entry point of the plugin: registers the key, and does nothing else until an engine has it.

It stands in two groups of vLLM. `vllm.general_plugins` are loaded in every process, but a spawned engine core builds
vllm-ascend's config, which refuses foreign keys, before it loads them (source: vllm-ascend 0.30.0rc2,
`patch/platform/patch_engine_core.py`). `vllm.platform_plugins` are asked earlier, when vLLM looks for its platform;
None there means "no platform of mine".
"""

from __future__ import annotations

from typing import Any

from vllm_pairs import bootstrap

from kv_plan_guard.config import ENV, KEY, parse


def load() -> None:
    """Register the key in this process; safe to call any number of times."""
    bootstrap(KEY, ENV, on_worker)


def on_worker(value: dict[str, Any], vllm_config: Any) -> None:
    """A worker whose engine has the key is about to start: raises ConfigError, UnsupportedError or HookRefused."""
    config = parse(value)
    if config.enabled:
        from kv_plan_guard.adapters.install import enable

        enable(config, vllm_config)
