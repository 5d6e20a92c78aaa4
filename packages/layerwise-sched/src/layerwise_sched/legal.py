"""Which orders are legal: the one place that says so.

The policies, the dispatcher, the simulator, the head-of-line finder and the checkers of the tests all ask here.
Two kinds of rule: *order* rules between two queued tasks, which time does not change (`order_rule`), and *readiness*,
which is asked again and again (`Readiness`). A task that passes others must be ready, not only unordered: the thread
serves one task at a time, and a passed head may be what the passing task's own gate waits for - a deadlock.
Taking the head is always legal: that is upstream's order, and upstream's handler waits for what is missing.
Source: vllm-ascend 0.27.1rc1 to 0.30.0rc2, read and run (docs/layerwise.md, "Legal orders").
"""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.model import DependencyKind, Task

HOLD = -1
"""What a policy answers to leave every task in the queue for now."""


class Rule(StrEnum):
    """Why one queued task may not run before another, or not yet."""

    SHUTDOWN = "shutdown"
    """`None` in the queue: upstream's sign of a shutdown. Nothing passes it and it passes nothing."""
    STEP = "step"
    """Tasks of different steps: events and leases are reused step by step."""
    FINAL_LAYER = "final_layer"
    """`final_layer_id` releases the leases of all layers and reports requests finished: it is last."""
    OWNER_CHAIN = "owner_chain"
    """Both layers live in one slot: the earlier owner is loaded, computed and saved first."""
    RANGE_GROUP = "range_group"
    """The range path keeps a load index per group, which is reset at layer 0 and at the group's last layer."""
    NOT_READY = "not_ready"
    """A dependency of the passing task is not met, or cannot be known to be."""
    INDEX = "index"
    """The answer names no queued task."""


class Readiness(Protocol):
    """Answers, without blocking and at the moment of asking, what a queued task still waits for."""

    def missing(self, task: Task) -> DependencyKind | None:
        """The first dependency that is not known to be met, in the handler's order; None: the task is ready.

        Once None it stays None until the task runs (events are cleared by their one consumer). SLOT_RELEASE is
        always missing while the waiter is installed: it cannot be asked.
        """
        ...


def order_rule(earlier: Task | None, later: Task | None) -> Rule | None:
    """Why `later` may not pass `earlier`, both queued in that order; None where it may."""
    return passing_rule((earlier, later), 1)


def passing_rule(queue: Sequence[Task | None], index: int) -> Rule | None:
    """Why the task at `index` may not pass those before it, readiness apart; None where the order allows it."""
    if not 0 <= index < len(queue):
        return Rule.INDEX
    later = queue[index]
    if later is None:
        return Rule.SHUTDOWN if index else None
    step, chain, source = later.step, later.chain, later.source
    final, key_major = later.final, later.key_major
    for earlier in islice(queue, index):
        if earlier is None:
            return Rule.SHUTDOWN
        if earlier.step != step:
            return Rule.STEP
        if final or earlier.final:
            return Rule.FINAL_LAYER
        if earlier.chain == chain or earlier.layer == source:
            return Rule.OWNER_CHAIN
        if (key_major or earlier.key_major) and not set(earlier.groups).isdisjoint(later.groups):
            return Rule.RANGE_GROUP
    return None


def selection_rule(queue: Sequence[Task | None], index: int, ready: Readiness) -> Rule | None:
    """Why `index` may not be run now; None where it may. The head may always be."""
    if (rule := passing_rule(queue, index)) is not None or index == 0:
        return rule
    task = queue[index]
    return Rule.NOT_READY if task is None or ready.missing(task) is not None else None
