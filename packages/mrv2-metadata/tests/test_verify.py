"""Snapshots: compared when they have landed, and counted when they never are."""

import logging

import numpy as np
import pytest
from metadata_fakes import Array, Event, State, admit, output, runner
from mrv2_metadata.adapters import verify
from mrv2_metadata.config import Config
from mrv2_metadata.errors import DriftError

pytestmark = pytest.mark.usefixtures("ascend_config")


class Device(Array):
    """A device tensor: slices, clones, and arrives on the host as an array."""

    def __getitem__(self, key):
        return Device(self.values[key])

    def clone(self):
        return Device(self.values.copy())

    def to(self, *args, **named):
        return Array(self.values)


@pytest.fixture
def scene(monkeypatch):
    monkeypatch.setattr(verify, "_tp_rank", lambda: 0)
    made = runner()
    state = State(made, Config(enabled=True, verify="every"))
    checker = verify.Verifier(state, made)
    state.step_of(made, output({"a": 5}, [admit(made, "a", 2, 0)]))
    return made, state, checker


def batch(lengths):
    from types import SimpleNamespace

    return SimpleNamespace(seq_lens=Device(np.array(lengths, np.int32)))


def ride(checker, made, lengths):
    checker.take(made, batch(lengths))
    handed, pending = checker.ride(Device(np.ones(1, np.int32)))
    handed.to("cpu")
    checker.sent(pending, Event())
    return pending


def test_a_snapshot_rides_and_is_compared_once(scene):
    made, state, checker = scene
    pending = ride(checker, made, [5])
    checker.check(pending)
    checker.check(pending)
    counts = state.stats.counts
    assert (counts["snapshots_taken"], counts["verified_steps"], counts["verified_rows"]) == (1, 1, 1)
    wrong = ride(checker, made, [4])
    with pytest.raises(DriftError, match="request 'a': host 5"):
        checker.check(wrong)
    assert counts["drift_rows"] == 1


def test_what_is_never_read_and_never_lands_is_counted_and_said_once(scene, caplog):
    made, state, checker = scene
    caplog.set_level(logging.WARNING)
    for _ in range(verify.MAX_PENDING + 3):
        ride(checker, made, [5])
    counts = state.stats.counts
    assert counts["snapshots_dropped"] == 3
    assert counts["snapshots_taken"] == verify.MAX_PENDING + 3
    assert len(checker.pending) == verify.MAX_PENDING
    assert caplog.text.count("were not compared") == 1


def test_what_is_never_read_but_has_landed_is_compared_instead(scene):
    made, state, checker = scene
    first = ride(checker, made, [4])  # wrong
    first.event.landed = True
    for _ in range(verify.MAX_PENDING - 1):
        ride(checker, made, [5])
    with pytest.raises(DriftError, match="host 5"):
        ride(checker, made, [5])
    assert state.stats.counts["snapshots_dropped"] == 0


def test_a_snapshot_whose_step_made_no_output_is_counted(scene):
    made, state, checker = scene
    checker.take(made, batch([5]))
    checker.take(made, batch([5]))
    assert state.stats.counts["snapshots_dropped"] == 1


def test_a_rank_that_nobody_reads_compares_by_itself_and_ends_on_drift(scene, monkeypatch):
    made, state, checker = scene
    checker.is_read = False
    pending = ride(checker, made, [5])
    checker.poll()
    assert state.stats.counts["verified_steps"] == 0, "it has not landed"
    pending.event.landed = True
    checker.poll()
    assert state.stats.counts["verified_steps"] == 1
    wrong = ride(checker, made, [6])
    wrong.event.landed = True

    def ended(status):
        raise SystemExit(status)

    monkeypatch.setattr(verify.os, "_exit", ended)
    with pytest.raises(SystemExit, match=str(verify.EXIT_STATUS)):
        checker.poll()


def test_sampled_verification_takes_every_nth_step(scene, monkeypatch):
    made, state, _ = scene
    state.config = Config(enabled=True, verify="sample", verify_period=4)
    checker = verify.Verifier(state, made)
    for step in range(1, 9):
        state.step = step
        checker.take(made, batch([5]))
        checker.waiting = None
    assert state.stats.counts["snapshots_taken"] == 2
