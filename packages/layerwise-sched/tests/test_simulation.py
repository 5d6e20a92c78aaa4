"""The simulator: exact times by hand, upstream's layout rules, replay."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layerwise_sched import DataPath, DependencyKind, TimelineError, WorkloadError, make_policy
from layerwise_sched.passing import passes
from layerwise_sched.runs import assemble
from layerwise_sched.simulation import Spec, generate, make_plan, simulate, workload_of
from layerwise_sched.simulation.layout import buffers_in_use
from layerwise_sched.simulation.replay import SEEN_NS
from layerwise_sched.simulation.spec_file import spec_of
from layerwise_sched.simulation.workload import ABSENT, StepTimes, Workload
from layerwise_sched.timeline import Code, Proof, Record, met
from strategies import specs

if TYPE_CHECKING:
    from layerwise_sched.runs import Run


def flat(layers: int, **changes: object) -> StepTimes:
    """A step in which nothing takes time but what is named."""
    zero = [0] * layers
    names = (
        "host",
        "post",
        "after",
        "attention",
        "rest",
        "load",
        "save",
        "build",
        "submit",
        "finish",
        "handler",
        "slot",
    )
    values = {name: changes.get(name, zero) for name in names}
    return StepTimes(**values, requests=("r0",))  # type: ignore[arg-type]


def test_two_layers_by_hand() -> None:
    """L0 loads 0..10; attention of L0 runs 12..17, its gate opens at 12; L1 builds 10..11, waits, loads 12..20."""
    times = flat(2, load=[10, 8], host=[2, 2], attention=[5, 5], build=[0, 1], rest=[1, 1])
    result = simulate(Workload(make_plan(2), [times]), make_policy("fifo"))
    run = result.run()
    spans = {(task.task.layer, span.code): (span.begin, span.end) for task in run.tasks.values() for span in task.spans}
    assert spans[0, Code.TRANSFER] == (0, 10)
    assert spans[1, Code.BUILD] == (10, 11)
    assert spans[1, Code.GATE_CONDITION] == (11, 12)
    assert spans[1, Code.GATE_NPU] == (12, 12)
    assert spans[1, Code.TRANSFER] == (12, 20)
    # L1: host 20..22, attention 22..27 (the stream was free from 18), save set at 27, then 1 ns of rest.
    assert result.steps == [(0, 28)]
    assert [(stall.layer, stall.begin, stall.end) for stall in run.stalls] == [(0, 0, 10), (1, 12, 20)]


def test_a_save_delays_the_next_owner_of_its_slot_and_no_other() -> None:
    """One shared slot: L1 and L2 share it, L0 is independent. The save of L1 takes 100."""
    times = flat(3, load=[1, 1, 1], save=[0, 100, 0], attention=[1, 1, 1])
    run = simulate(Workload(make_plan(3, shared_buffers=1, prefetch_layers=3), [times]), make_policy("fifo")).run()
    task = next(task for task in run.tasks.values() if task.task.layer == 2)
    assert task.task.source == 1
    assert run.save_set[0, 1] == 103  # load L0 0..1, attention 1..2; load L1 1..2, attention 2..3; put 3..103
    assert next(span for span in task.spans if span.code is Code.SAVE_CPU).end == 103


def test_passing_is_not_preemptive_and_the_delay_is_counted() -> None:
    """B with the save of L1 ending in the middle of L5's transfer: the head gets ready and is late."""
    spec = Spec(shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=4_500, straggler_layers=(1,), steps=1)
    run = simulate(generate(spec), make_policy("ready")).run()
    (first, *_) = passes(run)
    assert run.tasks[first.passed].task.layer == 4
    head, later = run.tasks[first.passed], run.tasks[first.cid]
    assert (later.dequeued or 0) < (head.ready_at() or 0) < (later.done or 0)
    assert first.late_ns == (later.done or 0) - (head.ready_at() or 0) > 0


def test_the_layout_follows_upstreams_rules() -> None:
    assert make_plan(12, shared_buffers=3).prefetch_layer_map == {4: 1, 5: 2, 6: 3, 7: 4, 8: 5, 9: 6, 10: 7, 11: 8}
    plan = make_plan(12, shared_buffers=3, independent=(0, 5, 6, 10))
    assert plan.prefetch_layer_map == {4: 1, 7: 2, 8: 3, 9: 4, 11: 7}
    special = [int(layer in (2, 5, 8, 11)) for layer in range(12)]
    assert make_plan(12, shared_buffers=3, buckets=special).prefetch_layer_map == {6: 1, 10: 6, 7: 3, 9: 4, 11: 2}
    assert (make_plan(12).prefetch_layers, make_plan(6).prefetch_layers, make_plan(40).prefetch_layers) == (8, 6, 8)
    assert make_plan(12, DataPath.RANGE, shared_buffers=3).prefetch_layer_map == {}
    assert make_plan(12, DataPath.KEY).prefetch_layers == 2
    assert buffers_in_use(make_plan(12, shared_buffers=3)) == 4
    assert make_plan(12, shared_buffers=3, independent=(-1,)).prefetch_layer_map[3] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"num_layers": 0}, "num_layers must be >= 1, got 0"),
        ({"num_layers": 4, "shared_buffers": 0}, "shared_buffers must be >= 1 or None, got 0"),
        ({"num_layers": 4, "prefetch_layers": 0}, "prefetch_layers must be >= 1 or None, got 0"),
        ({"num_layers": 4, "independent": (4,)}, "from -4 to 3, got 4"),
        ({"num_layers": 4, "buckets": (0,)}, "one number a layer"),
    ],
)
def test_what_upstream_refuses_is_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        make_plan(**arguments)  # type: ignore[arg-type]


def test_submission_counts_tasks_and_not_layers() -> None:
    """Layers without load and source are skipped and do not count: run-ahead in layers grows."""
    times = flat(6, load=[1, ABSENT, 1, ABSENT, 1, 1])
    run = simulate(Workload(make_plan(6, prefetch_layers=2), [times]), make_policy("fifo")).run()
    first = [task.task.layer for task in run.tasks.values() if task.enqueued == 0]
    assert first == [0, 2]
    assert [task.task.layer for task in run.tasks.values()] == [0, 2, 4, 5]


def test_the_same_seed_gives_the_same_integers() -> None:
    spec = Spec(spread=0.5, straggler_odds=0.3, straggler_us=100)
    assert generate(spec, 3) == generate(spec, 3)
    assert generate(spec, 3) != generate(spec, 4)


@given(specs(), st.integers(0, 2**16))
@settings(max_examples=60, deadline=None)
def test_without_records_the_times_are_the_same(spec: Spec, seed: int) -> None:
    workload = generate(spec, seed)
    for name in ("fifo", "ready"):
        assert simulate(workload, make_policy(name), record=False).steps == simulate(workload, make_policy(name)).steps


STREAM_BUSY = Spec(shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=6_000, straggler_layers=(1, 4), steps=4)


@pytest.mark.parametrize(
    "spec", [STREAM_BUSY, Spec(steps=3, spread=0.4), Spec(path=DataPath.KEY, steps=3, load_us=100)]
)
def test_a_replay_of_a_simulation_repeats_it_and_predicts_the_other_policy(spec: Spec) -> None:
    workload = generate(spec, 7)
    recorded = simulate(workload, make_policy("fifo"))
    replayed = workload_of(recorded.run())
    assert replayed.skipped == 0
    again = simulate(replayed.workload, make_policy("fifo"))
    order = [task.task.cid for task in recorded.run().served]
    assert [task.task.cid for task in again.run().served] == order
    for policy in ("fifo", "ready"):
        direct = simulate(workload, make_policy(policy)).step_ns
        what_if = simulate(replayed.workload, make_policy(policy)).step_ns
        assert what_if == pytest.approx(direct, rel=0.02), policy


def test_a_slow_call_is_no_wait() -> None:
    """Real threads have no stamp of the stream: only waits. One that found its event complete says nothing, however
    long a busy core made it.
    """
    recorded = simulate(generate(STREAM_BUSY), make_policy("fifo"))
    step_ns = recorded.step_ns
    late = 5_000_000
    rows = [row for row in recorded.records if row.code != Code.MET]
    slow = next(row for row in rows if row.code == Code.SAVE_NPU and row.value == row.t)
    source = next(task.source for task in recorded.tasks if task.cid == slow.subject)
    assert source is not None
    first = next(row for row in rows if row.code == Code.SEND_WAIT and row.subject == source)  # knows it better
    rows = [row._replace(value=row.value + late) if row is slow else row for row in rows if row is not first]
    replayed = workload_of(assemble(rows, recorded.tasks, recorded.plan))
    assert simulate(replayed.workload, make_policy("fifo")).step_ns[1:] == pytest.approx(step_ns[1:], rel=0.02)
    asked = Record(slow.t + 1, Code.UNMET, slow.subject, DependencyKind.SAVE_NPU, slow.thread)
    believed = workload_of(assemble([*rows, asked], recorded.tasks, recorded.plan))
    times = [sum(load.workload.steps[0].attention[: source + 1]) for load in (replayed, believed)]
    assert times[1] > times[0] + late // 2


@pytest.mark.parametrize("bracketed", [True, False], ids=["seen on both sides", "seen incomplete only"])
@pytest.mark.parametrize("mixed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("post_us", [None, 3_000])
def test_a_stream_that_only_the_sampler_saw_busy_is_busy_in_the_replay(
    bracketed: bool, mixed: int | None, post_us: int | None
) -> None:
    """Real threads: the stream's time behind a save is known where a boundary was seen not reached yet. Where nobody
    asked their median stands in: in every second step, or in half of all layers at random (`mixed`, the seed). post_us:
    the save is issued so long after a short attention, in every third step.
    """
    spec = replace(
        STREAM_BUSY, steps=8, load_us=9_200, save_us=1_200, attention_us=4_000, rest_us=4_000, host_us=800,
        straggler_us=24_000,
    )  # fmt: skip
    if post_us is not None:
        spec = replace(spec, attention_us=200)
    workload = generate(spec)
    for step in workload.steps[::3] if post_us is not None else ():
        step.post[:] = [post_us * 1_000] * spec.layers  # type: ignore[index, operator]
    recorded = simulate(workload, make_policy("ready"))
    draw = random.Random(mixed)
    model = {(row.subject, row.value // 4): row.t for row in recorded.records if row.code == Code.MET}
    tasks = {task.cid: task for task in recorded.tasks}
    period, rows, asked = 100_000, [], 0
    for row in recorded.records:
        if row.code == Code.MET:
            continue
        at_once = row.code == Code.SEND_WAIT  # as if the send thread had been late for every save
        rows.append(row._replace(t=row.value) if at_once else row)
    for (cid, kind), at in model.items():
        if kind == DependencyKind.GATE_NPU and (tasks[cid].step % 2 if mixed is None else draw.random() < 0.5):
            asked += 1
            rows.append(Record(at - period, Code.UNMET, cid, kind, "side"))
            if bracketed:
                rows.append(Record(at + period, Code.MET, cid, met(DependencyKind.GATE_NPU, Proof.QUERY), "side"))
    assert asked > 20
    blind = workload_of(assemble([row for row in rows if row.thread != "side"], recorded.tasks, recorded.plan))
    seen = workload_of(assemble(rows, recorded.tasks, recorded.plan))
    off = [worst_gate_ns(recorded.run(), simulate(load.workload, make_policy("ready")).run()) for load in (blind, seen)]
    if post_us is None:
        assert off[1] < SEEN_NS < off[0] / 5, off
    else:  # how much of a layer's time was its attention nobody saw, and here it decides
        assert off[1] < off[0] / 2, off


def test_an_idle_stream_that_is_slow_to_wake_up_is_not_busy() -> None:
    """On real threads an event that is recorded into an idle stream is complete a wake-up later, and a look may fall in
    between. The time before it is the host's stall, not the stream's work.
    """
    recorded = simulate(generate(STREAM_BUSY), make_policy("fifo"))
    rows = [row for row in recorded.records if row.code != Code.MET]
    boundaries = {row.subject: row.t for row in rows if row.code == Code.GATE_RECORDED}
    side = []
    for task in recorded.tasks:
        if task.gate is not None and task.has_io:
            kind, at = DependencyKind.GATE_NPU, boundaries[task.gate]
            side.append(Record(at + 200_000, Code.UNMET, task.cid, kind, "side"))
            side.append(Record(at + 500_000, Code.MET, task.cid, met(kind, Proof.QUERY), "side"))
    assert len(side) > 40
    plain, seen = (workload_of(assemble(more, recorded.tasks, recorded.plan)) for more in (rows, [*rows, *side]))
    assert seen.workload == plain.workload


def worst_gate_ns(real: Run, replayed: Run) -> int:
    """How far apart the stream reached an attention boundary, at most, from the step's begin, ns."""
    at: list[dict[tuple[int, int], int]] = []
    for run in (real, replayed):
        begins = [step.begin for step in run.steps]
        at.append(
            {
                (found.task.step, found.task.layer): found.met[DependencyKind.GATE_NPU].at - begins[found.task.step]
                for found in run.tasks.values()
                if DependencyKind.GATE_NPU in found.met
            }
        )
    return max(abs(at[0][key] - at[1][key]) for key in at[0])


def test_a_replay_leaves_out_steps_that_are_not_whole() -> None:
    recorded = simulate(generate(STREAM_BUSY), make_policy("fifo"))
    lost = next(task.cid for task in recorded.tasks if task.step == 2)
    recorded.records = [row for row in recorded.records if not (row.code == Code.DONE and row.subject == lost)]
    replayed = workload_of(recorded.run())
    assert (replayed.skipped, len(replayed.workload.steps)) == (1, 3)
    with pytest.raises(TimelineError, match="has no plan"):
        workload_of(replace(recorded.run(), plan=None))
    with pytest.raises(TimelineError, match="no whole step"):
        workload_of(assemble([], [], recorded.plan))


def test_spec_files_name_what_is_wrong() -> None:
    assert spec_of({"path": "gva", "layers": 4, "load_us": 10, "independent": [0, -1]}, "f").layers == 4
    for row, words in (
        ([], "must be a JSON object"),
        ({"layer": 1}, "there is no field 'layer'"),
        ({"layers": 1.5}, "layers must be a whole number, got 1.5"),
        ({"layers": True}, "layers must be a whole number, got True"),
        ({"path": "x"}, "path must be one of gva, range, key, got 'x'"),
        ({"load_us": "1"}, "load_us must be a number"),
        ({"independent": 3}, "independent must be a list"),
        ({"saving_rank": 1}, "saving_rank must be true or false"),
        ({"steps": 0}, "steps must be >= 1"),
        ({"load_us": -1}, "load_us must be from 0"),
        ({"names": [1]}, "names must be a list of request ids"),
    ):
        with pytest.raises(WorkloadError, match=words):
            spec_of(row, "f")
