"""Room for our keys in vllm-ascend's config.

From 0.27.1 on `AscendConfig` is a pydantic dataclass with extra="forbid", built from the additional config as keyword
arguments; before that it took the whole vLLM config and ignored what it did not know. The function that builds it is
bound by name in other modules, so the class is the one place where a key can be kept from it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vllm_pairs.errors import ConfigError
from vllm_pairs.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIG_TARGET = "vllm_ascend.ascend_config:AscendConfig.__init__"


def complete(config_class: Any) -> None:
    """Finish a pydantic class now. Left to its first use, pydantic writes `__init__` anew and a hook on it is lost."""
    if getattr(config_class, "__pydantic_complete__", True):
        return
    # By name: pydantic is no dependency of this package, and is there wherever such a class is.
    importlib.import_module("pydantic.dataclasses").rebuild_dataclass(config_class, raise_errors=False)


def config_hook(own_keys: Callable[[frozenset[str]], frozenset[str]], target: str = CONFIG_TARGET) -> Hook:
    """The hook that leaves out the keyword arguments that `own_keys` claims; every other key is Ascend's to judge."""

    def without_our_keys(call: Callable[..., Any], config: Any, *args: Any, **kwargs: Any) -> Any:
        ours = own_keys(frozenset(kwargs))
        if taken := sorted(ours & frozenset(getattr(type(config), "__dataclass_fields__", ()))):
            raise ConfigError(f"additional config key {taken[0]!r} is a field of vllm-ascend's own config; rename ours")
        return call(config, *args, **{key: value for key, value in kwargs.items() if key not in ours})

    return Hook(name="vllm_pairs.ascend_config", target=target, wrapper=without_our_keys)
