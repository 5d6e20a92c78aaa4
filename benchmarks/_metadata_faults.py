"""Faults planted into the hook, one at a time: each must be caught by a check, or the check proves nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


def plant(name: str | None) -> Any:
    """Plant one fault by name in this process; returns what takes it out again."""
    if name is None:
        return lambda: None
    from mrv2_metadata import seq_lens
    from mrv2_metadata.adapters import hooks, state, verify

    runner_state, verifier = state.RunnerState, verify.Verifier
    places: dict[str, tuple[Any, str, Any]] = {
        # Every wait and every order of the hook, taken away.
        "no length wait": (runner_state, "await_copy", lambda self, runner: None),
        "no order behind the main stream": (state, "after_main", lambda stream, main: None),
        "no order behind the main stream, snapshot": (verify, "after_main", lambda stream, main: None),
        "no output wait": (hooks.Metadata, "output_get", _unwaited(hooks.Metadata)),
        "snapshot read before the output's wait": (verifier, "sent", _checked_at_once),
        "snapshot read before its event": (verifier, "poll", _polled_without_asking),
        # What must be written, and where from.
        "no write-back": (seq_lens, "correct", lambda computed, device, rows: 0),
        "one row too few": (seq_lens, "correct", _all_but_one),
        "scheduler for every step": (runner_state, "decide_step", lambda self, output, continuous: _scheduler()),
        "host lengths one too long": (runner_state, "update_lengths", _one_too_long(runner_state)),
        "one rejection not settled": (runner_state, "update_lengths", _unsettled(runner_state)),
    }
    holder, attribute, planted = places[name]
    kept = getattr(holder, attribute)
    setattr(holder, attribute, planted)
    return lambda: setattr(holder, attribute, kept)


def without_output() -> Any:
    """Let each runner made from now on verify as a rank that has no output; returns what ends that.

    Such a rank ends its process on drift; here the report is raised, so that this process can write it down.
    """
    from mrv2_metadata.adapters import verify

    made, left = verify.Verifier.__init__, verify.os

    def alone(self: Any, state: Any, runner: Any) -> None:
        made(self, state, runner)
        self.has_output = self.is_read = False

    def ended(status: int) -> None:
        raise RuntimeError(f"DriftError: the worker would have ended with status {status}")

    verify.Verifier.__init__ = alone  # type: ignore[method-assign]
    verify.os = SimpleNamespace(getpid=left.getpid, _exit=ended)  # type: ignore[assignment]

    def undo() -> None:
        verify.Verifier.__init__, verify.os = made, left  # type: ignore[method-assign]

    return undo


def _scheduler() -> Any:
    from mrv2_metadata.authority import Decision, Source

    return Decision(Source.SCHEDULER, (), None)


def _all_but_one(computed: Any, device: Any, rows: Any) -> int:
    computed[rows[:-1]] = device[rows[:-1]]
    return len(rows) - 1


def _unwaited(shared_class: Any) -> Any:
    """The output's own wait gone: what upstream would do without it, and what a snapshot then is."""
    original = shared_class.output_get

    def planted(self: Any, call: Any, output: Any) -> Any:
        output.copy_event = SimpleNamespace(synchronize=lambda: None)
        return original(self, call, output)

    return planted


def _checked_at_once(self: Any, pending: Any, event: Any) -> None:
    pending.event = event
    self.check(pending)


def _polled_without_asking(self: Any) -> None:
    while self.pending:
        self.check(self.pending.popleft())


def _one_too_long(state_class: Any) -> Any:
    original = state_class.update_lengths

    def planted(self: Any, runner: Any, scheduler_output: Any, req_ids: Any) -> None:
        original(self, runner, scheduler_output, req_ids)
        if self.step == 20:
            runner.input_buffers.seq_lens_np[0] += 1

    return planted


def _unsettled(state_class: Any) -> Any:
    """A scheduler that has not yet taken one rejected draft back when it schedules the next step."""
    original = state_class.update_lengths

    def planted(self: Any, runner: Any, scheduler_output: Any, req_ids: Any) -> None:
        counts = runner.req_states.num_computed_tokens_np
        if self.step >= 5 and not hasattr(self, "planted"):
            for name in scheduler_output.scheduled_cached_reqs.req_ids:
                row = runner.req_states.req_id_to_index[name]
                # Within what the last step scheduled: no rewind that the hook could see in the counts alone.
                if self.floor[row] < counts[row] < self.expected[row]:
                    counts[row] += 1
                    self.planted = True
                    break
        original(self, runner, scheduler_output, req_ids)

    return planted
