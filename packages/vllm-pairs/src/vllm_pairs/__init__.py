"""Verified pairs of vLLM core and vllm-ascend plugin; checked hooks that go in and come out."""

from vllm_pairs.bootstrap import bootstrap
from vllm_pairs.errors import (
    ConfigError,
    ContractError,
    HookRefused,
    PairsError,
    PairTableError,
    UnknownPairError,
)
from vllm_pairs.hooks import Hook, Installed, install, installed_hooks
from vllm_pairs.pairs import Check, CpuSide, NpuSide, Pair, PairTable, current_pair, load_pairs

__version__ = "0.1.0"

__all__ = [
    "Check",
    "ConfigError",
    "ContractError",
    "CpuSide",
    "Hook",
    "HookRefused",
    "Installed",
    "NpuSide",
    "Pair",
    "PairTable",
    "PairTableError",
    "PairsError",
    "UnknownPairError",
    "bootstrap",
    "current_pair",
    "install",
    "installed_hooks",
    "load_pairs",
]
