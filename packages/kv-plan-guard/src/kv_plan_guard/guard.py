"""The guard: what the adapters and the replay talk to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kv_plan_guard.config import Config
    from kv_plan_guard.facts import OutputFacts, PlanFacts, StepFacts
    from kv_plan_guard.layout import Layout
    from kv_plan_guard.violation import Audit, Code, Coverage, Violation


class Guard:
    """A mirror of one engine's requests and blocks, and the audits against it. Not thread safe: one per worker.

    Order of calls, in step order; a deferred audit defers the `observe` of its step with it, since the mirror has one
    clock: `observe(N)`, `audit(N, group)` for each group, `settle(N)` when the step's output is known, `observe(N+1)`.
    A `settle(N)` may come later, under asynchronous scheduling after `observe(N+1)` but before `audit(N+1)` of a step
    whose positions depend on it.
    """

    def __init__(self, config: Config, layout: Layout, *, without: frozenset[Code] = frozenset()) -> None:
        """`without` switches checks off and is for mutation tests only: no configuration key reaches it."""
        raise NotImplementedError

    def observe(self, facts: StepFacts) -> Audit:
        """Take in one scheduler decision. Finds CYCLE, LIFETIME, CONN, ROW_OVERFLOW and the scheduler's part of LEN."""
        raise NotImplementedError

    def settle(self, facts: OutputFacts) -> None:
        """Take in how many tokens a step really produced."""
        raise NotImplementedError

    def wants(self, step: int) -> bool:
        """Whether plans of this step are to be audited (sampling); ask before a snapshot is taken."""
        raise NotImplementedError

    def audit(self, plan: PlanFacts) -> Audit:
        """Compare one group's plan with the expectation. Never raises for a bad plan: see `gate`."""
        raise NotImplementedError

    def gate(self) -> None:
        """Raise PlanError if, under `action: raise`, anything bad was found in this or any earlier step (latched).

        To be called before tokens are released. Under `log` it never raises.
        """
        raise NotImplementedError

    def coverage(self) -> tuple[Coverage, ...]:
        """Which checks were active in this run, how often each ran, and why the others were not."""
        raise NotImplementedError

    def report(self, violations: tuple[Violation, ...]) -> str:
        """The report of findings as the configuration has it (text or JSON)."""
        raise NotImplementedError

    def finish(self) -> str:
        """End of the run: write counters, and return the coverage table as text."""
        raise NotImplementedError
