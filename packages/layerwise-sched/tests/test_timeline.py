"""The recorder and its files: bounded, exact, and careful with what others wrote."""

from __future__ import annotations

import json
import sys
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_sched import DataPath, DependencyKind, Task, TimelineError, make_policy
from layerwise_sched.runs import assemble
from layerwise_sched.simulation import Spec, generate, simulate
from layerwise_sched.spool import Spool, task_lines, task_row
from layerwise_sched.timeline import Code, Proof, Ring, Timeline, met, split_met
from layerwise_sched.timeline_file import find_timelines, make_task, read, seal

if TYPE_CHECKING:
    from pathlib import Path

SPEC = Spec(shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=6_000, straggler_layers=(1, 4), steps=3)


def subjects(ring: Ring) -> list[int]:
    """Of the rows written since they were asked for last."""
    return [row[2] for row in ring.take()[0]]


def test_a_full_ring_counts_what_does_not_fit_and_keeps_what_it_has() -> None:
    ring = Ring("r", rows=3)
    assert ring.capacity == 4
    for number in range(6):
        ring.event(Code.DONE, number, at=number)
    assert ring.dropped == 2
    assert subjects(ring) == [0, 1, 2, 3]
    for number in range(3):  # over the edge of the storage
        ring.event(Code.DONE, 10 + number, at=number)
    assert subjects(ring) == [10, 11, 12]
    assert ring.dropped == 2


def test_a_task_without_room_has_no_row_either() -> None:
    ring = Ring("r", rows=1)
    ring.task(Task(0, 0, 0), 1, at=5)
    ring.task(Task(1, 0, 1), 2, at=6)
    assert ring.take() == ([(Code.ENQUEUE, 5, 0, 1)], [Task(0, 0, 0)])
    assert ring.dropped == 1


def test_the_storage_never_grows() -> None:
    ring = Ring("r", rows=128)
    for number in range(20_000):
        ring.task(Task(number, 0, 0), 1)
        if number % 100 == 0:
            ring.take()
    columns = [cell.cell_contents for cell in ring.put.__closure__ or () if isinstance(cell.cell_contents, list)]
    assert [len(column) for column in columns] == [128]
    last = Task(7, 0, 0, requests=("only here",))
    ring.take()
    ring.task(last, 1)
    assert sys.getrefcount(last) == 3
    ring.take()
    assert sys.getrefcount(last) == 2  # no task is kept alive by a ring that was read


@given(st.lists(st.one_of(st.integers(1, 9), st.none()), max_size=60), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=200, deadline=None)
def test_a_ring_is_a_bounded_queue_whatever_the_pace_of_its_reader(acts: list[int | None], rows: int) -> None:
    ring, kept, lost, number = Ring("r", rows), [], 0, 0
    for act in [*acts, None]:
        if act is None:
            assert subjects(ring) == kept
            kept = []
        for _ in range(act or 0):
            ring.event(Code.DONE, number, at=0)
            kept, lost = (kept, lost + 1) if len(kept) == rows else ([*kept, number], lost)
            number += 1
    assert ring.dropped == lost


def test_a_reader_beside_the_writer_sees_every_row_once_and_in_order() -> None:
    ring, ended, seen = Ring("r", 64), threading.Event(), []

    def read_on() -> None:
        while not ended.is_set():
            seen.extend(subjects(ring))

    reader = threading.Thread(target=read_on)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        reader.start()
        for number in range(20_000):
            ring.event(Code.DONE, number)
        ended.set()
        reader.join()
    finally:
        sys.setswitchinterval(interval)
    seen += subjects(ring)
    assert len(seen) + ring.dropped == 20_000
    assert all(a < b for a, b in pairwise(seen))


def test_threads_have_rings_of_their_own() -> None:
    timeline = Timeline(8)

    def write() -> None:
        timeline.local().event(Code.STEP, 1)

    threads = [threading.Thread(target=write, name=f"t{number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.local().event(Code.STEP, 2)
    assert sorted(ring.name for ring in timeline.rings) == sorted(["t0", "t1", "t2", threading.current_thread().name])


@pytest.mark.parametrize("kind", DependencyKind)
@pytest.mark.parametrize("proof", Proof)
def test_met_values_come_back(kind: DependencyKind, proof: Proof) -> None:
    assert split_met(met(kind, proof)) == (kind, proof)


def spooled(folder: Path) -> Timeline:
    """A simulated run written through rings and a spool, as a worker would."""
    simulated = simulate(generate(SPEC), make_policy("ready"))
    timeline = Timeline(100_000, simulated.plan)
    timeline.policies.append("ready")
    spool = Spool(timeline, folder, facts={"pair": "none"})
    rings = {name: timeline.ring(name) for name in ("compute", "receive", "send")}
    tasks = {task.cid: task for task in simulated.tasks}
    for number, row in enumerate(simulated.records):
        if row.code == Code.ENQUEUE:
            rings[row.thread].task(tasks[row.subject], row.value, row.t)
        else:
            rings[row.thread].event(row.code, row.subject, row.value, row.t)
        if number % 100 == 0:
            spool.flush()
    spool.start()
    spool.close()
    return timeline


def test_what_is_spooled_is_read_back_and_sealed_the_same(tmp_path: Path) -> None:
    spooled(tmp_path)
    (folder,) = find_timelines(tmp_path)
    recording = read(folder)
    direct = simulate(generate(SPEC), make_policy("ready")).run()
    assert recording.run().tasks == direct.tasks
    assert recording.run().steps == direct.steps
    assert recording.plan == direct.plan
    assert recording.policies == ["ready"]
    sealed = seal(recording, tmp_path)
    assert find_timelines(tmp_path) == [sealed]
    again = read(sealed)
    assert again.run() == recording.run()
    assert again.facts == {"pair": "none"}
    lines = [json.loads(line) for line in (sealed / "timeline.jsonl").read_text().splitlines()]
    assert len(lines) == len(recording.records) + len(recording.tasks)
    with pytest.raises(TimelineError, match="never overwritten"):
        seal(recording, tmp_path)


def test_a_killed_processs_spool_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    spooled(tmp_path)
    (folder,) = find_timelines(tmp_path)
    whole = read(folder)
    rows, tasks = folder / "rows.bin", folder / "tasks.jsonl"
    rows.write_bytes(rows.read_bytes()[:-13])
    tasks.write_text(tasks.read_text()[:-5])
    cut = read(folder)
    assert 0 < len(cut.records) < len(whole.records)
    assert len(cut.tasks) == len(whole.tasks) - 1
    assert cut.run().orphans > 0 or len(cut.run().complete) < len(whole.run().complete)


def test_a_process_killed_behind_a_new_threads_rows_leaves_them_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline(64)
    spool = Spool(timeline, tmp_path)
    timeline.ring("compute").event(Code.STEP, 0, 1, at=5)
    spool.flush()
    timeline.ring("receive").event(Code.STEP, 1, 1, at=6)
    write, written = spool._write_meta, (spool.path / "rows.bin").stat().st_size

    def killed(rings: Any) -> None:
        if (spool.path / "rows.bin").stat().st_size > written:
            raise KeyboardInterrupt
        write(rings)

    monkeypatch.setattr(spool, "_write_meta", killed)
    with pytest.raises(KeyboardInterrupt):
        spool.flush()
    assert [(row.t, row.thread) for row in read(spool.path).records] == [(5, "compute"), (6, "receive")]


@given(
    st.lists(
        st.builds(
            Task,
            *[st.integers(0, 2**40)] * 3,
            path=st.sampled_from(DataPath),
            source=st.none() | st.integers(0, 99),
            gate=st.none() | st.integers(0, 2**40),
            chain=st.integers(-1, 99),
            groups=st.lists(st.integers(0, 9), max_size=3).map(tuple),
            requests=st.lists(st.text(max_size=5), max_size=3).map(tuple),
            has_io=st.booleans(),
            final=st.booleans(),
            key_major=st.booleans(),
            slot_waiter=st.booleans(),
        ),
        max_size=4,
    )
)
def test_a_tasks_line_is_its_json(tasks: list[Task]) -> None:
    lines = list(task_lines(tasks))
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    assert [make_task(json.loads(line), "here") for line in lines] == tasks
    assert [json.loads(line) for line in lines] == [json.loads(json.dumps(task_row(task))) for task in tasks]


def test_files_of_others_are_checked(tmp_path: Path) -> None:
    spooled(tmp_path)
    (folder,) = find_timelines(tmp_path)
    meta, tasks, rows = folder / "meta.json", folder / "tasks.jsonl", folder / "rows.bin"
    good = meta.read_text(), tasks.read_text(), rows.read_bytes()
    first = json.loads(good[1].splitlines()[0])
    for change, message in (
        (lambda: meta.write_text("[]"), "must be a JSON object"),
        (lambda: meta.write_text("{"), "cannot be read"),
        (lambda: meta.write_text(good[0].replace('"format": 2', '"format": 9')), "this version reads 2"),
        (lambda: meta.write_text(good[0].replace('"num_layers": 12', '"num_layers": 2')), "prefetch_layer_map"),
        (lambda: tasks.write_text(json.dumps(first | {"layer": "0"}) + "\n" + good[1]), "line 1: layer is '0'"),
        (lambda: tasks.write_text(json.dumps(first | {"path": "x"}) + "\n" + good[1]), "path is 'x'"),
        (lambda: tasks.write_text("{}\n" + good[1]), "a task has the fields"),
        (lambda: rows.write_bytes(b"\xff" * 16 + good[2]), "names ring -1"),
        (lambda: rows.write_bytes(good[2][:16] + (99).to_bytes(8, "little") + good[2][24:]), "unknown code 99"),
        (lambda: rows.write_bytes(good[2][:8] + (3).to_bytes(8, "little") + good[2][16:40]), "does not end in its"),
    ):
        change()
        with pytest.raises(TimelineError, match=message):
            read(folder)
        meta.write_text(good[0])
        tasks.write_text(good[1])
        rows.write_bytes(good[2])
    read(folder)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    timeline = Timeline(64)
    spool = Spool(timeline, tmp_path)
    monkeypatch.setattr("layerwise_sched.spool.task_lines", lambda tasks: (_ for _ in ()).throw(OSError("disk full")))
    timeline.local().task(Task(0, 0, 0), 1)
    spool.flush()
    assert "ends here" in caplog.text
    for _ in range(100):
        timeline.local().event(Code.STEP, 0)
    spool.flush()
    assert timeline.dropped == 100 - 64  # what was taken is lost, what does not fit now is counted


def test_rows_without_their_task_are_counted() -> None:
    simulated = simulate(generate(SPEC), make_policy("fifo"))
    run = assemble(simulated.records, simulated.tasks[1:], simulated.plan)
    assert run.orphans > 3
    assert len(run.tasks) == len(simulated.tasks) - 1
