"""A collector of findings: of one fault that shows in many places the first is kept, with the count."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kv_plan_guard.violation import Code, Violation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kv_plan_guard.facts import PlanFacts
    from kv_plan_guard.violation import Value


class Findings:
    """Violations of one plan, in the order in which they were found; one for each (code, part, request)."""

    def __init__(self, plan: PlanFacts) -> None:
        self.plan = plan
        self._found: dict[tuple[Code, str, str | None], Violation] = {}

    def add(
        self,
        code: Code,
        what: str,
        expected: Value,
        actual: Value,
        *,
        row: int | None = None,
        why: str = "",
        batch_wide: bool = False,
        **where: Any,
    ) -> None:
        """One finding; `batch_wide` ones name no group."""
        request = None
        if row is not None and row < len(self.plan.req_ids):
            request = self.plan.req_ids[row]
        key = (code, what, request)
        if key in self._found:
            old = self._found[key]
            self._found[key] = replace(old, count=old.count + int(where.get("count", 1)))
            return
        group = None if batch_wide else self.plan.group
        self._found[key] = Violation(
            code, self.plan.step, group, what, expected, actual, request=request, row=row, why=why, **where
        )

    def compare(
        self, code: Code, what: str, expected: NDArray[Any], actual: NDArray[Any], why: str, *, batch_wide: bool = False
    ) -> bool:
        """One finding for each row in which two arrays by row differ; returns whether none does."""
        wrong = np.flatnonzero(expected != actual)
        for row in wrong.tolist():
            self.add(code, what, int(expected[row]), int(actual[row]), row=row, why=why, batch_wide=batch_wide)
        return not len(wrong)

    def violations(self) -> tuple[Violation, ...]:
        """What was found."""
        return tuple(self._found.values())
