"""What the adapters write, around a handler with upstream's waits: several events in one row lose nothing."""

from __future__ import annotations

import threading
import time
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_sched import DependencyKind
from layerwise_sched.rows import WIDTHS, Packed, expand
from layerwise_sched.spool import Spool
from layerwise_sched.stages import Stage, check, stage_sums
from layerwise_sched.timeline import Code, Proof
from layerwise_sched.timeline_file import find_timelines, read
from surroundings import Gate, NpuEvent, Receiver, Rig

if TYPE_CHECKING:
    from pathlib import Path

    from layerwise_sched.runs import Run

WAITS = [Code.SAVE_CPU, Code.SAVE_NPU, Code.BUILD, Code.GATE_CONDITION, Code.GATE_NPU, Code.TRANSFER]


def codes(run: Run, cid: int = 0) -> list[Code]:
    return [span.code for span in sorted(run.tasks[cid].spans, key=lambda span: (span.begin, span.end))]


def served(rig: Rig, layer: int = 4, **put: Any) -> Run:
    """One task whose events are all there."""
    gate = Gate()
    rig.put(layer, gate, **put)
    gate.record()
    rig.save(1)
    rig.receive()
    return rig.run()


def test_a_task_of_every_wait_is_one_row_of_its_thread_and_all_its_events() -> None:
    rig = Rig()
    rig.timeline.local().take()
    gate = Gate()
    rig.put(4, gate)
    gate.record()
    rig.save(1)
    rig.timeline.local().take()
    rig.receive()
    written, _ = rig.timeline.local().take()
    assert [row[0] for row in written] == [Packed.RECEIVED]
    assert all(type(cell) is int for row in written for cell in row)
    events = [event for row in written for event in expand(row)]
    assert [event[1] for event in events] == [Code.DEQUEUE, *WAITS, Code.DONE]
    times = [(begin, end) for begin, code, _, end in events if code in WAITS]
    assert all(begin <= end for begin, end in times)
    assert sorted(times) == times


def test_its_stages_add_up_and_its_dependencies_have_their_proofs() -> None:
    run = served(Rig())
    assert check(run) == []
    assert codes(run) == WAITS
    found = run.tasks[0]
    assert found.met[DependencyKind.GATE_CONDITION].proof is Proof.SET
    assert found.met[DependencyKind.SAVE_CPU].proof is Proof.SET
    assert found.unmet == {}
    assert all(stage_sums(found)[stage] > 0 for stage in (Stage.QUEUE, Stage.SAVE_CPU, Stage.BUILD, Stage.TRANSFER))


def test_only_an_event_seen_incomplete_is_unmet() -> None:
    rig = Rig()
    rig.npu[1].done = False
    gate = Gate()
    rig.put(4, gate)
    gate.record(done=False)
    rig.saves[1].set()
    rig.receive()
    found = rig.run().tasks[0]
    begins = {span.code: span.begin for span in found.spans}
    assert found.unmet == {
        DependencyKind.SAVE_NPU: begins[Code.SAVE_NPU], DependencyKind.GATE_NPU: begins[Code.GATE_NPU],
    }  # fmt: skip


def test_a_wait_that_polls_is_a_span_for_each_poll_and_the_dequeue_stays_one() -> None:
    """What comes before a poll that timed out is on the timeline while the thread goes on waiting."""
    rig, gate = Rig(), Gate()
    rig.put(4, gate)
    seen: list[int] = []

    def until(code: Code) -> None:
        end = time.monotonic() + 30
        while code not in seen and time.monotonic() < end:
            rings = [ring for ring in rig.timeline.rings if ring.name == "receive"]
            seen.extend(event[1] for ring in rings for row in ring.take()[0] for event in expand(row))
            time.sleep(1e-3)

    thread = threading.Thread(target=rig.receive, name="receive")
    thread.start()
    until(Code.SAVE_CPU)
    assert seen[:2] == [Code.DEQUEUE, Code.SAVE_CPU]
    rig.save(1)
    until(Code.GATE_CONDITION)
    gate.record()
    thread.join(30)
    until(Code.DONE)
    assert seen.count(Code.DEQUEUE) == 1
    assert seen.count(Code.SAVE_CPU) > 1
    assert seen.count(Code.GATE_CONDITION) > 1
    assert [seen.count(code) for code in (Code.SAVE_NPU, Code.GATE_NPU, Code.TRANSFER, Code.DONE)] == [1] * 4


@given(groups=st.integers(1, 4), calls=st.integers(0, 4), io=st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_build_and_every_call_is_a_span(groups: int, calls: int, io: bool) -> None:
    run = served(Rig(Receiver(groups, calls)), io=io)
    assert check(run) == []
    found = codes(run)
    assert (found.count(Code.BUILD), found.count(Code.TRANSFER)) == (groups, calls if io else 0)
    assert run.tasks[0].takes == run.tasks[0].dones == 1
    assert (run.orphans, run.dropped) == (0, 0)


def test_key_based_building_is_the_time_from_the_last_span_to_the_call() -> None:
    run = served(Rig(Receiver(calls=3, key=True)))
    assert check(run) == []
    spans = sorted(run.tasks[0].spans)
    builds = [span for span in spans if span.code is Code.BUILD]
    calls = [span for span in spans if span.code is Code.TRANSFER]
    gate = next(span for span in spans if span.code is Code.GATE_NPU)
    assert [build.begin for build in builds] == [gate.end, calls[0].end, calls[1].end]


def test_a_slot_waiter_has_its_span() -> None:
    rig = Rig()
    rig.receiver.external_slot_release_waiter = lambda layer: None
    rig.loads.slot_waiter_changed()
    run = served(rig)
    assert check(run) == []
    assert Code.SLOT_RELEASE in codes(run)


def test_a_failing_handler_leaves_its_spans_and_says_so() -> None:
    rig, gate = Rig(), Gate()

    def failing(*_: Any) -> int:
        raise OSError("planted")

    rig.receiver.m_store.store._of.batch_copy = failing
    rig.put(4, gate)
    gate.record()
    rig.save(1)
    with pytest.raises(OSError, match="planted"):
        rig.receive()
    found = rig.run().tasks[0]
    assert sorted(span.code for span in found.spans) == sorted(WAITS)
    assert found.failed is not None
    assert found.done is None


def test_an_item_that_cannot_be_described_stands_in_no_row_and_spoils_no_other() -> None:
    rig = Rig()
    describe = rig.receiver.request_queue._describe
    rig.receiver.request_queue._describe = lambda data: 1 / 0
    rig.put(4)
    rig.receiver.request_queue._describe = describe
    rig.saves[1].set()
    rig.receive()
    rig.put(0)
    rig.receive()
    run = rig.run()
    assert [(found.task.layer, codes(run, cid)) for cid, found in run.tasks.items()] == [
        (0, [Code.BUILD, Code.TRANSFER])
    ]
    assert run.orphans == 0
    assert check(run) == []


def test_what_a_thread_is_in_the_middle_of_is_written_when_the_recording_ends(tmp_path: Path) -> None:
    rig = Rig()
    hung, leave = threading.Event(), threading.Event()

    def hanging(*_: Any) -> None:
        hung.set()
        leave.wait(30)

    for builder in rig.receiver.group_builders:
        builder.build = lambda layer, build=builder.build: (build(layer), hanging())
    rig.put(4)
    rig.save(1)
    rig.sender.sync_save_events[2].synchronize()  # and its event is never set
    rig.loads.stalled(0, time.perf_counter_ns())
    thread = threading.Thread(target=rig.receive, name="receive")
    thread.start()
    assert hung.wait(30)
    spool = Spool(rig.timeline, tmp_path)
    spool.close()
    leave.set()
    thread.join(30)
    (folder,) = find_timelines(tmp_path)
    recording = read(folder)
    found = recording.run()
    assert codes(found) == [Code.SAVE_CPU, Code.SAVE_NPU, Code.BUILD]
    assert found.tasks[0].dequeued is not None
    assert [stall.layer for stall in found.stalls] == [0]
    assert [row.subject for row in recording.records if row.code == Code.SEND_WAIT] == [1, 2]


@pytest.mark.parametrize("where", ["save", "npu", "gate", "gate's event"])
def test_a_wait_that_a_thread_is_still_in_is_met_by_nothing(tmp_path: Path, where: str) -> None:
    """A wait without an end says nothing of its dependency, nor of what was recorded before it."""
    rig, gate, hung, leave = Rig(), Gate(), threading.Event(), threading.Event()
    rig.receiver.poll = 30
    rig.put(4, gate)
    event = rig.npu[1]
    if where != "save":
        rig.save(1)
    if where == "gate's event":
        gate.record(done=False)
        event = gate._event
    if where in ("npu", "gate's event"):
        event.done = False
        event.synchronize = lambda: (hung.set(), leave.wait(30))
    thread = threading.Thread(target=rig.receive, name="receive")
    thread.start()
    while rig.loads.serving.missing is None or not (hung.is_set() or where in ("save", "gate")):
        time.sleep(1e-3)
    while where == "gate" and rig.loads.serving.missing is not DependencyKind.GATE_CONDITION:
        time.sleep(1e-3)
    Spool(rig.timeline, tmp_path).close()
    leave.set()
    rig.save(1)
    gate.record()
    thread.join(30)
    (folder,) = find_timelines(tmp_path)
    found = read(folder).run().tasks[0]
    open_wait = {
        "save": DependencyKind.SAVE_CPU,
        "npu": DependencyKind.SAVE_NPU,
        "gate": DependencyKind.GATE_CONDITION,
        "gate's event": DependencyKind.GATE_NPU,
    }[where]
    assert open_wait not in found.met
    assert all(span.end >= span.begin for span in found.spans)
    assert all(met.at > 0 for met in found.met.values())


def test_a_poll_that_timed_out_has_met_nothing() -> None:
    rig, gate = Rig(), Gate()
    gate.record()
    rig.put(4, gate)
    thread = threading.Thread(target=rig.receive, name="receive")
    thread.start()
    time.sleep(10 * rig.receiver.poll)
    late = time.perf_counter_ns()
    rig.save(1)
    thread.join(30)
    found = rig.run().tasks[0]
    assert sum(span.code == Code.SAVE_CPU for span in found.spans) > 1
    assert found.met[DependencyKind.SAVE_CPU].at >= late


def layer_events(rig: Rig) -> list[tuple[int, int]]:
    return [(row.code, row.subject) for row in sorted(rig.records()[0], key=lambda row: row.t)]


def test_a_layer_of_the_compute_thread_is_one_row_whatever_it_lacks() -> None:
    rig = Rig()
    rig.records()
    gate, late = Gate(), Gate()
    rig.loads.stalled(0, time.perf_counter_ns())
    rig.loads.name_gate(gate)
    gate.record()
    assert layer_events(rig) == []
    rig.loads.save_recorded(0, time.perf_counter_ns())
    assert layer_events(rig) == [(Code.STALL, 0), (Code.GATE_RECORDED, 0), (Code.SAVE_RECORDED, 0)]
    rig.loads.stalled(1, time.perf_counter_ns())
    rig.loads.name_gate(late)
    rig.loads.stalled(2, time.perf_counter_ns())  # a role that saves nothing; the boundary was not recorded
    assert layer_events(rig) == [(Code.STALL, 1)]
    late.record()
    assert layer_events(rig) == [(Code.GATE_RECORDED, 1)]
    rig.loads.save_recorded(5, time.perf_counter_ns())  # a layer that did not stall
    assert layer_events(rig) == [(Code.SAVE_RECORDED, 5)]
    rig.loads.end_step()
    assert layer_events(rig) == [(Code.STALL, 2), (Code.STEP_END, 0)]


def test_a_save_is_one_row_of_the_send_thread_and_one_event_where_it_did_not_wait() -> None:
    rig = Rig()
    rig.records()
    rig.npu[1].done = False
    rig.save(1)
    rig.saves[3].set()  # by the compute thread: the layer has no save task
    rig.sender.sync_save_events[0].synchronize()
    rig.sender.sync_save_events[2].synchronize()
    rig.saves[2].set()
    records = sorted(rig.records()[0])
    assert [(row.code, row.subject) for row in records] == [
        (Code.SEND_WAIT, 1), (Code.SAVE_SET, 1), (Code.SAVE_SET, 3), (Code.SEND_WAIT, 0), (Code.SEND_WAIT, 2),
        (Code.SAVE_SET, 2),
    ]  # fmt: skip
    waited, there = records[0], records[3]
    assert waited.value > waited.t, "it waited"
    assert there.value == there.t, "it did not"


def test_a_save_that_another_thread_sets_is_not_the_send_threads() -> None:
    """Where a layer has nothing to save the compute thread sets its event, also while the send thread is in a put."""
    rig = Rig()
    rig.records()

    def send() -> None:
        rig.sender.sync_save_events[1].synchronize()

    thread = threading.Thread(target=send, name="send")
    thread.start()
    thread.join(30)
    rig.saves[1].set()
    thread = threading.Thread(target=rig.save, args=(2,), name="send-again")
    thread.start()
    thread.join(30)
    found = {(row.code, row.subject): row.thread for row in rig.records()[0]}
    assert found[Code.SAVE_SET, 1] == threading.current_thread().name
    assert found[Code.SAVE_SET, 2] == "send-again"
    assert found[Code.SEND_WAIT, 2] == "send-again"
    assert (Code.SEND_WAIT, 1) in found


def test_a_gate_goes_with_its_last_holder_and_waits_for_no_collection() -> None:
    rig, gate = Rig(), Gate()
    rig.loads.name_gate(gate)
    rig.put(0, gate)
    gate.record()
    rig.receive()
    rig.loads.end_step()
    rig.loads.begin_step()
    seen = weakref.ref(gate)
    del gate
    assert seen() is None


def test_a_recorder_that_fails_says_so_once_and_upstream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise MemoryError("planted")

    rig.timeline.here = Broken()  # type: ignore[assignment]
    for _ in range(3):
        gate = Gate()
        rig.put(4, gate)
        rig.loads.stalled(0, time.perf_counter_ns())
        rig.loads.name_gate(gate)
        gate.record()
        rig.loads.save_recorded(0, time.perf_counter_ns())
        rig.save(1)
        rig.receive()
        rig.loads.end_step()
    assert rig.receiver.request_queue.unfinished_tasks == 0
    assert caplog.text.count("its recorder failed") == 2, "the queue's, and the adapters'"


@pytest.mark.parametrize("writer", ["serving", "sending", "computing"])
def test_a_writer_that_fails_in_the_middle_ends_the_recording_of_all(
    writer: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()

    def layer() -> set[Code]:
        """What a layer of every thread writes."""
        gate = Gate()
        rig.loads.stalled(0, time.perf_counter_ns())
        rig.loads.name_gate(gate)
        rig.put(4, gate)
        gate.record()
        rig.loads.save_recorded(0, time.perf_counter_ns())
        rig.save(1)
        rig.receive()
        return {Code(row.code) for row in rig.records()[0]}

    def broken(row: tuple[int, ...]) -> None:
        raise MemoryError("planted")

    assert {Code.ENQUEUE, Code.STALL, Code.SAVE_RECORDED, Code.SAVE_SET, Code.DONE} <= layer()
    getattr(rig.loads, writer).put = broken
    layer()
    assert layer() == {Code.ENQUEUE}, "the queue's own, which has not failed"
    assert caplog.text.count("its recorder failed") == 1
    assert rig.receiver.request_queue.unfinished_tasks == 0


def test_a_backend_keeps_its_own_face() -> None:
    rig = Rig()
    store = rig.receiver.m_store
    calls: list[tuple[Any, ...]] = []
    client = SimpleNamespace(batch_copy=lambda *what, **how: calls.append((what, how)) or 7, other=5)
    store._of.store = client  # made late
    assert store.store.batch_copy(1, way=2) == 7
    client.batch_copy = lambda *what, **how: 8  # and replaced
    assert store.store.batch_copy() == 8
    assert calls == [((1,), {"way": 2})]
    assert store.store.other == 5
    del store._of.store
    for name in ("store", "nothing"):
        with pytest.raises(AttributeError):
            getattr(store, name)


@given(code=st.sampled_from(sorted(WIDTHS)), data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_row_expands_into_events_of_its_own_integers(code: int, data: st.DataObject) -> None:
    cells = data.draw(st.lists(st.integers(0, 2**62), min_size=WIDTHS[code] - 1, max_size=WIDTHS[code] - 1))
    events = expand((code, *cells))
    assert all(Code(event[1]) in Code for event in events)
    assert {event[0] for event in events} <= set(cells)
    assert len(events) <= 10


@given(cells=st.lists(st.sampled_from([0, 7, 9]), min_size=WIDTHS[Packed.RECEIVED] - 1, max_size=20))
@settings(max_examples=300, deadline=None)
def test_what_did_not_begin_or_did_not_end_is_no_span(cells: list[int]) -> None:
    """The thread that ends the recording empties the stamps, also of a span that another one is in."""
    events = expand((Packed.RECEIVED, *cells[: WIDTHS[Packed.RECEIVED] - 1]))
    spans = [event for event in events if event[1] in (*WAITS, Code.DEQUEUE, Code.DONE)]
    assert all(at for at, *_ in spans)
    assert all(end for _, code, _, end in spans if code in WAITS)


def test_npu_events_are_asked_once_a_wait() -> None:
    rig, asked = Rig(), []

    class Counting(NpuEvent):
        def query(self) -> bool:
            asked.append(self)
            return super().query()

    rig.loads._npu[1] = Counting()  # type: ignore[index]
    rig.put(4)
    rig.saves[1].set()
    rig.receive()
    assert len(asked) == 1
