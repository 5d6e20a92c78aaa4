"""A sanitizer for KV address plans."""

from kv_plan_guard.config import Config
from kv_plan_guard.errors import (
    ConfigError,
    FactsError,
    GuardError,
    LayoutError,
    PlanError,
    ReplayError,
    UnsupportedError,
)
from kv_plan_guard.facts import (
    CachedRequests,
    ConnectorFacts,
    NewRequest,
    OutputFacts,
    PlanFacts,
    StepFacts,
    Transfer,
)
from kv_plan_guard.guard import Guard
from kv_plan_guard.layout import GroupLayout, Layout
from kv_plan_guard.violation import MEANING, Audit, Code, Coverage, Violation

__version__ = "0.1.0"
__all__ = [
    "MEANING",
    "Audit",
    "CachedRequests",
    "Code",
    "Config",
    "ConfigError",
    "ConnectorFacts",
    "Coverage",
    "FactsError",
    "GroupLayout",
    "Guard",
    "GuardError",
    "Layout",
    "LayoutError",
    "NewRequest",
    "OutputFacts",
    "PlanError",
    "PlanFacts",
    "ReplayError",
    "StepFacts",
    "Transfer",
    "UnsupportedError",
    "Violation",
    "__version__",
]
