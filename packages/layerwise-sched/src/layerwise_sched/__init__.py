"""Timeline, head-of-line evidence and policies for layer-wise KV loads."""

from layerwise_sched.config import Config
from layerwise_sched.errors import (
    ConfigError,
    LayerwiseError,
    PolicyError,
    TimelineError,
    UnsupportedError,
    WorkloadError,
)
from layerwise_sched.legal import HOLD, Readiness, Rule
from layerwise_sched.model import DataPath, Dependency, DependencyKind, LayerPlan, Task
from layerwise_sched.policy import Policy, make_policy, policy_names

__version__ = "0.1.0"
__all__ = [
    "HOLD",
    "Config",
    "ConfigError",
    "DataPath",
    "Dependency",
    "DependencyKind",
    "LayerPlan",
    "LayerwiseError",
    "Policy",
    "PolicyError",
    "Readiness",
    "Rule",
    "Task",
    "TimelineError",
    "UnsupportedError",
    "WorkloadError",
    "__version__",
    "make_policy",
    "policy_names",
]
