"""The simulator: one compute thread, its in-order stream, one send thread and one receive thread, event by event.

Time is an integer number of nanoseconds and nothing is rounded, so a run is reproducible to the bit. The compute
thread and the receive thread are two actors; stream and send thread are in order, so their times follow at once from
the compute thread's. The receive thread decides at time t only when the compute thread's next act lies after t: all
that is true at t is then known. It serves a task without preemption, and in upstream's order of waits (GVA: save CPU,
save NPU, build, gate; range and key: gate before build), so the risk of passing a head that gets ready is in the times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layerwise_sched.dispatch import Counts, Dispatcher
from layerwise_sched.errors import WorkloadError
from layerwise_sched.legal import HOLD
from layerwise_sched.model import DataPath, DependencyKind, LayerPlan, Task
from layerwise_sched.runs import Run, assemble
from layerwise_sched.simulation.workload import ABSENT
from layerwise_sched.timeline import Code, Proof, Record, met

if TYPE_CHECKING:
    from layerwise_sched.policy import Policy
    from layerwise_sched.simulation.workload import StepTimes, Workload

UNKNOWN = -1
_HOST, _RECV, _SEND = "compute", "receive", "send"


@dataclass(slots=True)
class Simulated:
    """What a simulation gave. steps: (begin, end) of each forward pass, ns. counts: the dispatcher's.

    records and tasks are empty where `record` was False.
    """

    plan: LayerPlan
    policy: str
    num_tasks: int = 0
    steps: list[tuple[int, int]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    records: list[Record] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)

    @property
    def step_ns(self) -> list[int]:
        """Duration of each forward pass, ns."""
        return [end - begin for begin, end in self.steps]

    def run(self) -> Run:
        """The same, assembled as a recorded timeline is."""
        return assemble(self.records, self.tasks, self.plan, [self.policy])


class DeadlockError(WorkloadError):
    """The receive thread waits for what only the compute thread can do, and that waits for the receive thread."""


def simulate(
    workload: Workload, policy: Policy, *, record: bool = True, max_hold_ns: int = 1_000_000_000, poll_ns: int = 0
) -> Simulated:
    """Run a workload under a policy. Raises DeadlockError where the order that was chosen cannot go on.

    record: keep the rows of a timeline; without, only step times and counts. max_hold_ns: as in the configuration.
    poll_ns: how long after an NPU event completes a held queue is looked at again (the real one polls); 0: at once.
    """
    result = Simulated(workload.plan, policy.name)
    engine = _Engine(workload, policy, result, record, max_hold_ns, poll_ns)
    for number, step in enumerate(workload.steps):
        engine.step(number, step)
    result.counts = engine.dispatcher.counts
    result.num_tasks = engine.cid
    return result


class _Engine:
    """The state of one simulation; also the `Readiness` that its policy asks."""

    def __init__(
        self, workload: Workload, policy: Policy, result: Simulated, record: bool, max_hold_ns: int, poll_ns: int
    ) -> None:
        self.workload = workload
        self.plan = workload.plan
        self.result = result
        self.record = record
        self.poll_ns = poll_ns
        self.now = 0
        self.dispatcher = Dispatcher(policy, self, max_hold_ns, now=lambda: self.now)
        self.cid = 0
        self.number = 0
        self.host_at = self.recv_at = self.stream_at = self.send_at = 0
        self.rows = result.records
        self.queue: list[Task] = []
        if record:
            self._row(0, Code.POLICY, 0, 0, _RECV)

    # What the policy asks.

    def missing(self, task: Task) -> DependencyKind | None:
        """See `Readiness`; at the simulated moment `now`."""
        now = self.now
        source = task.source
        if source is not None:
            at = self.save_set[source]
            if at == UNKNOWN or at > now:
                return DependencyKind.SAVE_CPU
            if self.save_npu[source] > now and task.path is not DataPath.KEY:
                return DependencyKind.SAVE_NPU
        if task.gate is not None and task.has_io:
            layer = task.gate - self.first_gate
            at = self.gate_set[layer]
            if at == UNKNOWN or at > now:
                return DependencyKind.GATE_CONDITION
            if self.gate_npu[layer] > now:
                return DependencyKind.GATE_NPU
        return DependencyKind.SLOT_RELEASE if task.slot_waiter else None

    # One forward pass.

    def step(self, number: int, times: StepTimes) -> None:
        """Run one step to its end."""
        layers = self.plan.num_layers
        self.number, self.times = number, times
        self.first_gate = number * layers
        self.gate_set, self.gate_npu = [UNKNOWN] * layers, [UNKNOWN] * layers
        self.save_set, self.save_npu = [UNKNOWN] * layers, [UNKNOWN] * layers
        self.load_done = [UNKNOWN] * layers
        self.layer = 0
        self.next_layer = 0
        self.waiting = False
        self.entered = 0
        self.host_at += times.gap
        begin = self.host_at
        if self.record:
            self._row(begin, Code.STEP, number, len(times.requests), _HOST)
        while self.layer < layers or self.queue:
            self._turn(layers)
        saves = self.save_set if self.plan.path is DataPath.RANGE else self.save_set[-1:]
        end = self.host_at = max(self.host_at, self.stream_at, *saves)
        self.result.steps.append((begin, end))
        if self.record:
            self._row(end, Code.STEP_END, number, 0, _HOST)

    def _turn(self, layers: int) -> None:
        """Let the actor act whose time comes first."""
        queue = self.queue
        host_acts = self.layer < layers and not (self.waiting and self.load_done[self.layer] == UNKNOWN)
        if not queue:
            if not host_acts:
                raise DeadlockError(f"step {self.number}: layer {self.layer} waits for a load that nobody enqueued")
            self._host()
            return
        at = max(self.recv_at, self.enqueued_at)
        if host_acts and self.host_at <= at:
            self._host()
            return
        self.now = at
        index = self.dispatcher.choose(queue) if self.dispatcher.reorders else 0
        if index == HOLD:
            self._hold(host_acts)
        else:
            self._serve(index)

    def _hold(self, host_acts: bool) -> None:
        """Nothing may run yet: look again when the next thing happens that a queued task may wait for."""
        now, first = self.now, self.first_gate
        following = [self.host_at] if host_acts and self.host_at > now else []
        for task in self.queue:
            if task.source is not None:
                following += [self.save_set[task.source], self.save_npu[task.source] + self.poll_ns]
            if task.gate is not None:
                layer = task.gate - first
                following += [self.gate_set[layer], self.gate_npu[layer] + self.poll_ns]
        if (limit := self.dispatcher.held_until) is not None:
            following.append(limit)
        if self.record and (missing := self.missing(self.queue[0])) is not None:
            self._row(now, Code.HOLD, self.queue[0].cid, missing, _RECV)
        self.recv_at = min(at for at in following if at > now)

    def _host(self) -> None:
        """The compute thread's next act: enter a layer, or run it once its load is there."""
        layer, times, at = self.layer, self.times, self.host_at
        if not self.waiting:
            self.entered = at
            self._submit(layer, at)
            if times.load[layer] != ABSENT or layer in self.plan.prefetch_layer_map:
                self.waiting = True
                if self.load_done[layer] == UNKNOWN:
                    return
        if self.waiting:
            at = max(at, self.load_done[layer])
        self.waiting = False
        if self.record:
            self._row(self.entered, Code.STALL, layer, at, _HOST)
        at += times.host[layer]
        self.gate_set[layer] = at
        reached = max(at, self.stream_at)
        self.gate_npu[layer] = reached
        computed = reached + times.attention[layer]
        gate = self.first_gate + layer
        if self.record:
            self._row(at, Code.GATE_RECORDED, gate, layer, _HOST)
        at += times.post[layer]
        self.save_npu[layer] = saved = max(at, computed)
        self.stream_at = saved + times.rest[layer]
        put = times.save[layer]
        if put == ABSENT:
            self.save_set[layer] = at
        else:
            free = max(self.send_at, at)
            self.send_at = self.save_set[layer] = max(free, saved) + put
            if self.record:
                self._row(free, Code.SEND_WAIT, layer, max(free, saved), _SEND)
        if self.record:
            self._row(at, Code.SAVE_RECORDED, layer, self.number, _HOST)
            self._row(self.save_set[layer], Code.SAVE_SET, layer, self.number, _HOST if put == ABSENT else _SEND)
        self.host_at = at + times.after[layer]
        self.layer = layer + 1

    def _submit(self, layer: int, at: int) -> None:
        """Upstream's rule: the first layer's burst, then one task a layer; layers without anything do not count."""
        plan, times = self.plan, self.times
        count = plan.prefetch_layers if layer == 0 else 1
        if self.workload.window:
            count = max(0, layer + plan.prefetch_layers + 1 - self.next_layer)
        gate = self.first_gate + layer
        while count > 0 and self.next_layer < plan.num_layers:
            number = self.next_layer
            self.next_layer += 1
            source = plan.prefetch_layer_map.get(number)
            has_io = times.load[number] != ABSENT
            if not has_io and source is None:
                continue
            count -= 1
            task = Task(
                self.cid,
                self.number,
                number,
                plan.path,
                source,
                gate if has_io and number != layer else None,
                plan.chains[number],
                times.groups[number] if times.groups else (0,),
                times.requests,
                has_io,
                number == plan.num_layers - 1,
                plan.path is DataPath.RANGE,
                self.workload.slot_waiter,
            )
            self.cid += 1
            self.queue.append(task)
            if self.record:
                self.result.tasks.append(task)
                self._row(at, Code.ENQUEUE, task.cid, len(self.queue), _HOST)
        self.enqueued_at = at

    def _serve(self, index: int) -> None:
        """The receive thread takes a task and stays with it to the end."""
        task, now = self.queue.pop(index), self.now
        layer, source, times = task.layer, task.source, self.times
        has_gate = task.gate is not None and task.has_io
        if source is not None:
            self._until(self.save_set, source, task)
        if has_gate:
            self._until(self.gate_set, task.gate - self.first_gate, task)  # type: ignore[operator]
        start = now + times.handler[layer]
        spans: list[tuple[Code, int, int]] = []
        at = start
        if source is not None:
            at = _wait(spans, Code.SAVE_CPU, at, self.save_set[source])
            if task.path is not DataPath.KEY:
                at = _wait(spans, Code.SAVE_NPU, at, self.save_npu[source])
        builds_first = task.path is DataPath.GVA
        if task.has_io and builds_first:
            at = _wait(spans, Code.BUILD, at, at + times.build[layer])
        if has_gate:
            gate = task.gate - self.first_gate  # type: ignore[operator]
            at = _wait(spans, Code.GATE_CONDITION, at, self.gate_set[gate])
            at = _wait(spans, Code.GATE_NPU, at, self.gate_npu[gate])
        if task.has_io and not builds_first:
            at = _wait(spans, Code.BUILD, at, at + times.build[layer])
        if task.slot_waiter:
            at = _wait(spans, Code.SLOT_RELEASE, at, now + times.slot[layer])
        if task.has_io:
            at += times.submit[layer]
            at = _wait(spans, Code.TRANSFER, at, at + times.load[layer])
        at += times.finish[layer]
        self.load_done[layer] = self.recv_at = at
        if self.waiting and self.layer == layer:
            self.host_at = max(self.host_at, at)
        if self.record:
            self._record(task, index, now, spans, at)

    def _until(self, known: list[int], layer: int, task: Task) -> None:
        """Let the compute thread go on until it has passed `layer`."""
        while known[layer] == UNKNOWN:
            if self.layer >= self.plan.num_layers or (self.waiting and self.load_done[self.layer] == UNKNOWN):
                raise DeadlockError(
                    f"step {self.number}: the receive thread holds layer {task.layer}, which waits for layer {layer}; "
                    f"the compute thread waits for the load of layer {self.layer}"
                )
            self._host()

    def _record(self, task: Task, index: int, now: int, spans: list[tuple[Code, int, int]], done: int) -> None:
        cid = task.cid
        self._row(now, Code.DEQUEUE, cid, index, _RECV)
        for code, begin, end in spans:
            self._row(begin, code, cid, end, _RECV)
        if task.source is not None and task.path is not DataPath.KEY:
            value = met(DependencyKind.SAVE_NPU, Proof.MODEL)
            self._row(self.save_npu[task.source], Code.MET, cid, value, _RECV)
        if task.gate is not None and task.has_io:
            value = met(DependencyKind.GATE_NPU, Proof.MODEL)
            self._row(self.gate_npu[task.gate - self.first_gate], Code.MET, cid, value, _RECV)
        self._row(done, Code.DONE, cid, len(self.queue), _RECV)

    def _row(self, t: int, code: Code, subject: int, value: int, thread: str) -> None:
        self.rows.append(Record(t, code, subject, value, thread))


def _wait(spans: list[tuple[Code, int, int]], code: Code, at: int, until: int) -> int:
    """A span from `at` to `until`, of no length where that is past; returns where it ends."""
    end = max(at, until)
    spans.append((code, at, end))
    return end
