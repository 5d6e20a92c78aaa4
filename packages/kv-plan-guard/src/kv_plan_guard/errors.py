"""The errors of this package: one base class, each leaf also a builtin so that callers may catch either."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kv_plan_guard.violation import Violation


class GuardError(Exception):
    """Base of every error this package raises."""


class ConfigError(GuardError, ValueError):
    """A value of the `kv_guard_config` key is not what it must be; names the field, the value and the fix."""


class LayoutError(GuardError, ValueError):
    """A KV cache group is declared with values that contradict each other; names the group, the field and the value."""


class FactsError(GuardError, ValueError):
    """Facts of a step or a plan that cannot be read at all (wrong shape, wrong order of calls): an adapter's fault."""


class UnsupportedError(GuardError, RuntimeError):
    """An engine that an enabled guard must refuse to start with: it would check nothing, or wrongly."""


class ReplayError(GuardError, ValueError):
    """A replay file that is not one of ours, is damaged, or asks for more than its bounds allow."""


class PlanError(GuardError, RuntimeError):
    """A bad plan under `action: raise`; the message is the whole text report, `violations` the findings."""

    def __init__(self, message: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__(message)
        self.violations = violations
