"""The guard: what the adapters and the replay talk to."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard import report
from kv_plan_guard.clean import clean_batch, clean_extra, clean_group
from kv_plan_guard.coverage import coverage
from kv_plan_guard.diagnose import diagnose
from kv_plan_guard.errors import FactsError, PlanError
from kv_plan_guard.expect import Expectation
from kv_plan_guard.journal import Journal
from kv_plan_guard.mirror import Mirror
from kv_plan_guard.stats import Stats
from kv_plan_guard.transfers import Transfers
from kv_plan_guard.violation import Audit, Code, Violation

if TYPE_CHECKING:
    from kv_plan_guard.config import Config
    from kv_plan_guard.facts import OutputFacts, PlanFacts, StepFacts
    from kv_plan_guard.layout import Layout
    from kv_plan_guard.violation import Coverage

LOG = logging.getLogger("kv_plan_guard")
#: Distinct signatures that are remembered; later ones are counted together, so that memory stays bounded.
MAX_SIGNATURES: Final = 1024
_CLEAN: Final[tuple[Violation, ...]] = ()


class Guard:
    """A mirror of one engine's requests and blocks, and the audits against it. Not thread safe: one per worker.

    Order of calls, in step order; a deferred audit defers the `observe` of its step with it, since the mirror has one
    clock: `observe(N)`, `audit(N, group)` for each group, `settle(N)` when the step's output is known, `observe(N+1)`.
    A `settle(N)` may come later, under asynchronous scheduling after `observe(N+1)` but before `audit(N+1)` of a step
    whose positions depend on it.
    """

    def __init__(self, config: Config, layout: Layout, *, without: frozenset[Code] = frozenset()) -> None:
        """`without` switches checks off and is for mutation tests only: no configuration key reaches it."""
        self.config = config
        self.layout = layout
        self.stats = Stats(config.stats_dir)
        self.mirror = Mirror(layout)
        self.transfers = Transfers(layout, self.mirror)
        self._expect = Expectation(self.mirror)
        self._journal = Journal(config, layout, self.mirror, self.transfers)
        self._without = without
        self._watches_transfers = bool(layout.connector_checks) or layout.tokens_per_write > 1
        self._parts: Counter[tuple[Any, ...]] = Counter()
        self._signatures: Counter[Any] = Counter()
        self._latched: PlanError | None = None
        self._kinds = [group.kind for group in layout.groups]

    # -- the expectation -------------------------------------------------------------------------------------------

    def observe(self, facts: StepFacts) -> Audit:
        """Take in one scheduler decision. Finds CYCLE, LIFETIME, CONN and the scheduler's part of LEN."""
        self._journal.observe(facts)
        found = self.mirror.observe(facts)
        if self._watches_transfers:
            found += self.transfers.observe(facts.connector)
        self.stats.steps += 1
        self.stats.tick()
        if not found:
            return Audit(facts.step, None)
        return self._judge(Audit(facts.step, None, tuple(found), rows=len(facts.num_scheduled_tokens)), None)

    def settle(self, facts: OutputFacts) -> None:
        """Take in how many tokens a step really produced; unknown steps and requests that left are passed over."""
        self._journal.settle(facts)
        self.mirror.settle(facts)
        self._expect.refresh()

    # -- the observation -------------------------------------------------------------------------------------------

    def wants(self, step: int) -> bool:
        """Whether plans of this step are to be audited (sampling); ask before a snapshot is taken."""
        return step % self.config.every == 0

    def audit(self, plan: PlanFacts) -> Audit:
        """Compare one group's plan with the expectation. Never raises for a bad plan: see `gate`."""
        mirror, record = self.mirror, self.mirror.current
        if record is None or record.step != plan.step:
            newest = None if record is None else record.step
            raise FactsError(f"PlanFacts.step {plan.step!r} is not the step observed last ({newest!r})")
        if not 0 <= plan.group < len(mirror.groups):
            raise FactsError(f"PlanFacts.group must be below {len(mirror.groups)}, got {plan.group!r}")
        self._note_parts(plan)
        stats = self.stats
        stats.audits += 1
        stats.rows += len(plan.req_ids)
        if not (plan.draft or plan.local or self.config.tail or self._kinds[plan.group] == "cross"):
            batch = self._expect.batch(plan.req_ids)
            if batch is not None and self._clean(plan, batch):
                stats.tokens += batch.num_tokens
                return Audit(plan.step, plan.group, _CLEAN, _CLEAN, len(plan.req_ids), batch.num_tokens)
        stats.slow_audits += 1
        found = diagnose(plan, mirror, self.layout, self.config.tail)
        notes = tuple(v for v in found if v.code is Code.TAIL)
        wrong = tuple(v for v in found if v.code is not Code.TAIL)
        tokens = sum(record.scheduled.tolist())
        stats.tokens += tokens
        return self._judge(Audit(plan.step, plan.group, wrong, notes, len(plan.req_ids), tokens), plan)

    def _clean(self, plan: PlanFacts, batch: Any) -> bool:
        mirror = self.mirror
        if batch.bounded:
            return False
        group = mirror.groups[plan.group]
        if not (clean_batch(plan, batch) and clean_extra(plan, batch, mirror)):
            return False
        return clean_group(plan, batch, self._expect.rows(batch, plan.group, group), group)

    def _note_parts(self, plan: PlanFacts) -> None:
        self._parts[
            plan.group,
            plan.query_start_loc is not None,
            plan.block_table is not None,
            plan.slot_mapping is not None,
            plan.seq_lens is not None,
            plan.seq_lens_host is not None,
            plan.positions is not None,
            plan.local_seq_lens is not None,
            plan.state_columns is not None,
            plan.state_blocks is not None,
            plan.num_accepted is not None,
            plan.slot_capacity is not None,
        ] += 1

    # -- findings --------------------------------------------------------------------------------------------------

    def _judge(self, audit: Audit, plan: PlanFacts | None) -> Audit:
        """Take out checks that a mutation test switched off; report, count, latch and write the replay file."""
        wrong = tuple(v for v in audit.violations if v.code not in self._without)
        audit = Audit(audit.step, audit.group, wrong, audit.notes, audit.rows, audit.tokens)
        if not wrong:
            return audit
        self.stats.bad_audits += 1
        fresh = []
        for violation in wrong:
            self.stats.violations[violation.code] += violation.count
            signature = violation.signature
            if signature not in self._signatures and len(self._signatures) >= MAX_SIGNATURES:
                signature = ("other", None, "", "")
            self._signatures[signature] += 1
            if self._signatures[signature] == 1:
                fresh.append(violation)
        if not fresh and self.config.action == "log":
            return audit
        path = self._journal.write(wrong, plan)
        text = self.report(wrong, plan, str(path) if path is not None else None)
        LOG.error("%s", text)
        if self.config.action == "raise" and self._latched is None:
            self._latched = PlanError(text, wrong)
        self.stats.write()
        return audit

    def report(
        self, violations: tuple[Violation, ...], plan: PlanFacts | None = None, replay_file: str | None = None
    ) -> str:
        """The report of findings as the configuration has it (text or JSON)."""
        context = report.Context(self, plan, replay_file)
        return (
            report.as_json(violations, context) if self.config.report == "json" else report.as_text(violations, context)
        )

    @property
    def latched(self) -> bool:
        """Whether a bad plan was found under `action: raise`."""
        return self._latched is not None

    def gate(self) -> None:
        """Raise PlanError if, under `action: raise`, anything bad was found in this or any earlier step (latched).

        To be called before tokens are released. Under `log` it never raises.
        """
        if self._latched is not None:
            self.stats.withheld += 1
            raise PlanError(str(self._latched), self._latched.violations)

    def signatures(self) -> dict[tuple[str, int | None, str, str], int]:
        """How often each distinct finding came."""
        return dict(self._signatures)

    # -- the run ---------------------------------------------------------------------------------------------------

    def coverage(self) -> tuple[Coverage, ...]:
        """Which checks were active in this run, how often each ran, and why the others were not."""
        return coverage(self.config, self.layout, self._parts, self.stats, self.mirror.speculates)

    def finish(self) -> str:
        """End of the run: write counters, and return the coverage table as text."""
        self.stats.write()
        return "\n".join([report.coverage_text(self.coverage(), self.stats), *self.layout.notes])

    def nbytes(self) -> int:
        """Bytes of the mirror's arrays."""
        mirror = self.mirror
        return mirror.nbytes() + sum(group.nbytes() for group in mirror.groups)
