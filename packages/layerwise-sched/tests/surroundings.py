"""What the adapters see of a worker and of its receive and send threads, without an engine: events that a test sets.

The handler is our own words, in the order of upstream's waits; the engine tests run the hooks on the real threads.
"""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from layerwise_sched.adapters.loads import Loads
from layerwise_sched.adapters.process import Numbers
from layerwise_sched.config import Config
from layerwise_sched.rows import expand
from layerwise_sched.runs import Run, assemble
from layerwise_sched.task_queue import TaskQueue
from layerwise_sched.timeline import Record, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCES = {4: 1, 5: 2}
LAYERS = 6


class NpuEvent:
    """An event of a stream; a wait for it completes it."""

    def __init__(self, done: bool = True) -> None:
        self.done = done

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


class Gate:
    """Upstream's gate, as far as the adapters and a handler know it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._event: NpuEvent | None = None

    def record(self, done: bool = True) -> None:
        with self._condition:
            self._event = NpuEvent(done)
            self._condition.notify_all()

    def wait(self, timeout: float = 10.0) -> bool:
        with self._condition:
            while self._event is None:
                if not self._condition.wait(timeout):
                    return False
        self._event.synchronize()
        return True


class Builder:
    def build_addrs(self, *what: Any) -> tuple[Any, ...]:
        return what

    def build(self, *what: Any) -> tuple[Any, ...]:
        return self.build_addrs(*what)


class Receiver:
    """A receive thread that has not started. groups, calls: how many builds and backend calls a task has."""

    name = "receiver"
    external_slot_release_waiter: Callable[[int], None] | None = None
    poll = 0.01

    def __init__(self, groups: int = 1, calls: int = 1, *, key: bool = False) -> None:
        self.request_queue: Any = queue.Queue()
        self.layer_save_finished_events: list[Any] = [threading.Event() for _ in range(LAYERS)]
        self.layer_load_finished_events = [threading.Event() for _ in range(LAYERS)]
        if not key:
            self.sync_save_events: list[Any] = [NpuEvent() for _ in range(LAYERS)]
            self.group_builders = [Builder() for _ in range(groups)]
        self.final_layer_id = LAYERS - 1
        self.m_store: Any = SimpleNamespace(store=SimpleNamespace(batch_copy=lambda *_: 0), get=lambda *_: None)
        self.calls, self.key = calls, key

    def is_alive(self) -> bool:
        return False

    def _handle_request(self, data: Any) -> None:
        source, gate = data.wait_for_save_layer, data.attention_start_gate
        if source is not None:
            while not self.layer_save_finished_events[source].wait(timeout=self.poll):
                pass
            if not self.key:
                self.sync_save_events[source].synchronize()
            self.layer_save_finished_events[source].clear()
        for builder in () if self.key else self.group_builders:
            builder.build(data.layer_id)
        if gate is not None:
            while not gate.wait(timeout=self.poll):
                pass
        if (waiter := self.external_slot_release_waiter) is not None:
            waiter(data.layer_id)
        for _ in range(self.calls if data.transfer_tasks else 0):
            self.m_store.get([]) if self.key else self.m_store.store.batch_copy([], 1)
        self.layer_load_finished_events[data.layer_id].set()
        self.request_queue.task_done()


class Rig:
    """One worker with a timeline; its threads are the caller's."""

    def __init__(self, receiver: Receiver | None = None) -> None:
        self.receiver = receiver or Receiver()
        self.saves = list(self.receiver.layer_save_finished_events)  # as the send thread has them
        self.npu = list(getattr(self.receiver, "sync_save_events", ()))
        self.sender = SimpleNamespace(sync_save_events=list(self.npu) or [NpuEvent() for _ in range(LAYERS)])
        self.worker = SimpleNamespace(
            prefetch_layer_map=SOURCES, num_prefetch_layers=3, current_layer=0, use_block_key_layerwise=False,
            kv_send_thread=self.sender,
        )  # fmt: skip
        numbers = Numbers(Config(), {})
        numbers.timeline = self.timeline = Timeline()
        self.loads = Loads(Config(timeline="on", sample_us=0), numbers, self.worker)
        self.loads.attach(self.receiver)
        assert isinstance(self.receiver.request_queue, TaskQueue)
        self.loads.begin_step()

    def put(self, layer: int, gate: Gate | None = None, *, io: bool = True) -> None:
        """Enqueue a layer's load."""
        part = SimpleNamespace(request=SimpleNamespace(req_id="request"))
        transfers = [SimpleNamespace(group_id=0, block_ranges=[part])] if io else []
        self.receiver.request_queue.put(
            SimpleNamespace(
                layer_id=layer, wait_for_save_layer=SOURCES.get(layer), attention_start_gate=gate,
                transfer_tasks=transfers,
            )
        )  # fmt: skip

    def receive(self) -> None:
        """Handle the next task in this thread."""
        self.receiver._handle_request(self.receiver.request_queue.get())

    def save(self, layer: int) -> None:
        """What the send thread does at the end of a save."""
        self.sender.sync_save_events[layer].synchronize()
        self.saves[layer].set()

    def records(self) -> tuple[list[Record], list[Any]]:
        """What the rings hold, as events."""
        found: tuple[list[Record], list[Any]] = ([], [])
        for ring in self.timeline.rings:
            written, tasks = ring.take()
            found[0].extend(Record(*event, ring.name) for row in written for event in expand(row))
            found[1].extend(tasks)
        return found

    def run(self) -> Run:
        """It, assembled."""
        records, tasks = self.records()
        return assemble(records, tasks, self.loads.plan)
