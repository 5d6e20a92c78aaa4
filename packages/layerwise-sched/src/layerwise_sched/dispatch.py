"""Between a policy and the thread: every answer is checked, every fault means upstream's order, no hold is endless.

`Dispatcher.choose` never raises: an exception inside the receive thread's `get` would end that thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerwise_sched.errors import PolicyError
from layerwise_sched.legal import HOLD, selection_rule
from layerwise_sched.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task
    from layerwise_sched.policy import Policy

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What a dispatcher did, in numbers: `choose` calls, answers, and why upstream's order was taken instead."""

    calls: int = 0
    reordered: int = 0
    holds: int = 0
    hold_ran_out: int = 0
    faults: int = 0


class Dispatcher:
    """Asks one policy for one thread.

    max_hold_ns: how long the same head may be held; then index 0, so that upstream's handler polls for failures.
    on_fault: called once, with the reason, when the policy raised or broke a rule; from then on `broken` is true and
        every answer is 0 until `use` puts another policy in.
    """

    def __init__(
        self,
        policy: Policy,
        ready: Readiness,
        max_hold_ns: int = 1_000_000_000,
        on_fault: Callable[[PolicyError], object] | None = None,
        now: Callable[[], int] = clock,
    ) -> None:
        self.counts = Counts()
        self.policy = policy
        self.broken: PolicyError | None = None
        self.ready = ready
        self._max_hold_ns = max_hold_ns
        self._on_fault = on_fault
        self._now = now
        self._held: int | None = None
        self._held_since = 0

    @property
    def reorders(self) -> bool:
        """Whether `choose` can answer anything but 0."""
        return self.broken is None and self.policy.reorders

    @property
    def held_until(self) -> int | None:
        """When the present hold runs out (ns of its clock); None where nothing is held."""
        return None if self._held is None else self._held_since + self._max_hold_ns

    def use(self, policy: Policy) -> None:
        """Put another policy in force, from the next `choose` on; also the way back after a fault."""
        self.policy = policy
        self.broken = None
        self._held = None

    def choose(self, queue: Sequence[Task | None]) -> int:
        """Index of the task to run, or HOLD. `queue` must not be empty. Never raises; called with the queue locked."""
        counts = self.counts
        counts.calls += 1
        if not self.reorders:
            return 0
        try:
            index = self.policy.select(queue, self.ready)
            if index == 0:
                self._held = None
                return 0
            if index == HOLD:
                return self._hold(queue[0])
            if (rule := selection_rule(queue, index, self.ready)) is not None:
                raise PolicyError(f"answered {index!r}, which rule {rule.value!r} forbids")
        except Exception as error:
            self._fault(error)
            return 0
        counts.reordered += 1
        return index

    def _hold(self, head: Task | None) -> int:
        if head is None:
            return 0
        now = self._now()
        if self._held != head.cid:
            self._held, self._held_since = head.cid, now
        if now - self._held_since >= self._max_hold_ns:
            self._held = None
            self.counts.hold_ran_out += 1
            return 0
        self.counts.holds += 1
        return HOLD

    def _fault(self, error: Exception) -> None:
        self.counts.faults += 1
        self._held = None
        self.broken = PolicyError(f"policy {self.policy.name!r}: {error!r}; upstream's order from here on")
        self.broken.__cause__ = error
        try:
            logger.error("%s", self.broken)
            if self._on_fault is not None:
                self._on_fault(self.broken)
        except Exception:
            logger.exception("the report of a policy's fault failed")
