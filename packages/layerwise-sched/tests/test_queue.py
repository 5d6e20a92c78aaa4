"""The receive thread's queue: upstream's own under FIFO, a choice otherwise, and never an exception of ours."""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

import pytest
from layerwise_sched import HOLD, DataPath, DependencyKind, Task, make_policy
from layerwise_sched.dispatch import Dispatcher
from layerwise_sched.task_queue import TaskQueue
from layerwise_sched.timeline import Code, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layerwise_sched.legal import Readiness


class Missing:
    """Readiness by layer: what each still misses; layers not named are ready."""

    def __init__(self, **layers: DependencyKind) -> None:
        self.by_layer = {int(name[1:]): kind for name, kind in layers.items()}

    def missing(self, task: Task) -> DependencyKind | None:
        return self.by_layer.get(task.layer)


class Raises:
    name, reorders = "raises", True

    def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
        raise RuntimeError("planted")


def task(layer: int, **facts: Any) -> Task:
    facts = {"chain": layer, "path": DataPath.GVA} | facts
    return Task(layer, 0, layer, **facts)


def make(policy: Any, ready: Missing | None = None, timeline: Timeline | None = None, **options: Any) -> TaskQueue:
    chosen = make_policy(policy) if isinstance(policy, str) else policy
    dispatcher = Dispatcher(chosen, ready or Missing(), **options)
    return TaskQueue(lambda item: item, dispatcher, timeline, poll_s=1e-3)


def test_fifo_is_the_standard_librarys_get() -> None:
    made = make("fifo")
    assert "get" not in vars(made)
    assert made.get.__func__ is queue.Queue.get
    assert made.put.__func__ is queue.Queue.put
    assert made.task_done.__func__ is queue.Queue.task_done


def test_back_to_fifo_leaves_nothing() -> None:
    made = make("ready", Missing(L1=DependencyKind.SAVE_CPU))
    assert "get" in vars(made)
    made.use(make_policy("fifo"))
    assert "get" not in vars(made)
    assert made.get.__func__ is queue.Queue.get
    made.put(task(1))
    made.put(task(2))
    assert [made.get().layer, made.get().layer] == [1, 2]


def test_a_ready_task_passes_a_head_whose_save_is_missing() -> None:
    ready = Missing(L1=DependencyKind.SAVE_CPU)
    made = make("ready", ready)
    for layer in (1, 2, 3):
        made.put(task(layer))
    assert made.get().layer == 2
    ready.by_layer.clear()
    assert [made.get().layer, made.get().layer] == [1, 3]
    assert made.dispatcher.counts.reordered == 1


@pytest.mark.parametrize(
    "later",
    [
        task(2, final=True),
        task(2, chain=1),
        task(2, source=1, chain=9),
        task(2)._replace(step=1),
        task(2, has_io=False),
        task(2, key_major=True),
    ],
    ids=["final", "chain", "source", "step", "empty", "group"],
)
def test_what_may_not_pass_waits(later: Task) -> None:
    made = make("ready", Missing(L1=DependencyKind.SAVE_CPU))
    made.put(task(1))
    made.put(later)
    with pytest.raises(queue.Empty):
        made.get(timeout=0.01)
    assert made.dispatcher.counts.holds > 0


def test_the_gate_policy_passes_within_a_gate_only() -> None:
    ready = Missing(L1=DependencyKind.SAVE_CPU)
    made = make("gate", ready)
    made.put(task(1, gate=7))
    made.put(task(2, gate=8))
    with pytest.raises(queue.Empty):
        made.get(timeout=0.01)
    made.put(task(3, gate=7))
    assert made.get().layer == 3


@pytest.mark.parametrize("policy", ["ready", "gate"])
@pytest.mark.parametrize("kind", [DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU, DependencyKind.SAVE_CPU])
def test_a_head_that_waits_for_its_gate_or_has_a_slot_waiter_is_handed_over(kind: DependencyKind, policy: str) -> None:
    made = make(policy, Missing(L1=kind))
    made.put(task(1, slot_waiter=kind is DependencyKind.SAVE_CPU))
    assert made.get(timeout=1).layer == 1
    assert made.dispatcher.counts.holds == 0


def test_no_commitment_to_the_only_task_while_a_ready_one_may_come() -> None:
    made = make("ready", Missing(L1=DependencyKind.SAVE_CPU))
    made.put(task(1))
    timer = threading.Timer(0.02, made.put, [task(2)])
    timer.start()
    assert made.get(timeout=5).layer == 2
    timer.join()


def test_the_hold_is_bounded_so_that_upstreams_failure_polls_run() -> None:
    made = make("ready", Missing(L1=DependencyKind.SAVE_CPU), max_hold_ns=5_000_000)
    made.put(task(1))
    made.put(task(2, chain=1))
    assert made.get(timeout=5).layer == 1
    assert made.dispatcher.counts.hold_ran_out == 1


def test_a_wake_is_enough_without_a_poll() -> None:
    ready = Missing(L1=DependencyKind.SAVE_CPU)
    made = TaskQueue(lambda item: item, Dispatcher(make_policy("ready"), ready), None, poll_s=60)
    made.put(task(1))

    def arrive() -> None:
        ready.by_layer.clear()
        made.wake()

    timer = threading.Timer(0.02, arrive)
    timer.start()
    assert made.get(timeout=30).layer == 1
    timer.join()


def test_a_wake_from_inside_put_does_not_lock_itself_out() -> None:
    made: TaskQueue

    def describe(item: Task) -> Task:
        made.wake()  # as a gate does that was recorded before its task was enqueued
        return item

    made = TaskQueue(describe, Dispatcher(make_policy("ready"), Missing()), None, poll_s=1e-3)
    thread = threading.Thread(target=made.put, args=(task(1),), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert made.get(timeout=5).layer == 1


def test_the_shutdown_sign_passes_nothing_and_is_passed_by_nothing() -> None:
    made = make("ready", Missing(L1=DependencyKind.SAVE_CPU))
    made.put(task(1))
    made.put(None)
    made.put(task(2))
    with pytest.raises(queue.Empty):
        made.get(timeout=0.01)
    made.dispatcher.ready.by_layer.clear()  # type: ignore[attr-defined]
    assert [made.get(), made.get(), made.get()] == [task(1), None, task(2)]


@pytest.mark.parametrize("answer", [5, -3, 1])
def test_a_policy_that_raises_or_breaks_a_rule_means_upstreams_order(
    answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Raises):
        def select(self, queue: Sequence[Task | None], ready: Readiness) -> int:
            return answer

    for policy in (Raises(), Wrong()):
        caplog.clear()
        told: list[Exception] = []
        made = make(policy, Missing(L2=DependencyKind.GATE_NPU), on_fault=told.append)
        made.put(task(1))
        made.put(task(2))
        with caplog.at_level(logging.ERROR):
            assert made.get(timeout=5).layer == 1
        assert "upstream's order from here on" in caplog.text
        assert "get" not in vars(made)  # rolled back to queue.Queue.get
        assert made.get(timeout=5).layer == 2
        assert made.dispatcher.counts.faults == len(told) == 1
        made.use(make_policy("ready"))
        assert made.dispatcher.broken is None


def test_readiness_that_raises_means_upstreams_order() -> None:
    class Broken(Missing):
        def missing(self, task: Task) -> DependencyKind | None:
            raise OSError("planted")

    made = make("ready", Broken())
    made.put(task(1))
    assert made.get(timeout=5).layer == 1
    assert made.dispatcher.broken is not None


def test_an_item_that_cannot_be_described_is_a_barrier(caplog: pytest.LogCaptureFixture) -> None:
    def describe(item: Any) -> Task:
        if item == "odd":
            raise AttributeError("planted")
        return item

    ready = Missing(L1=DependencyKind.SAVE_CPU)
    made = TaskQueue(describe, Dispatcher(make_policy("ready"), ready), None, poll_s=1e-3)
    for item in (task(1), "odd", task(2)):
        made.put(item)
    assert "cannot be described" in caplog.text
    with pytest.raises(queue.Empty):
        made.get(timeout=0.01)
    ready.by_layer.clear()
    assert [made.get(), made.get(), made.get()] == [task(1), "odd", task(2)]


@pytest.mark.parametrize("enqueued", [True, False])
def test_a_recorder_that_fails_costs_the_timeline_and_nothing_else(
    enqueued: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timeline = Timeline(64)
    made = make("fifo", timeline=timeline)

    def fail(*_arguments: object) -> None:
        raise MemoryError("planted")

    if enqueued:
        made.put(task(1))
    monkeypatch.setattr(timeline.here, "put", fail)
    if not enqueued:
        made.put(task(1))
    assert made.get().layer == 1
    made.task_done()
    made.join()
    assert "its recorder failed" in caplog.text


def test_rows_of_enqueue_dequeue_and_hold() -> None:
    timeline = Timeline(64)
    ready = Missing(L1=DependencyKind.SAVE_CPU)
    made = make("ready", ready, timeline)
    made.put(task(1))
    with pytest.raises(queue.Empty):
        made.get(timeout=0.02)
    made.put(task(2))
    made.get()
    written, tasks = timeline.local().take()
    assert [(code, subject, value) for code, _, subject, value in written] == [
        (Code.ENQUEUE, 1, 1),
        (Code.HOLD, 1, DependencyKind.SAVE_CPU),  # once, however often the queue was looked at
        (Code.ENQUEUE, 2, 2),
        (Code.DEQUEUE, 2, 1),
    ]
    assert tasks == [task(1), task(2)]


def test_arguments_of_get_are_the_standard_librarys() -> None:
    made = make("ready")
    with pytest.raises(queue.Empty):
        made.get(block=False)
    with pytest.raises(queue.Empty):
        made.get_nowait()
    with pytest.raises(ValueError, match="non-negative"):
        made.get(timeout=-1)


def test_nothing_is_lost_while_the_policy_changes_under_load() -> None:
    made = make("fifo")
    count, seen = 3_000, []

    def receive() -> None:
        while (item := made.get()) is not None:
            seen.append(item.cid)
            made.task_done()
        made.task_done()

    thread = threading.Thread(target=receive)
    thread.start()
    for cid in range(count):
        made.put(Task(cid, 0, cid % 7, chain=cid % 7))
        if cid % 50 == 0:
            made.use(make_policy(("fifo", "ready", "gate")[cid // 50 % 3]))
    made.put(None)
    thread.join(30)
    made.join()
    assert sorted(seen) == list(range(count))
    assert made.unfinished_tasks == 0


def test_hold_is_a_constant_that_no_index_can_be() -> None:
    assert HOLD == -1
