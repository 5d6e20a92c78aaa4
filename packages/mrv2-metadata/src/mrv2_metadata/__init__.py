"""Runner hook for vllm-ascend's Model Runner V2: decode that waits for nothing it need not wait for."""

from mrv2_metadata.authority import (
    UNKNOWN,
    Action,
    Decision,
    Exactness,
    RunnerFacts,
    Source,
    StepFacts,
    decide,
    decide_runner,
)
from mrv2_metadata.config import Config
from mrv2_metadata.errors import ConfigError, DriftError, MetadataError, UnsupportedError

__version__ = "0.1.0"
__all__ = [
    "UNKNOWN",
    "Action",
    "Config",
    "ConfigError",
    "Decision",
    "DriftError",
    "Exactness",
    "MetadataError",
    "RunnerFacts",
    "Source",
    "StepFacts",
    "UnsupportedError",
    "__version__",
    "decide",
    "decide_runner",
]
