"""A receive thread's surroundings without its engine: what the layer-wise benchmarks hang the real adapters on.

The handler waits in upstream's GVA order for events that are all there already, so that only host work is left. It is
our own words, not upstream's code: the engine tests run the hooks on the real threads.
"""

from __future__ import annotations

import json
import os
import platform
import queue
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = 12


class NpuEvent:
    """An event of a stream that is never behind, unless `done` is taken away."""

    done = True

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        pass


class Gate:
    """An attention gate: recorded once, waited for on the host and then on its event."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._event: NpuEvent | None = None

    def record(self) -> None:
        with self._condition:
            self._event = NpuEvent()
            self._condition.notify_all()

    def wait(self, timeout: float) -> bool:
        with self._condition:
            while self._event is None:
                if not self._condition.wait(timeout):
                    return False
        self._event.synchronize()
        return True


class Builder:
    """Makes addresses."""

    def build_addrs(self, shared: object, layer: int) -> tuple[object, int]:
        return shared, layer

    build = build_addrs


class Receiver:
    """What the adapters see of a receive thread."""

    name = "receiver"
    external_slot_release_waiter = None

    def __init__(self, layers: int = LAYERS) -> None:
        self.request_queue: queue.Queue[Any] = queue.Queue()
        self.layer_save_finished_events: list[Any] = [threading.Event() for _ in range(layers)]
        self.layer_load_finished_events = [threading.Event() for _ in range(layers)]
        self.sync_save_events: list[Any] = [NpuEvent() for _ in range(layers)]
        self.group_builders = [Builder()]
        self.final_layer_id = layers - 1
        self.m_store: Any = SimpleNamespace(store=SimpleNamespace(batch_copy=lambda *_: 0))

    def is_alive(self) -> bool:
        return False

    def _handle_request(self, data: Any) -> None:
        source, layer, gate = data.wait_for_save_layer, data.layer_id, data.attention_start_gate
        if source is not None:
            while not self.layer_save_finished_events[source].wait(timeout=10):
                pass
            self.sync_save_events[source].synchronize()
            self.layer_save_finished_events[source].clear()
        addresses = self.group_builders[0].build_addrs(None, layer)
        if gate is not None:
            while not gate.wait(timeout=10):
                pass
        self.m_store.store.batch_copy(addresses, 1)
        self.layer_load_finished_events[layer].set()
        self.request_queue.task_done()


def transfer(requests: int = 1) -> Any:
    """A transfer task of `requests` requests."""
    parts = [SimpleNamespace(request=SimpleNamespace(req_id=f"request-{number}")) for number in range(requests)]
    return SimpleNamespace(group_id=0, block_ranges=parts)


def load_task(layer: int, source: int | None, gate: Gate | None, transfers: list[Any]) -> Any:
    """One queued load, with upstream's field names."""
    return SimpleNamespace(
        layer_id=layer, wait_for_save_layer=source, attention_start_gate=gate, transfer_tasks=transfers
    )


def write_summary(out: Path, name: str, figures: dict[str, float], rows: list[dict[str, Any]], passed: bool) -> int:
    """Write out/summary.json in one step and print the figures; returns the exit status."""
    host = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}
    summary = {
        "name": name, "version": 1, "pair": None, "host": host, "seed": 0, "figures": figures, "rows": rows,
        "passed": passed,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    partial = out / ".summary.json"
    partial.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    partial.replace(out / "summary.json")
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if passed else 1


def show(title: str, columns: list[str], rows: list[dict[str, Any]]) -> None:
    """Print rows as a table."""
    from layerwise_sched.show import table
    from rich.console import Console

    Console(width=120).print(table(title, columns, [[row.get(column) for column in columns] for row in rows]))
