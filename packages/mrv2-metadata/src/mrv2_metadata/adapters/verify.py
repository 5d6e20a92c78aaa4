"""Compare host and device lengths of a step without waiting for anything.

The device lengths are cloned on the main stream inside the step, since the runner reuses their buffer, and the clone
rides on the step's own output copy: the output's `num_sampled_tokens` is handed over as an object whose `.to()` issues
the clone's copy too, on the stream and before the event that the output waits for anyway. A rank whose output nobody
reads is checked when a later step finds that event done; a rank without any output (non-last in a pipeline) issues the
clone's copy on the length stream and does the same.

A snapshot that is never compared is counted: `snapshots_taken` less `verified_steps` and `snapshots_dropped` are on
their way.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mrv2_metadata import drift
from mrv2_metadata.adapters.order import after_main
from mrv2_metadata.errors import DriftError

if TYPE_CHECKING:
    from mrv2_metadata.adapters.state import RunnerState

logger = logging.getLogger(__name__)
# An output that is never read must not hold its snapshot for ever; what is given up for it is counted.
MAX_PENDING = 64
EXIT_STATUS = 70  # EX_SOFTWARE: an internal error was found


@dataclass(slots=True)
class Pending:
    """A snapshot on its way: `device` is the clone, `landed` its host copy once issued, `event` covers that copy."""

    snapshot: drift.Snapshot
    device: Any
    landed: Any = None
    event: Any = None
    checked: bool = False


class Riding:
    """Stands for `num_sampled_tokens` while the output copies it; `.to()` issues one more copy behind it."""

    __slots__ = ("_pending", "_tensor")

    def __init__(self, tensor: Any, pending: Pending) -> None:
        self._tensor = tensor
        self._pending = pending

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The tensor's own copy, and the snapshot's by the same arguments."""
        copied = self._tensor.to(*args, **kwargs)
        self._pending.landed = self._pending.device.to(*args, **kwargs)
        return copied


class Verifier:
    """The snapshots of one runner that were not compared yet."""

    def __init__(self, state: RunnerState, runner: Any) -> None:
        self.state = state
        self.period = 1 if state.config.verify == "every" else state.config.verify_period
        self.pending: deque[Pending] = deque()
        self.waiting: Pending | None = None  # taken in this step, not yet riding on an output
        self.rank = f"pp rank {state.facts.pp_rank} of {state.facts.pp_size}, pid {os.getpid()}"
        self.has_output = bool(runner.is_last_pp_rank)
        self.is_read = self.has_output and _tp_rank() == 0

    def take(self, runner: Any, input_batch: Any) -> None:
        """Snapshot the step's lengths, where it is due, before the forward."""
        self.poll()
        if self.waiting is not None:  # the step it was taken in made no output
            self.waiting = None
            self._drop("its step made no output")
        batch = self.state.batch
        if not batch.req_ids or self.state.step % self.period:
            return
        lengths = self.state.host_lengths(runner)
        snapshot = drift.Snapshot(
            step=self.state.step,
            req_ids=tuple(batch.req_ids),
            host=lengths.seq_lens.copy(),
            exact=lengths.exact,
            source=batch.decision.source.value,
            reasons=batch.decision.reasons,
            rank=self.rank,
        )
        pending = Pending(snapshot, input_batch.seq_lens[: len(snapshot.host)].clone())
        self.state.stats.counts["snapshots_taken"] += 1
        if self.has_output:
            self.waiting = pending
        else:
            self._send_alone(runner, pending)

    def _send_alone(self, runner: Any, pending: Pending) -> None:
        import torch

        stream, main = runner.num_computed_tokens_stream, torch.npu.current_stream()
        event = torch.npu.Event()
        with torch.npu.stream(stream):
            after_main(stream, main)
            pending.landed = pending.device.to("cpu", non_blocking=True)
            event.record()
        pending.event = event
        self._hold(pending)

    def ride(self, num_sampled_tokens: Any) -> tuple[Any, Pending | None]:
        """What to hand to the output in the place of `num_sampled_tokens`, and the snapshot that rides on it."""
        pending, self.waiting = self.waiting, None
        if pending is None:
            return num_sampled_tokens, None
        return Riding(num_sampled_tokens, pending), pending

    def sent(self, pending: Pending, event: Any) -> None:
        """Remember a snapshot whose copy the output has issued under `event`."""
        pending.event = event
        self._hold(pending)

    def _hold(self, pending: Pending) -> None:
        self.pending.append(pending)
        while len(self.pending) > MAX_PENDING:
            oldest = self.pending.popleft()
            if oldest.checked:
                continue
            if oldest.event.query():
                self.check(oldest)  # nobody has read its output, and it has landed
            else:
                self._drop(f"more than {MAX_PENDING} outputs are neither read nor landed")

    def _drop(self, why: str) -> None:
        counts = self.state.stats.counts
        counts["snapshots_dropped"] += 1
        if counts["snapshots_dropped"] == 1:
            logger.warning(
                "mrv2-metadata: the lengths of step %d were not compared: %s. `snapshots_dropped` counts on.",
                self.state.step,
                why,
            )

    def poll(self) -> None:
        """Compare what has landed by itself; a rank that is not read has no other way, and must take itself down."""
        while self.pending and self.pending[0].checked:
            self.pending.popleft()
        if self.is_read:
            return  # `get_output` compares, before the tokens leave
        while self.pending and self.pending[0].event.query():
            try:
                self.check(self.pending.popleft())
            except DriftError:
                # Raising here would only be logged, and the other ranks would hang: end this worker.
                logger.critical("mrv2-metadata: ending this worker so that the engine stops")
                logging.shutdown()
                os._exit(EXIT_STATUS)

    def check(self, pending: Pending) -> None:
        """Compare a landed snapshot; raises DriftError with the full report."""
        if pending.checked:
            return
        pending.checked = True
        device = np.asarray(pending.landed.numpy(), dtype=np.int32)
        rows = drift.wrong_rows(pending.snapshot, device)
        counts = self.state.stats.counts
        counts["verified_steps"] += 1
        counts["verified_rows"] += len(device)
        counts["drift_rows"] += len(rows)
        if len(rows):
            text = drift.report(pending.snapshot, device, rows)
            logger.critical(text)
            raise DriftError(text)


def _tp_rank() -> int:
    from vllm.distributed.parallel_state import get_tp_group

    return int(get_tp_group().rank_in_group)
