"""Evidence from the side: what the sampler asks, and what the finder makes of it on real threads."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from layerwise_sched import DataPath, DependencyKind, Task, make_policy
from layerwise_sched.dispatch import Dispatcher
from layerwise_sched.hol import find
from layerwise_sched.model import LayerPlan
from layerwise_sched.rows import expand
from layerwise_sched.runs import assemble
from layerwise_sched.sampler import Sampler
from layerwise_sched.stages import check
from layerwise_sched.task_queue import TaskQueue
from layerwise_sched.timeline import Code, Proof, Record, Ring, Timeline, met, split_met


class Missing:
    def __init__(self) -> None:
        self.by_cid: dict[int, DependencyKind | None] = {}

    def missing(self, task: Task) -> DependencyKind | None:
        return self.by_cid.get(task.cid)


def task(cid: int, **facts: Any) -> Task:
    values = {"layer": cid, "chain": cid, "source": None, "gate": 9, "path": DataPath.GVA} | facts
    return Task(cid, 0, **values)


def rows(ring: Ring) -> list[tuple[int, int, int]]:
    written, _ = ring.take()
    return [(code, subject, value) for code, _, subject, value in written]


def made(policy: str = "fifo") -> tuple[TaskQueue, Missing, Sampler, Ring]:
    ready = Missing()
    queue = TaskQueue(lambda item: item, Dispatcher(make_policy(policy), ready))
    ring = Ring("side", 256)
    return queue, ready, Sampler(queue, ready, ring), ring


def test_a_waiting_head_and_a_ready_task_behind_it_are_both_written() -> None:
    queue, ready, sampler, ring = made()
    queue.put(task(0, source=1, gate=None))
    queue.put(task(1))
    queue.get()
    ready.by_cid = {0: DependencyKind.SAVE_CPU}
    sampler.look()
    gate = met(DependencyKind.GATE_CONDITION, Proof.QUERY), met(DependencyKind.GATE_NPU, Proof.QUERY)
    assert rows(ring) == [
        (Code.UNMET, 0, DependencyKind.SAVE_CPU), (Code.MET, 1, gate[0]), (Code.MET, 1, gate[1]),
    ]  # fmt: skip
    sampler.look()
    assert rows(ring) == [(Code.UNMET, 0, DependencyKind.SAVE_CPU)]  # what is met is written once


def test_only_what_is_met_is_written() -> None:
    queue, ready, sampler, ring = made()
    queue.put(task(0))
    queue.put(task(1, source=3))
    queue.get()
    ready.by_cid = {0: DependencyKind.GATE_NPU, 1: DependencyKind.SAVE_NPU}
    sampler.look()
    assert (Code.MET, 1, met(DependencyKind.SAVE_CPU, Proof.QUERY)) in rows(ring)
    ready.by_cid[1] = DependencyKind.GATE_CONDITION
    sampler.look()
    assert (Code.MET, 1, met(DependencyKind.SAVE_NPU, Proof.QUERY)) in rows(ring)


def test_nothing_is_asked_while_there_is_nothing_to_compare() -> None:
    queue, _, sampler, ring = made()
    sampler.look()
    queue.put(task(0))
    sampler.look()  # one task, queued
    queue.get()
    sampler.look()  # one task, waiting
    queue.put(task(1))
    queue.waiting = False  # it transfers
    sampler.look()
    assert sampler.looks == 0
    assert rows(ring) == []


def test_a_queue_that_a_policy_holds_is_looked_at() -> None:
    queue, ready, sampler, ring = made("ready")
    ready.by_cid = {0: DependencyKind.SAVE_CPU}
    queue.put(task(0, source=1))
    queue.put(task(1))
    sampler.look()
    found = rows(ring)
    assert (Code.UNMET, 0, DependencyKind.SAVE_CPU) in found
    assert (Code.MET, 1, met(DependencyKind.GATE_NPU, Proof.QUERY)) in found


def test_a_queued_head_is_seen_unready_and_then_ready() -> None:
    """Between the two is when its event completed: nobody waits for it there."""
    queue, ready, sampler, ring = made("ready")
    ready.by_cid = {0: DependencyKind.GATE_NPU}
    queue.put(task(0))
    queue.put(task(1))
    sampler.look()
    assert [row for row in rows(ring) if row[1] == 0] == [
        (Code.MET, 0, met(DependencyKind.GATE_CONDITION, Proof.QUERY)), (Code.UNMET, 0, DependencyKind.GATE_NPU),
    ]  # fmt: skip
    ready.by_cid = {}
    sampler.look()
    sampler.look()
    assert [row for row in rows(ring) if row[1] == 0] == [(Code.MET, 0, met(DependencyKind.GATE_NPU, Proof.QUERY))]


@pytest.mark.parametrize("asked", [0, 1], ids=["head", "later"])
def test_an_answer_about_a_task_that_was_taken_meanwhile_is_none(asked: int) -> None:
    """Its handler has cleared what it waited for, or has not begun to wait: neither says what was met in the queue."""
    queue, ready, sampler, ring = made("ready")
    queue.put(task(0))
    queue.put(task(1))
    ready.by_cid = {0: DependencyKind.GATE_NPU}
    answer = ready.missing

    def taken_meanwhile(about: Task) -> DependencyKind | None:
        if about.cid != asked:
            return answer(about)
        with queue.mutex:
            queue._get()
        return None

    ready.missing = taken_meanwhile  # type: ignore[method-assign]
    sampler.look()
    assert not [row for row in rows(ring) if row[:2] == (Code.MET, asked)]


def test_a_head_that_is_done_meanwhile_waits_for_nothing() -> None:
    queue, ready, sampler, ring = made()
    queue.put(task(0, source=1))
    queue.put(task(1))
    queue.get()

    def done_meanwhile(about: Task) -> DependencyKind | None:
        queue.waiting = False  # its handler has cleared the event that is asked now
        return DependencyKind.SAVE_CPU

    ready.missing = done_meanwhile  # type: ignore[method-assign]
    sampler.look()
    assert rows(ring) == []


def test_what_is_seen_unmet_was_so_when_it_was_asked() -> None:
    queue, ready, sampler, ring = made()
    queue.put(task(0, source=1))
    queue.put(task(1))
    queue.get()
    asked: list[int] = []

    def slow(about: Task) -> DependencyKind | None:
        asked.append(time.perf_counter_ns())
        return DependencyKind.SAVE_CPU

    ready.missing = slow  # type: ignore[method-assign]
    sampler.look()
    ((_, at, *_),) = (row for row in ring.take()[0] if row[0] == Code.UNMET)
    assert at <= asked[0]


def test_a_slot_waiter_is_never_said_to_be_met() -> None:
    queue, ready, sampler, ring = made()
    queue.put(task(0, source=1))
    queue.put(task(1, slot_waiter=True))
    queue.get()
    ready.by_cid = {0: DependencyKind.SAVE_CPU, 1: DependencyKind.SLOT_RELEASE}
    sampler.look()
    kinds = {split_met(value)[0] for code, cid, value in rows(ring) if code == Code.MET and cid == 1}
    assert kinds == {DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU}


def test_a_fault_ends_the_sampling_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    queue, ready, _, ring = made()
    ready.missing = None  # type: ignore[assignment,method-assign]
    sampler = Sampler(queue, ready, ring, period_s=1e-3)
    queue.put(task(0))
    queue.put(task(1))
    queue.get()
    with caplog.at_level(logging.ERROR):
        sampler.start()
        sampler.join(10)
    assert not sampler.is_alive()
    assert "no more evidence" in caplog.text
    assert queue.get().cid == 1


def test_closing_ends_the_thread() -> None:
    queue, ready, _, ring = made()
    sampler = Sampler(queue, ready, ring, period_s=1e-3)
    sampler.start()
    sampler.close()
    sampler.join(10)
    assert not sampler.is_alive()


class NpuEvent:
    """An event that completes when told, and tells nobody."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def query(self) -> bool:
        return self.done.is_set()


def test_on_real_threads_the_query_is_the_proof() -> None:
    """Head: waits for a save that ends after the later task's NPU event was seen complete. One event, both sides."""
    timeline = Timeline(4_096)
    save, gate = threading.Event(), NpuEvent()

    class Ready:
        def missing(self, task: Task) -> DependencyKind | None:
            if task.layer == 4:
                return None if save.is_set() else DependencyKind.SAVE_CPU
            return None if gate.query() else DependencyKind.GATE_NPU

    ready = Ready()
    queue = TaskQueue(lambda item: item, Dispatcher(make_policy("fifo"), ready), timeline)
    sampler = Sampler(queue, ready, timeline.ring("side"), period_s=1e-3)

    def receive() -> None:
        for _ in range(2):
            item = queue.get()
            ring = timeline.local()
            begin = time.perf_counter_ns()
            if item.layer == 4:
                assert save.wait(30)
                begin = ring.span(Code.SAVE_CPU, item.cid, begin)
                begin = ring.span(Code.SAVE_NPU, item.cid, begin)
            queue.waiting = False
            ring.span(Code.TRANSFER, item.cid, begin)
            ring.event(Code.DONE, item.cid)

    timeline.local().event(Code.STEP, 0, 1)
    timeline.local().event(Code.GATE_RECORDED, 3, 3)
    queue.put(task(0, layer=4, chain=1, source=1, gate=None))
    queue.put(task(1, layer=5, chain=5, gate=3))
    thread = threading.Thread(target=receive, name="receive")
    sampler.start()
    thread.start()
    while sampler.looks < 3:
        time.sleep(1e-3)
    gate.done.set()
    seen = sampler.looks
    while sampler.looks < seen + 3:
        time.sleep(1e-3)
    timeline.local().event(Code.SAVE_SET, 1, 0)
    save.set()
    thread.join(30)
    sampler.close()
    sampler.join(10)
    records, tasks = [], []
    for ring in timeline.rings:
        written, found = ring.take()
        records += [Record(*event, ring.name) for row in written for event in expand(row)]
        tasks += found
    run = assemble(records, tasks, LayerPlan(6, 3, {4: 1}, (0, 1, 2, 3, 1, 5), 3, DataPath.GVA))
    event = find(run).events[0]
    assert (event.layer, event.missing, event.later[0].run.task.layer) == (4, DependencyKind.SAVE_CPU, 5)
    proofs = dict(event.later[0].proofs)
    assert proofs[DependencyKind.GATE_NPU].proof is Proof.QUERY
    assert proofs[DependencyKind.GATE_CONDITION].proof is Proof.SET
    assert proofs[DependencyKind.GATE_NPU].at <= event.begin < run.save_set[0, 1] <= event.end
    assert run.tasks[0].unmet[DependencyKind.SAVE_CPU] > run.tasks[0].enqueued
    assert check(run) == []
