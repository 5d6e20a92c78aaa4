"""Head-of-line blocking is found where it is, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_sched import DataPath, make_policy
from layerwise_sched.hol import Impossible, find, impossible
from layerwise_sched.legal import order_rule
from layerwise_sched.model import dependencies
from layerwise_sched.simulation import Spec, generate, make_plan, simulate
from layerwise_sched.simulation.workload import ABSENT
from layerwise_sched.stages import Stage
from layerwise_sched.timeline import Code
from strategies import specs

if TYPE_CHECKING:
    from layerwise_sched.runs import Run

LATE = {"straggler_us": 6_000.0, "straggler_layers": (1, 2, 3, 4, 7)}
SCHEDULES = {
    # name: (spec, (blocked layer, ready layer) under FIFO)
    "A one spec, default": (Spec(shared_buffers=3, **LATE), set()),
    "B independent layers": (Spec(shared_buffers=3, independent=(0, 5, 6, 10), **LATE), {(4, 5), (9, 10)}),
    "C two cache specs": (
        Spec(shared_buffers=3, buckets=tuple(int(layer in (2, 5, 8, 11)) for layer in range(12)), **LATE), {(7, 8)},
    ),
    "D no reuse": (Spec(prefetch_layers=4, **LATE), set()),
    "E as B, a rank that saves nothing": (
        Spec(shared_buffers=3, independent=(0, 5, 6, 10), saving_rank=False, **LATE), set(),
    ),
    "F as B, prefetch depth 2": (
        Spec(shared_buffers=3, independent=(0, 5, 6, 10), prefetch_layers=2, **LATE), set(),
    ),
    "G layer 2 has no save task": (Spec(shared_buffers=3, no_save=(2,), **LATE), {(4, 5)}),
    "key-based": (Spec(path=DataPath.KEY, prefetch_layers=8, **LATE), set()),
    "range": (Spec(path=DataPath.RANGE, prefetch_layers=8, **LATE), set()),
}  # fmt: skip


def pairs(run: Run) -> set[tuple[int, int]]:
    return {(event.layer, later.run.task.layer) for event in find(run).events for later in event.later}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_known_schedules(name: str) -> None:
    spec, expected = SCHEDULES[name]
    workload = generate(spec)
    fifo = simulate(workload, make_policy("fifo")).run()
    assert pairs(fifo) == expected
    assert pairs(simulate(workload, make_policy("gate")).run()) == expected
    assert pairs(simulate(workload, make_policy("ready")).run()) == set()
    saves = [time != ABSENT for time in workload.steps[0].save]
    assert (impossible(workload.plan, saves) is None) is bool(expected)


def hol_time(run: Run) -> int:
    """The same question asked anew at every moment: nanoseconds in which the stuck head has a ready one behind it."""
    tasks = list(run.tasks.values())
    stamps = {met.at for task in tasks for met in task.met.values()}
    stamps |= {at for task in tasks for at in (task.enqueued, task.dequeued)}
    stamps |= {at for task in tasks for span in task.spans for at in (span.begin, span.end)}
    moments = sorted(stamps)
    waits = [
        (task, span)
        for task in tasks
        for span in task.spans
        if span.code.name.lower()
        in {Stage.SAVE_CPU, Stage.SAVE_NPU, Stage.GATE_CONDITION, Stage.GATE_NPU, Stage.SLOT_RELEASE}
    ]
    total = 0
    for begin, end in pairwise(moments):
        head = next((task for task, span in waits if span.begin <= begin and end <= span.end), None)
        if head is None:
            continue
        pending = [head] + [
            task for task in tasks if task.enqueued <= begin and (task.dequeued or 0) >= end and task is not head
        ]
        pending.sort(key=lambda task: task.task.cid)
        for place, later in enumerate(pending):
            before = pending[:place]
            if head not in before or not later.task.has_io or later.task.slot_waiter:
                continue
            ready = all(later.met[need.kind].at <= begin for need in dependencies(later.task))
            if ready and all(order_rule(earlier.task, later.task) is None for earlier in before):
                total += end - begin
                break
    return total


@given(specs(), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_the_finder_agrees_with_asking_at_every_moment(spec: Spec, seed: int) -> None:
    run = simulate(generate(spec, seed), make_policy("fifo")).run()
    assert sum(event.duration_ns for event in find(run).events) == hol_time(run)


@given(specs(), st.integers(0, 2**16))
@settings(max_examples=80, deadline=None)
def test_a_configuration_called_impossible_has_no_event(spec: Spec, seed: int) -> None:
    workload = generate(spec, seed)
    saves = [time != ABSENT for time in workload.steps[0].save]
    run = simulate(workload, make_policy("fifo")).run()
    if impossible(workload.plan, saves) is not None:
        assert find(run).events == ()


def test_the_potential_is_bounded_by_the_event_and_by_the_transfers() -> None:
    for name in ("B independent layers", "C two cache specs", "G layer 2 has no save task"):
        for event in find(simulate(generate(SCHEDULES[name][0]), make_policy("fifo")).run()).events:
            assert 0 < event.potential_ns <= event.duration_ns
            assert event.potential_ns <= sum(later.transfer_ns for later in event.later)


def test_both_sides_of_an_event_are_on_record() -> None:
    event = find(simulate(generate(SCHEDULES["B independent layers"][0]), make_policy("fifo")).run()).events[0]
    head = event.later[0].run
    assert event.end - event.begin == event.duration_ns > 0
    assert event.begin >= event.later[0].ready_at
    assert {kind for kind, _ in event.later[0].proofs} == {need.kind for need in dependencies(head.task)}
    assert all(met.at <= event.begin for _, met in event.later[0].proofs)


def test_without_proof_of_the_later_tasks_readiness_there_is_no_event() -> None:
    """Readiness that is known only from the task's own wait, after the fact, proves nothing about before."""
    simulated = simulate(generate(SCHEDULES["B independent layers"][0]), make_policy("fifo"))
    simulated.records = [row for row in simulated.records if row.code != Code.MET]
    found = find(simulated.run())
    assert found.events == ()
    assert found.waits > 0


def test_a_slot_waiter_makes_readiness_unknown_and_not_ready() -> None:
    spec = SCHEDULES["B independent layers"][0]
    found = find(simulate(generate(Spec(**{**spec_values(spec), "slot_us": 500.0})), make_policy("fifo")).run())
    assert found.events == ()
    assert found.unknown > 0


def spec_values(spec: Spec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in Spec.__dataclass_fields__}


def test_tasks_without_io_are_counted_apart() -> None:
    # Layers 5 and 6 keep their slot and load on a hit only: in step 1 layer 5 has no task; its successor is empty.
    spec = Spec(shared_buffers=3, steps=2, **LATE)
    workload = generate(spec)
    loads = [list(step.load) for step in workload.steps]
    for load in loads:
        load[5] = load[6] = ABSENT
    saves = [list(step.save) for step in workload.steps]
    for save in saves:
        save[2] = ABSENT
    steps = [replace(step, load=load, save=save) for step, load, save in zip(workload.steps, loads, saves, strict=True)]
    found = find(simulate(replace(workload, steps=steps), make_policy("fifo")).run())
    assert found.events == ()
    assert found.empty > 0


def test_reasons() -> None:
    assert impossible(make_plan(8)) is Impossible.NO_REUSE
    assert impossible(make_plan(8, DataPath.KEY)) is Impossible.KEY
    assert impossible(make_plan(8, DataPath.RANGE)) is Impossible.RANGE
    assert impossible(make_plan(8, shared_buffers=3, prefetch_layers=2)) is Impossible.PREFETCH
    assert impossible(make_plan(8, shared_buffers=3)) is Impossible.MONOTONE
    assert impossible(make_plan(8, shared_buffers=3, independent=(0, -1))) is Impossible.MONOTONE
    assert impossible(make_plan(8, shared_buffers=3, independent=(0, 5))) is None
    assert impossible(make_plan(8, shared_buffers=3, independent=(0, 5)), [False] * 8) is Impossible.NO_SAVES
