"""No policy ever breaks a rule of legal order; and every broken rule is seen."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from data_plane import data_errors
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_sched import HOLD, make_policy
from layerwise_sched.checker import Broken, check_run
from layerwise_sched.dispatch import Dispatcher
from layerwise_sched.legal import Rule
from layerwise_sched.model import DataPath, DependencyKind
from layerwise_sched.simulation import Spec, generate, simulate
from layerwise_sched.simulation.engine import DeadlockError
from layerwise_sched.stages import check
from layerwise_sched.timeline import Code, Record
from strategies import specs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.legal import Readiness
    from layerwise_sched.model import Task
    from layerwise_sched.runs import Run


class Anything:
    """A policy that answers at random, also nonsense, and sometimes raises."""

    name = "anything"
    reorders = True

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        if self._random.random() < 0.02:
            raise RuntimeError("planted")
        return self._random.choice([HOLD, 0, *range(len(queue)), -7, len(queue) + 3])


class Answers(Anything):
    """Raises nothing, and every answer is checked anew after a fault: many faults in one run."""

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        return self._random.choice([HOLD, 0, *range(len(queue))])


@given(specs(), st.integers(0, 2**16), st.sampled_from(["fifo", "ready", "gate"]))
@settings(max_examples=400, deadline=None)
def test_no_policy_breaks_a_rule(spec: Spec, seed: int, name: str) -> None:
    simulated = simulate(generate(spec, seed), make_policy(name))
    run = simulated.run()
    assert check_run(run) == []
    assert data_errors(run) == []
    assert check(run) == []
    assert simulated.counts.faults == 0
    assert len(run.complete) == simulated.num_tasks


@given(specs(), st.integers(0, 2**16))
@settings(max_examples=200, deadline=None)
def test_no_answer_of_a_policy_breaks_a_rule(spec: Spec, seed: int) -> None:
    simulated = simulate(generate(spec, seed), Anything(seed), max_hold_ns=100_000)
    run = simulated.run()
    assert check_run(run) == []
    assert data_errors(run) == []
    assert len(run.complete) == simulated.num_tasks


@given(specs(), st.integers(0, 2**16))
@settings(max_examples=200, deadline=None)
def test_many_wrong_answers_in_one_run_change_nothing_either(spec: Spec, seed: int) -> None:
    policy = Answers(seed)
    workload = generate(spec, seed)
    with pytest.MonkeyPatch.context() as patch:
        # As if each fault were repaired at once by `use`: the policy is asked again for the next decision.
        patch.setattr(Dispatcher, "reorders", property(lambda self: True))
        run = simulate(workload, policy, max_hold_ns=100_000).run()
    assert check_run(run) == []
    assert data_errors(run) == []


REUSE = Spec(shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=6_000, straggler_layers=(1, 2, 3, 4, 7), steps=2)


class Unchecked:
    """A policy whose answers reach the thread as they are: the fault that the dispatcher is there to stop.

    Takes `layer` before the head `head`, with `ready` only once it is ready.
    """

    name = "unchecked"
    reorders = True

    def __init__(self, layer: int, head: int, ready: bool) -> None:
        self.layer, self.head, self.ready = layer, head, ready

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        layers = [task.layer for task in queue if task is not None]
        if self.layer not in layers or layers[0] != self.head:
            return 0
        index = layers.index(self.layer)
        return 0 if self.ready and ready.missing(queue[index]) is not None else index  # type: ignore[arg-type]


def unchecked(spec: Spec, policy: Unchecked, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(Dispatcher, "choose", lambda self, queue: self.policy.select(queue, self.ready))
    return simulate(generate(spec), policy).run()


def test_the_final_layer_before_another_is_seen_by_both_checkers(monkeypatch: pytest.MonkeyPatch) -> None:
    run = unchecked(Spec(layers=4, prefetch_layers=4), Unchecked(3, head=2, ready=True), monkeypatch)
    assert {violation.rule for violation in check_run(run)} == {Rule.FINAL_LAYER}
    assert any("leases" in error for error in data_errors(run))


def test_a_task_that_passes_the_head_before_it_is_ready_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    run = unchecked(REUSE, Unchecked(5, head=4, ready=False), monkeypatch)
    assert {violation.rule for violation in check_run(run)} == {Rule.NOT_READY}


def test_passing_a_head_that_the_own_gate_waits_for_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeadlockError, match="holds layer 2, which waits for layer 0"):
        unchecked(Spec(layers=6, prefetch_layers=3), Unchecked(2, head=0, ready=False), monkeypatch)


def test_an_owner_chain_in_the_wrong_order_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec(layers=6, shared_buffers=2, prefetch_layers=6)
    with pytest.raises(DeadlockError, match="holds layer 3, which waits for layer 1"):
        unchecked(spec, Unchecked(3, head=1, ready=False), monkeypatch)


def planted(code: Code, layer: int, move: int | None) -> tuple[set[Rule | Broken], list[str]]:
    """A right run with one row of one task moved by `move` ns (None: taken out); the rules found, the oracle's view."""
    simulated = simulate(generate(REUSE), make_policy("ready"))
    assert check_run(simulated.run()) == []
    cid = next(task.cid for task in simulated.tasks if task.layer == layer and task.step == 1)
    rows: list[Record] = []
    for row in simulated.records:
        if row.code == code and row.subject == cid:
            if move is None:
                continue
            row = row._replace(t=row.t + move, value=row.value + move if code is Code.TRANSFER else row.value)
        rows.append(row)
    simulated.records = rows
    return {violation.rule for violation in check_run(simulated.run())}, data_errors(simulated.run())


def test_a_transfer_before_its_gate_is_seen() -> None:
    assert planted(Code.TRANSFER, 1, -2_400_000)[0] == {Broken.GATE}


def test_a_slot_reused_before_its_save_ended_is_seen_by_both_checkers() -> None:
    found, errors = planted(Code.TRANSFER, 4, -8_000_000)
    assert Broken.REUSE in found
    assert any("layer 4 overwrote layer 1" in error for error in errors)


def test_a_slot_reused_after_the_cpu_event_and_before_the_npu_event_is_seen() -> None:
    simulated = simulate(generate(Spec(layers=6, shared_buffers=2, saving_rank=False)), make_policy("fifo"))
    assert check_run(simulated.run()) == []
    task = next(task for task in simulated.tasks if task.source == 1)
    own = {Code.SAVE_NPU, Code.TRANSFER}
    rows = [row for row in simulated.records if row.subject != task.cid or row.code not in own]
    run = simulated.run()
    cpu = run.save_set[task.step, 1]
    assert cpu < run.tasks[task.cid].met[DependencyKind.SAVE_NPU].at
    simulated.records = [*rows, Record(cpu, Code.TRANSFER, task.cid, cpu + 1, "receive")]
    found = check_run(simulated.run())
    assert [violation.rule for violation in found if "SAVE_NPU" in violation.detail] == [Broken.REUSE]


def test_a_lost_task_done_is_seen() -> None:
    assert planted(Code.DONE, 5, None)[0] == {Broken.LOST}


def test_a_task_never_taken_is_seen() -> None:
    assert Broken.LOST in planted(Code.DEQUEUE, 5, None)[0]


def test_task_done_before_the_end_of_the_transfer_is_seen() -> None:
    assert planted(Code.DONE, 5, -1_000_000)[0] == {Broken.EARLY_DONE}


def test_a_task_taken_twice_is_seen() -> None:
    simulated = simulate(generate(REUSE), make_policy("ready"))
    row = next(row for row in simulated.records if row.code == Code.DEQUEUE)
    simulated.records.append(row)
    assert {violation.rule for violation in check_run(simulated.run())} == {Broken.TWICE}


def test_an_order_that_was_swapped_in_the_record_is_seen() -> None:
    """Owner chain, range group, step: two tasks' dequeues change places."""
    for spec, first, second, rule in (
        (Spec(layers=6, shared_buffers=2, prefetch_layers=6), 1, 3, Rule.OWNER_CHAIN),
        (Spec(layers=6, path=DataPath.RANGE, prefetch_layers=6), 1, 2, Rule.RANGE_GROUP),
    ):
        simulated = simulate(generate(spec), make_policy("fifo"))
        cids = {task.layer: task.cid for task in simulated.tasks if task.step == 0}
        swap = {cids[first]: cids[second], cids[second]: cids[first]}
        simulated.records = [
            row._replace(subject=swap.get(row.subject, row.subject)) if row.code == Code.DEQUEUE else row
            for row in simulated.records
        ]
        assert rule in {violation.rule for violation in check_run(simulated.run())}
