"""One worker's layer-wise loads: the queue that is put in, what a task waits for, and what is told about it.

Everything on a thread is put in per instance, after its `__init__` and before its `start`: `run` blocks in the queue
that it found first. Upstream's handler, events, leases, `task_done`, exceptions and failure polls stay its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from layerwise_sched.adapters import views
from layerwise_sched.adapters.marks import mark_gate, mark_save
from layerwise_sched.adapters.process import Control
from layerwise_sched.adapters.recorder import Computing, Recorder, Sending, Serving
from layerwise_sched.dispatch import Dispatcher
from layerwise_sched.model import DataPath, DependencyKind, LayerPlan, Task, owner_chains, task_of
from layerwise_sched.policy import make_policy
from layerwise_sched.rows import DEQUEUED
from layerwise_sched.sampler import Sampler
from layerwise_sched.task_queue import TaskQueue
from layerwise_sched.timeline import NO_TASK, Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_sched.adapters.marks import GateMark
    from layerwise_sched.adapters.process import Numbers
    from layerwise_sched.config import Config

logger = logging.getLogger(__name__)
# A member is looked up through its class's metaclass, which costs more than the question it answers.
KEY, RANGE = DataPath.KEY, DataPath.RANGE
SAVE_CPU, SAVE_NPU = DependencyKind.SAVE_CPU, DependencyKind.SAVE_NPU
GATE_CONDITION, GATE_NPU = DependencyKind.GATE_CONDITION, DependencyKind.GATE_NPU
SLOT_RELEASE = DependencyKind.SLOT_RELEASE


class Loads:
    """What the hooks of one `KVPoolWorker` share. Implements `Readiness` for its receive thread.

    numbers: correlation ids, steps and gate ids, and the timeline if one is on; shared by the workers of a process
    that write to one folder.
    """

    def __init__(self, config: Config, numbers: Numbers, worker: Any) -> None:
        self.config = config
        self.numbers = numbers
        self.worker = worker
        self.step = -1
        self.requests = 0
        self.held = 0  # leases
        self.queue: TaskQueue | None = None
        self.receiver: Any = None
        self.plan: LayerPlan | None = None
        self.recorder = Recorder(numbers.timeline) if numbers.timeline is not None else None
        self.serving: Serving | None = None
        self.sending: Sending | None = None
        self.computing: Computing | None = None
        self.sampler: Sampler | None = None
        self.control = Control(config.control) if config.control is not None else None
        self._gates: dict[int, Any] = {}
        self._saves: list[Any] = []
        self._npu: list[Any] | None = None

    # -- putting in -------------------------------------------------------------------------------------------------
    def attach(self, receiver: Any) -> None:
        """Put the queue, and with a timeline the views, on a receive thread that has not started."""
        if receiver.is_alive() or not receiver.request_queue.empty():
            raise RuntimeError(f"{receiver.name} runs already: nothing can be put in")
        self.receiver = receiver
        self.plan = self._make_plan(receiver)
        self._saves = list(receiver.layer_save_finished_events)
        self._npu = getattr(receiver, "sync_save_events", None)
        config = self.config
        options = {"lookahead": config.lookahead}
        dispatcher = Dispatcher(
            make_policy(config.policy, **options), self, config.max_hold_ms * 1_000_000, on_fault=self._policy_failed
        )
        queue = TaskQueue(self.describe, dispatcher, self.numbers.timeline, config.poll_us / 1e6)
        for layer, event in enumerate(self._saves):
            mark_save(event, self, layer)
        if self.recorder is not None:
            self._watch(receiver, queue)
        self.queue = queue
        receiver.request_queue = queue
        queue.use(dispatcher.policy)

    def _watch(self, receiver: Any, queue: TaskQueue) -> None:
        """The timeline's side of `attach`."""
        timeline, recorder = self.numbers.timeline, self.recorder
        assert timeline is not None
        assert recorder is not None
        serving, sending = Serving(recorder, queue), Sending(recorder)
        self.serving, self.sending, self.computing = serving, sending, Computing(recorder)
        timeline.closing += [serving.write_open, sending.write_open, self.computing.write_open]
        timeline.plan = self.plan
        receiver.layer_save_finished_events = [views.SaveView(event, serving) for event in self._saves]
        if self._npu is not None:
            receiver.sync_save_events = [views.NpuView(self._npu, index, serving) for index in range(len(self._npu))]
        # The send thread runs already, and looks its events up at each use.
        sender: Any = getattr(self.worker, "kv_send_thread", None)
        if events := getattr(sender, "sync_save_events", None):
            sender.sync_save_events = [views.SendView(events, index, sending) for index in range(len(events))]
        key_based = self._path(receiver) is DataPath.KEY
        receiver.m_store = views.StoreView(receiver.m_store, serving, self.leases, parts=key_based)
        builders = getattr(receiver, "group_builders", None) or [getattr(receiver, "layer_batch_builder", None)]
        for builder in {id(builder): builder for builder in builders if builder is not None}.values():
            views.watch_builder(builder, serving)
        self.slot_waiter_changed()
        queue.taken = serving.taken
        receiver._handle_request = _handling(receiver._handle_request, queue, serving)
        queue.task_done = _counting(queue.task_done, queue, serving)  # type: ignore[method-assign]
        if self.config.sample_us:
            ring = timeline.ring(f"{receiver.name}-sampler")
            self.sampler = Sampler(queue, self, ring, self.config.sample_us / 1e6)
            self.sampler.start()

    def _make_plan(self, receiver: Any) -> LayerPlan:
        worker, count = self.worker, len(receiver.layer_load_finished_events)
        sources = dict(worker.prefetch_layer_map)
        extra = getattr(worker, "_extra_config", None) or {}
        return LayerPlan(
            num_layers=count,
            prefetch_layers=int(worker.num_prefetch_layers),
            prefetch_layer_map=sources,
            chains=owner_chains(sources, count),
            shared_buffers=extra.get("layerwise_num_shared_buffers"),
            path=self._path(receiver),
        )

    def _path(self, receiver: Any) -> DataPath:
        if not hasattr(receiver, "sync_save_events"):
            return DataPath.KEY
        return DataPath.RANGE if getattr(self.worker, "use_block_key_layerwise", False) else DataPath.GVA

    def slot_waiter_changed(self) -> None:
        """Another connector's waiter was installed, at the start or later."""
        receiver = self.receiver
        waiter = getattr(receiver, "external_slot_release_waiter", None)
        if waiter is not None and self.serving is not None and not hasattr(waiter, "_layerwise"):
            receiver.external_slot_release_waiter = views.slot_waiter(waiter, self.serving)

    # -- what a task is, and waits for ------------------------------------------------------------------------------
    def describe(self, data: Any) -> Task:
        """The Task of upstream's `LayerLoadTask`. Called by the compute thread, in `put`."""
        transfers = data.transfer_tasks
        layer = data.layer_id
        gate, gate_id = data.attention_start_gate, None
        if gate is not None:
            gate_id = self._mark(gate).ident
            self._gates[gate_id] = gate
        if len(transfers) == 1:
            groups = (transfers[0].group_id,)
        else:
            groups = tuple(dict.fromkeys([transfer.group_id for transfer in transfers]))
        requests: tuple[str, ...] = ()
        if self.recorder is not None:
            if len(transfers) == 1 and len(parts := transfers[0].block_ranges) == 1:
                requests = (parts[0].request.req_id,)
            else:
                found = {part.request.req_id for transfer in transfers for part in transfer.block_ranges}
                requests = tuple(sorted(found))
        plan, receiver = self.plan, self.receiver
        assert plan is not None
        key_major = bool(transfers) and getattr(transfers[0], "use_key_major_ranges", False)
        # The fields in their order, and no keywords: this runs in the compute thread, for every layer.
        return task_of(
            (
                self.numbers.new_cid(),
                self.step,
                layer,
                RANGE if key_major else plan.path,
                data.wait_for_save_layer,
                gate_id,
                plan.chains[layer] if layer < plan.num_layers else -1,
                groups,
                requests,
                bool(transfers),
                layer == receiver.final_layer_id,
                key_major,
                getattr(receiver, "external_slot_release_waiter", None) is not None,
            )
        )

    def _mark(self, gate: Any) -> GateMark:
        mark: GateMark | None = gate.__dict__.get("_layerwise")
        return mark_gate(gate, self.numbers.new_gate(), self.worker.current_layer, self) if mark is None else mark

    def name_gate(self, gate: Any) -> None:
        """Give the gate of a layer its id, also where no task carries it: its boundary is on the timeline too."""
        computing = self.computing
        if computing is not None:
            try:
                mark = self._mark(gate)
                computing.gate = mark if mark.opened is None else None
            except Exception:
                computing.recorder.fail()

    def missing(self, task: Task) -> DependencyKind | None:
        """See `Readiness`. Asks events only: no lock is taken, nothing is waited for."""
        serving = self.serving
        if serving is not None and serving.cid == task.cid:
            return serving.missing  # its handler has cleared what it waited for: only the handler knows
        source = task.source
        if source is not None:
            if not self._saves[source].is_set():
                return SAVE_CPU
            # Asked behind the CPU event only: until that, the NPU event may still be the last step's.
            if (npu := self._npu) is not None and task.path is not KEY and not npu[source].query():
                return SAVE_NPU
        if task.gate is not None and task.has_io:
            gate = self._gates.get(task.gate)
            event = None if gate is None else gate._event
            if event is None:
                return GATE_CONDITION
            if not event.query():
                return GATE_NPU
        if task.slot_waiter or getattr(self.receiver, "external_slot_release_waiter", None) is not None:
            return SLOT_RELEASE
        return None

    # -- told by upstream's objects; none of these may raise ----------------------------------------------------------
    def save_finished(self, layer: int) -> None:
        """A save's CPU event was set."""
        if (sending := self.sending) is not None:
            sending.save_set(self.step, layer)
        self._wake()

    def gate_opened(self, mark: GateMark) -> None:
        """An attention boundary was recorded. The gate's lock is held."""
        computing = self.computing
        if computing is not None and mark is not computing.gate:
            computing.opened(mark)
        self._wake()

    def _wake(self) -> None:
        queue = self.queue
        if queue is not None and queue.reorders:
            queue.wake()

    def leases(self, change: int) -> None:
        """Leases were taken or let go of; the depth of the backend's own queue is not known."""
        self.held += change
        if self.recorder is not None:
            self.recorder.event(Code.LEASES, self.held, -1)

    def give_up(self) -> None:
        """Nothing was put on the receive thread: record nothing of its worker either."""
        self.recorder = self.serving = self.sending = self.computing = self.queue = None

    def _policy_failed(self, error: Exception) -> None:
        if self.numbers.timeline is not None:
            self.numbers.timeline.policy("fifo", fallback=True)

    # -- the compute thread -------------------------------------------------------------------------------------------
    def begin_step(self) -> None:
        """A forward pass begins."""
        self.step = self.numbers.new_step()
        queue = self.queue
        if queue is not None and not queue.tasks:
            self._gates.clear()
        if (computing := self.computing) is not None:
            computing.begin_step(self.step, self.requests)
        if self.control is not None:
            self.control.follow(self)

    def end_step(self) -> None:
        """It ended."""
        if (computing := self.computing) is not None:
            computing.end_step()

    def stalled(self, layer: int, begin: int) -> None:
        """The compute thread was in `wait_for_layer_load` of this layer since `begin` (ns)."""
        if (computing := self.computing) is not None:
            computing.stalled(layer, begin)

    def save_recorded(self, layer: int, at: int) -> None:
        """The NPU event of this layer's save was recorded at `at` (ns)."""
        if (computing := self.computing) is not None:
            computing.saved(layer, at)

    def use(self, name: str) -> None:
        """Put another policy in force now. Raises PolicyError for an unknown name."""
        policy = make_policy(name, lookahead=self.config.lookahead)
        if self.queue is not None:
            self.queue.use(policy)


def _handling(handle: Callable[[Any], None], queue: TaskQueue, serving: Serving) -> Callable[[Any], None]:
    """The receive thread's handler: the gate of each task is looked at, and a failure noted."""

    stamps = serving.stamps

    def handling(data: Any) -> None:
        task = queue.current
        if task is not None:
            gate = data.attention_start_gate
            if gate is not None and (mark := gate.__dict__.get("_layerwise")) is not None:
                data.attention_start_gate = views.GateView(gate, mark, serving)
        try:
            handle(data)
        except BaseException:
            if task is not None:
                serving.write_open()
                serving.recorder.event(Code.FAILED, task.cid)
            raise
        finally:
            queue.waiting = False
            if serving.cid != NO_TASK or any(stamps[DEQUEUED:]):  # not done, or an item without a task
                serving.over()

    return handling


def _counting(task_done: Callable[[], None], queue: TaskQueue, serving: Serving) -> Callable[[], None]:
    """The queue's `task_done`, with the task's last row."""

    def counting() -> None:
        task_done()
        task = queue.current
        if task is not None:
            serving.done(task[0], len(queue.tasks))

    return counting
