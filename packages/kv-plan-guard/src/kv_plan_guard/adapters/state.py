"""The guard of one runner: what it takes in a step, and how a step's records are settled once its output has landed.

A step leaves one record: the scheduler's decision, the packed plan, and later the output that carries its copy. The
mirror has one clock, so records are settled strictly in step order, each whole: observe, audit every group, settle.
Under synchronous scheduling that happens in the step itself, under asynchronous in the thread that reads outputs.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard.adapters.connectors import ConnectorReader
from kv_plan_guard.adapters.gate import Riding, take_down_worker
from kv_plan_guard.adapters.layout import layout_of
from kv_plan_guard.adapters.plan import PlanReader, Taken
from kv_plan_guard.adapters.ranks import rank_of
from kv_plan_guard.adapters.scheduler import SchedulerReader
from kv_plan_guard.adapters.snapshot import Pool, Snapshot, new_event
from kv_plan_guard.errors import GuardError, PlanError
from kv_plan_guard.facts import OutputFacts, StepFacts
from kv_plan_guard.guard import Guard

if TYPE_CHECKING:
    from kv_plan_guard.config import Config

logger = logging.getLogger(__name__)
ATTRIBUTE: Final = "_kv_plan_guard"
# Outputs that nobody reads must not pile up their snapshots.
MAX_OPEN: Final = 16
PUSH_S: Final = 2.0


@dataclass(slots=True, eq=False)
class Record:
    """One step on its way. `event` covers its copies; None while the step has none or has not issued it."""

    facts: StepFacts
    taken: Taken | None = None
    snapshot: Snapshot | None = None
    output: Any = None
    event: Any = None
    closed: bool = False  # nothing more will come: no plan, or everything has landed


class RunnerGuard:
    """Guards one runner after its caches exist; every method but `read_output` and `poll` is the step thread's."""

    def __init__(self, runner: Any, config: Config, pair: str, pin: bool) -> None:
        self.config = config
        self.rank = rank_of(runner)
        self.layout = layout_of(runner, pair, self.rank.text)
        self.guard = Guard(config, self.layout)
        self.plans = PlanReader(runner, self.layout)
        self.scheduler = SchedulerReader(bool(runner.is_encoder_decoder))
        self.connector = ConnectorReader(self.layout.connector, self.layout.groups)
        self.pool = Pool(runner.device, pin)
        self.device = runner.device
        self.open: Record | None = None
        self.step = -1
        self.snapshots = self.snapshot_bytes = self.rides = self.main_copies = 0
        self.broken: str | None = None
        self._records: deque[Record] = deque()
        self._lock = threading.RLock()
        self._watch: threading.Thread | None = None
        self._finished = False
        self._pushed_at = monotonic()

    # -- the step -----------------------------------------------------------------------------------------------------
    def begin(self, scheduler_output: Any) -> None:
        """A real step begins; raises what latched before anything of it runs."""
        if not self.rank.is_read or len(self._records) > MAX_OPEN:
            self.poll()
        self.gate()
        self.step += 1
        with self._lock:
            connector = self.connector.facts(self.step, scheduler_output)
            record = Record(self.scheduler.facts(self.step, scheduler_output, connector))
            record.closed = not scheduler_output.total_num_scheduled_tokens
            self._records.append(record)
            self.open = None if record.closed else record
            self._settle_closed()
        if record.closed:
            self.gate()

    def plan(self, batch: Any, metadata: Any, block_tables: Any, slot_mappings: Any) -> None:
        """The final attention metadata of the step exists, and the forward has not begun: pack it."""
        record = self.open
        if record is None or not metadata or not self.guard.wants(record.facts.step):
            return
        record.taken = self.plans.take(batch, metadata, block_tables, slot_mappings)
        record.snapshot = self.pool.pack(record.taken.tensors)
        self.snapshots += 1
        self.snapshot_bytes += record.snapshot.nbytes

    def end_forward(self) -> None:
        """The forward was queued. Where no output will carry the snapshot it crosses on the step's own stream."""
        record = self.open
        if record is None or self.rank.has_output:
            return
        self.open = None
        if record.snapshot is None:
            record.closed = True
        else:
            self._copy_on_main(record)
            record.event = new_event(self.device)
            record.event.record()
        self._start_watch()

    def _copy_on_main(self, record: Record) -> None:
        assert record.snapshot is not None
        record.snapshot.issue()
        self.main_copies += 1

    def fail(self, error: BaseException) -> None:
        """The step raised by itself: if its plan is at hand and bad, that is the better report, and is raised instead.

        The one place that waits for a copy, since the step is lost anyway.
        """
        record, self.open = self.open, None
        if record is None or isinstance(error, GuardError):
            return
        with self._lock:
            try:
                for older in self._records:
                    if older.event is not None:
                        older.event.synchronize()
                if record.snapshot is not None:
                    record.snapshot.issue(non_blocking=False)
            except Exception:  # the device may be lost with the step: nothing on its way can be read
                for lost in self._records:
                    lost.taken = lost.output = None
            for each in self._records:
                each.closed = True
            self._settle_closed()
        self.gate()

    # -- the output ---------------------------------------------------------------------------------------------------
    def carry(self, num_sampled_tokens: Any) -> tuple[Any, Record | None]:
        """What to hand to the output in the place of `num_sampled_tokens`, and the record that rides on its copy."""
        record, self.open = self.open, None
        if record is None or record.snapshot is None:
            return num_sampled_tokens, record
        return Riding(num_sampled_tokens, record.snapshot), record

    def carried(self, record: Record, output: Any) -> None:
        """The output has issued its copies and recorded its event."""
        if record.snapshot is not None:
            if not record.snapshot.issued:
                raise GuardError(
                    "the output did not copy num_sampled_tokens by .to(): the snapshot has no event that covers it"
                )
            self.rides += 1
        record.output, record.event = output, output.copy_event
        setattr(output, ATTRIBUTE, (self, record))
        if not self.rank.is_read:
            self._start_watch()

    def carry_on_main(self) -> Record | None:
        """For an output whose copies cannot be joined (pooling): cross on the step's stream, which its event covers."""
        record, self.open = self.open, None
        if record is not None and record.snapshot is not None:
            self._copy_on_main(record)
        return record

    def read_output(self, record: Record) -> None:
        """The output's event was waited for: settle everything up to it, and raise instead of letting tokens go."""
        with self._lock:
            if self.connector.known:
                self.connector.arrived(record.output.model_runner_output.kv_connector_output)
            for older in self._records:
                older.closed = True  # outputs are read in step order, and one stream carries their copies
                if older is record:
                    break
            self._settle_closed()
        self.gate()

    # -- ranks that nobody reads --------------------------------------------------------------------------------------
    def poll(self) -> None:
        """Settle what has landed by itself, without waiting."""
        with self._lock:
            for record in self._records:
                if not record.closed:
                    if record.event is None or not record.event.query():
                        break
                    record.closed = True
            self._settle_closed()
        if not self.rank.is_read:
            self.gate()

    def _start_watch(self) -> None:
        """A rank that nobody reads looks after its last step itself: no further step may come to do it."""
        if self._watch is None or not self._watch.is_alive():
            self._watch = threading.Thread(target=self._watching, name="kv-plan-guard", daemon=True)
            self._watch.start()

    def _watching(self) -> None:
        import time

        while self._records:
            time.sleep(0.05)
            self.poll()

    # -- the end ------------------------------------------------------------------------------------------------------
    def figures(self) -> dict[str, int]:
        """What the guard cost in copies: snapshots taken, their bytes, and how each crossed."""
        return {
            "snapshots": self.snapshots,
            "snapshot_bytes": self.snapshot_bytes,
            "rides": self.rides,
            "main_copies": self.main_copies,
            "pinned_allocations": self.pool.allocated,
            "peak_bytes": self.pool.peak_bytes,
        }

    def finish(self) -> None:
        """Write the counters and log what was covered, once."""
        if not self._finished and self.step >= 0:
            self._finished = True
            notes = "".join(f"\nnote: {note}" for note in self.plans.notes)
            logger.info("kv-plan-guard at exit (%s)\n%s%s", self.rank.text, self.guard.finish(), notes)

    # -- settling -----------------------------------------------------------------------------------------------------
    def gate(self) -> None:
        """Raise PlanError once anything bad was found under `raise`; on a rank that nobody reads, end the worker."""
        try:
            self.guard.gate()
        except PlanError as error:
            if self.rank.is_read:
                raise
            take_down_worker(str(error))

    def _settle_closed(self) -> None:
        while self._records and self._records[0].closed:
            record = self._records.popleft()
            try:
                if self.broken is None:
                    self._settle(record)
            except GuardError as error:
                self._break(error)
            except Exception as error:
                self._break(GuardError(f"the guard itself failed in step {record.facts.step}: {error!r}"), error)
            finally:
                if record.snapshot is not None:
                    record.snapshot.release()

    def _settle(self, record: Record) -> None:
        facts = record.facts
        self.guard.observe(facts)
        self._push_counters()
        if record.taken is not None and record.snapshot is not None:
            for plan in self.plans.plans(facts.step, record.taken, record.snapshot.read()):
                self.guard.audit(plan)
        sampled = getattr(record.output, "num_sampled_tokens_np", None)
        if sampled is not None:
            req_ids = record.output.model_runner_output.req_ids
            counts = sampled.tolist()
            drafts = facts.spec_tokens
            rejected = [
                len(drafts.get(req_id, ())) - (count - 1) if count else 0
                for req_id, count in zip(req_ids, counts, strict=True)
            ]
            self.guard.settle(OutputFacts(facts.step, req_ids, counts, rejected if drafts else None))

    def _push_counters(self) -> None:
        """Let a scrape see the counters: every so many steps, and under little traffic after a while."""
        stats, now = self.guard.stats, monotonic()
        if now - self._pushed_at >= PUSH_S:
            self._pushed_at = now
            stats.write()
        else:
            stats.tick()

    def _break(self, error: GuardError, cause: BaseException | None = None) -> None:
        """The guard itself cannot go on. Under `raise` the engine must not; under `log` it does, and says so."""
        if isinstance(error, PlanError) or self.config.action == "raise":
            raise error from cause
        self.broken = str(error)
        logger.critical("kv-plan-guard checks nothing from here on: %s", error, exc_info=cause)
