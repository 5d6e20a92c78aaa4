"""Compound decisions: preregistered gates beside the primary claim, and the mechanism beside both.

The gates are a conjunction (every one must hold), so they need no correction for their number. The mechanism verdict
is read from exact counters; neither verdict is derived from the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .protocol import CounterRule
    from .verdict import Verdict

Choice = Literal["ADOPT", "OPT-IN", "REJECT", "NONE"]
MechanismStatus = Literal["SHOWN", "NOT_SHOWN", "NOT_MEASURED"]


@dataclass(frozen=True)
class Gated:
    """The decision, why, and on how many of the pairs the primary metric was better."""

    choice: Choice
    reason: str
    positive_pairs: int
    pairs: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        return asdict(self)


@dataclass(frozen=True)
class MechanismVerdict:
    """Whether every counter was exactly as expected in every start of its arm, with the first that was not."""

    status: MechanismStatus
    reason: str
    starts: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for canonical JSON."""
        return asdict(self)


def gate(primary: Verdict, gates: Sequence[Verdict]) -> Gated:
    """ADOPT, OPT-IN or REJECT from the primary claim and its gates; NONE when the run is INVALID.

    ADOPT    primary and every gate REPRODUCED
    OPT-IN   nothing decided against it: primary REPRODUCED with a gate that is not, or all still open
    REJECT   primary NOT_REPRODUCED, or a gate NOT_REPRODUCED while the primary is not shown either
    """

    def result(choice: Choice, reason: str) -> Gated:
        return Gated(choice, reason, primary.positive_pairs, primary.pairs)

    invalid = [v for v in (primary, *gates) if v.status == "INVALID"]
    if invalid:
        return result("NONE", f"the run is invalid: {invalid[0].reasons[0]}")
    broken = [v for v in gates if v.status == "NOT_REPRODUCED"]
    open_gates = [v for v in gates if v.status == "INCONCLUSIVE"]
    if primary.status == "NOT_REPRODUCED":
        return result("REJECT", f"the primary claim on {primary.metric} is not reproduced")
    if primary.status == "INCONCLUSIVE":
        if broken:
            return result("REJECT", f"no gain is shown and the gate on {broken[0].metric} fails")
        return result("OPT-IN", f"the primary claim on {primary.metric} is still open: off by default")
    if broken:
        return result("OPT-IN", f"the gain is reproduced but the gate on {broken[0].metric} fails")
    if open_gates:
        return result("OPT-IN", f"the gain is reproduced but the gate on {open_gates[0].metric} is still open")
    return result("ADOPT", "the primary claim and every gate are reproduced")


def mechanism(rules: Sequence[CounterRule], counters: Sequence[tuple[str, Mapping[str, float]]]) -> MechanismVerdict:
    """Exact comparison of each start's (arm, counters) with the rules; order and time do not enter."""
    if not rules:
        return MechanismVerdict("NOT_MEASURED", "no counter was declared", 0)
    if {arm for arm, found in counters if found} != {"A", "B"}:
        return MechanismVerdict("NOT_MEASURED", "counters are missing for at least one arm", len(counters))
    for index, (arm, found) in enumerate(counters):
        for rule in rules:
            expected = rule.A if arm == "A" else rule.B
            if rule.counter not in found:
                return MechanismVerdict(
                    "NOT_MEASURED", f"start {index} of arm {arm} has no counter {rule.counter!r}", len(counters)
                )
            if found[rule.counter] != expected:
                return MechanismVerdict(
                    "NOT_SHOWN",
                    f"start {index} of arm {arm}: {rule.counter} is {found[rule.counter]!r}, expected {expected!r}",
                    len(counters),
                )
    return MechanismVerdict("SHOWN", f"{len(rules)} counters exact in {len(counters)} starts", len(counters))
