"""The narrow protocol behind which a policy chooses, and the registry of policies.

A policy sees the queue and may ask what a task waits for; it touches no event, no lease and no thread. Whatever it
answers is checked against `layerwise_sched.legal` by the dispatcher, which falls back to upstream's order when a
policy raises or answers what no rule allows.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from layerwise_sched.errors import PolicyError
from layerwise_sched.legal import HOLD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task

__all__ = ["ENTRY_POINTS", "HOLD", "Policy", "make_policy", "policy_names"]

ENTRY_POINTS: Final = "layerwise_sched.policies"
"""Entry-point group: name of the policy -> callable that takes the options as keywords and returns a Policy."""


@runtime_checkable
class Policy(Protocol):
    """Chooses the next task of a receive thread. One instance serves one thread."""

    name: str
    """What the configuration and the reports call it."""
    reorders: bool
    """False: the queue's plain `get` is used and `select` is never called (upstream's order, to the byte)."""

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        """Index of the task to run now, or HOLD to look again a little later.

        queue: the queued tasks in the order of enqueueing, never empty; None is upstream's shutdown sign.
        Index 0 is always allowed. Called with the queue's lock held: it must not block, and should cost microseconds
        whatever the depth. An exception, or an answer that `legal.selection_rule` refuses, means index 0.
        """
        ...


def _builtin() -> Mapping[str, Callable[..., Policy]]:
    from layerwise_sched.policies.fifo import Fifo
    from layerwise_sched.policies.gate import GateGrouped
    from layerwise_sched.policies.ready import ReadyFirst

    return {"fifo": Fifo, "ready": ReadyFirst, "gate": GateGrouped}


def policy_names() -> tuple[str, ...]:
    """The built-in policies, then those of other distributions, sorted; one name means one policy."""
    others = sorted({point.name for point in metadata.entry_points(group=ENTRY_POINTS)} - set(_builtin()))
    return (*_builtin(), *others)


def make_policy(name: str, **options: Any) -> Policy:
    """A new instance of a policy by its name. Raises PolicyError for an unknown name or one that cannot be loaded.

    options: handed to the policy's constructor; the built-in ones know `lookahead` and `polls` (see `ReadyFirst`).
    """
    makers = _builtin()
    if name in makers:
        return makers[name](**options)
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name == name:
            try:
                policy = point.load()(**options)
            except Exception as error:
                raise PolicyError(f"policy {name!r} ({point.value}) cannot be made: {error!r}") from error
            if not isinstance(policy, Policy):
                raise PolicyError(f"policy {name!r} ({point.value}) has no name, reorders or select: {policy!r}")
            return policy
    raise PolicyError(f"there is no policy {name!r}; known: {', '.join(policy_names())}")
