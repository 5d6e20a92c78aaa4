"""Stages explain a task's whole time, to the nanosecond; wrong stamps are seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_sched import DataPath, Task, make_policy
from layerwise_sched.runs import Run, Span, TaskRun
from layerwise_sched.simulation import Spec, generate, simulate
from layerwise_sched.stages import Stage, check, stage_sums
from layerwise_sched.timeline import Code
from strategies import specs


def life(*spans: tuple[Code, int, int], enqueued: int = 100, dequeued: int = 150, done: int = 1_000) -> TaskRun:
    run = TaskRun(Task(0, 0, 4, source=1, gate=3), enqueued, 1, dequeued, done=done)
    run.spans = [Span(*span) for span in spans]
    return run


def whole(run: TaskRun) -> Run:
    return Run(tasks={0: run})


def test_a_gva_task_by_hand() -> None:
    run = life(
        (Code.SAVE_CPU, 160, 300),
        (Code.SAVE_NPU, 300, 320),
        (Code.BUILD, 325, 360),
        (Code.GATE_CONDITION, 360, 420),
        (Code.GATE_NPU, 420, 500),
        (Code.SLOT_RELEASE, 510, 540),
        (Code.TRANSFER, 550, 700),
        (Code.TRANSFER, 720, 900),
    )
    sums = stage_sums(run)
    assert sums == {
        Stage.QUEUE: 50,
        Stage.SAVE_CPU: 140,
        Stage.SAVE_NPU: 20,
        Stage.BUILD: 35,
        Stage.GATE_CONDITION: 60,
        Stage.GATE_NPU: 80,
        Stage.SLOT_RELEASE: 30,
        Stage.SUBMIT: 10,
        Stage.TRANSFER: 330,
        Stage.HANDLER: 10 + 5 + 10,
        Stage.FINISH: 20 + 100,
    }
    assert sum(sums.values()) == 900
    assert check(whole(run)) == []


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ([(Code.SAVE_CPU, 160, 300), (Code.SAVE_NPU, 299, 320)], "inside the span before it"),
        ([(Code.SAVE_CPU, 140, 300)], "before the dequeue"),
        ([(Code.TRANSFER, 900, 1_001)], "after task_done"),
        ([(Code.BUILD, 300, 290)], "before it begins"),
        ([(Code.TRANSFER, 300, 500), (Code.TRANSFER, 300, 500)], "inside the span before it"),
    ],
)
def test_wrong_stamps_are_seen(spans: list[tuple[Code, int, int]], words: str) -> None:
    problems = check(whole(life(*spans)))
    assert any(words in problem.reason for problem in problems), problems


def test_a_dequeue_before_the_enqueue_is_seen() -> None:
    assert any("before it was enqueued" in problem.reason for problem in check(whole(life(enqueued=200))))


def test_an_incomplete_task_is_not_summed() -> None:
    run = life()
    run.done = None
    assert check(whole(run)) == []
    with pytest.raises(ValueError, match="is not complete"):
        stage_sums(run)


def test_the_paths_wait_in_their_own_order() -> None:
    for path, before in ((DataPath.GVA, True), (DataPath.RANGE, False), (DataPath.KEY, False)):
        run = simulate(generate(Spec(path=path, steps=1)), make_policy("fifo")).run()
        task = run.tasks[2]
        begins = {span.code: span.begin for span in task.spans}
        assert (begins[Code.BUILD] <= begins[Code.GATE_CONDITION]) is before
        assert check(run) == []


@given(specs(), st.integers(0, 2**16), st.sampled_from(["fifo", "ready", "gate"]))
@settings(max_examples=50, deadline=None)
def test_every_simulated_task_is_explained(spec: Spec, seed: int, policy: str) -> None:
    run = simulate(generate(spec, seed), make_policy(policy)).run()
    assert check(run) == []
    for task in run.complete:
        assert sum(stage_sums(task).values()) == (task.done or 0) - task.enqueued
