"""Real `KVPoolWorker` submit, wait and save methods with the real send and receive threads, on a CPU.

The worker object has its layer-wise state and nothing else; attention is work on a device stream. Every byte is
checked: what attention finds in its slot, what the saves left in the pool; every load is held against the order rules
at the moment it starts, by what the rig knows itself, and not by anything of the package under test.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from layerwise_pool import LOAD, SAVE, MemoryPool
from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store import attention_fence, pool_worker
from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.layerwise_cache_layout import (
    build_layerwise_cache_layout,
    build_layerwise_reuse_layout,
)
from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.metadata import (
    LayerBlockRange,
    LayerTransferTask,
    ReqMeta,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from layerwise_schedules import Schedule
    from layerwise_stream import DeviceStream

BLOCK = 4096  # bytes of one block of one layer; the second KV cache spec has half
TOKENS = 16


try:  # 0.28.0rc1 calls the range path's sessions Mooncake's
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.mooncake_session_tracker import MooncakeSessionTracker

    SESSIONS, session_tracker = "mooncake", MooncakeSessionTracker
except ImportError:
    SESSIONS = "layerwise"

    def session_tracker() -> Any:
        """What keeps the get and put sessions of the range path."""
        from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.backend import session_tracker

        return session_tracker.LayerwiseSessionTracker()


class Layout:
    """Which layers share a slot, and how far ahead loads are submitted: upstream's own functions decide both."""

    def __init__(self, schedule: Schedule) -> None:
        layers, config = schedule.layers, dict(schedule.config)
        self.bytes = [BLOCK // 2 if layer in schedule.other_spec else BLOCK for layer in range(layers)]
        self.sources: dict[int, int] = {}
        slots: list[tuple[int, ...]] = [(layer,) for layer in range(layers)]
        if schedule.plane != "gva":
            self.prefetch = config.get("layerwise_prefetch_layers", 2)
        elif schedule.other_spec:
            from vllm.v1.kv_cache_interface import FullAttentionSpec

            specs = {
                f"model.layers.{layer}.attn": FullAttentionSpec(
                    block_size=TOKENS, num_kv_heads=1, head_size=self.bytes[layer] // 32, dtype=torch.float16
                )
                for layer in range(layers)
            }
            reuse = build_layerwise_reuse_layout(specs, layers, config)
            self.sources, self.prefetch, slots = reuse.prefetch_layer_map, reuse.num_prefetch_layers, reuse.buffer_slots
        else:
            plain = build_layerwise_cache_layout(layers, config)
            self.sources, self.prefetch = plain.prefetch_layer_map, plain.num_prefetch_layers
            slots = [tuple(slot) for slot in plain.storage_indices]
        self.slots = slots
        self.offsets = np.concatenate(([0], np.cumsum(self.bytes)))


class LayerKey:
    """Key of the key-based plane: one object a block and layer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def split_layers(self, layers: int, offset: int = 0) -> list[LayerKey]:
        return [LayerKey(f"{self.name}@{layer + offset}") for layer in range(layers)]

    def to_string(self) -> str:
        return self.name


class Rig:
    """One worker with its threads; `step()` runs one forward and returns its seconds.

    adopt: what the package under test does with the worker before its threads start; None: nothing.
    """

    def __init__(
        self,
        schedule: Schedule,
        stream: DeviceStream,
        pool: Any = None,
        adopt: Callable[[Any], Any] | None = None,
    ) -> None:
        self.schedule, self.stream, self.layout = schedule, stream, Layout(schedule)
        self.per_request = schedule.blocks + 1  # the last one is computed, not loaded
        self.num_blocks = schedule.requests * self.per_request
        self.pool = pool if pool is not None else MemoryPool()
        self.errors: list[str] = []
        self.steps = 0
        self.order: list[int] = []  # layers in the order in which their loads started, of the present step
        self.buffers: dict[int, np.ndarray] = {}
        for slot in self.layout.slots:
            array = np.zeros((self.num_blocks, max(self.layout.bytes[layer] for layer in slot)), dtype=np.uint8)
            self.pool.device.add(array)
            self.buffers.update(dict.fromkeys(slot, array))
        self._watch_pool()
        self.worker = self._worker(adopt)
        self.queue = self.worker.kv_recv_thread.request_queue
        self._watch_submissions()

    # -- construction ---------------------------------------------------------------------------------------------
    def _worker(self, adopt: Callable[[Any], Any] | None) -> Any:
        n, plane = self.schedule.layers, self.schedule.plane
        page = int(self.layout.offsets[-1])
        worker = pool_worker.KVPoolWorker.__new__(pool_worker.KVPoolWorker)
        state = {
            "num_layers": n, "num_kv_cache_groups": 1, "use_layerwise": True, "use_layerwise_transfer": plane == "gva",
            "use_block_key_layerwise": plane == "range", "block_key_hybrid": False, "kv_role": "kv_both",
            "consumer_is_to_put": False, "pp_size": 1, "tp_rank": 0, "tp_size": 1, "dcp_size": 1, "dcp_rank": 0,
            "put_step": 1, "prefetch_layer_map": self.layout.sources, "num_prefetch_layers": self.layout.prefetch,
            "external_slot_release_waiter": None, "_attention_saved_layers": set(), "m_store": self.pool,
            "token_database": self._database(), "block_size": TOKENS, "page_size_bytes": page, "h2d_stagger_us": 0,
            "layerwise_max_transfer_blocks": 0, "layerwise_max_transfer_bytes": 0,
            "_extra_config": self.schedule.config,
            "group_num_layers": {0: n}, "group_block_len": {0: self.layout.bytes}, "layerwise_key_layers": n,
            "_global_group_alloc_size": lambda group: page, "_transfer_threads_started": False,
            "kv_send_thread": None, "kv_recv_thread": None, "_layer_load_aborted": threading.Event(),
            "_invalid_block_ids": set(), "_invalid_block_ids_lock": threading.Lock(),
            "_put_started_keys": set(), "_put_started_keys_lock": threading.Lock(),
            "backend_name": {"gva": "memcache", "range": "mooncake", "key": "yuanrong"}[plane],
            "_load_session_lock": threading.Lock(),
        }  # fmt: skip
        worker.__dict__.update(state)
        for name in ("request_ids", "last_chunk_req_ids"):
            setattr(worker, f"_current_{SESSIONS}_{name}", set())
        if plane == "range":
            setattr(worker, f"_{SESSIONS}_session_tracker", session_tracker())
        self.loads = adopt(worker) if adopt is not None else None
        worker._start_kv_transfer_threads()
        return worker

    def _database(self) -> Any:
        n, layout = self.schedule.layers, self.layout
        bases = [self.buffers[layer].ctypes.data for layer in range(n)]
        strides = [self.buffers[layer].shape[1] for layer in range(n)]

        def prepare(start: int, end: int, ids: list[int], layer: int) -> tuple[list[int], list[int], int]:
            block = ids[start // TOKENS]
            return [bases[layer] + block * strides[layer]], [layout.bytes[layer]], block

        return SimpleNamespace(
            group_block_len={0: layout.bytes},
            group_kv_caches_base_addr={0: bases},
            group_block_stride={0: strides},
            group_layer_cache_entry_offsets={0: list(range(n + 1))},
            _make_key_by_hash=lambda name: LayerKey(f"load-{name}"),
            prepare_value_layer=prepare,
            process_tokens=lambda end, hashes, skipped: [
                (index * TOKENS, (index + 1) * TOKENS, LayerKey(f"save-{name}")) for index, name in enumerate(hashes)
            ],
        )

    # -- independent checks ---------------------------------------------------------------------------------------
    def _watch_pool(self) -> None:
        self.submitted: dict[int, Any] = {}
        self.waiting: int | None = None  # the layer whose load the compute thread waits for; -1: it computes
        self.load_keys: list[str] = []
        self.pool.observe, self.pool.seconds, self.pool.layer_of = self._observe, self._seconds, self._layer_of
        self.pool.before_failure = self._before_failure

    def _watch_submissions(self) -> None:
        receiver, add = self.worker.kv_recv_thread, self.worker.kv_recv_thread.add_request

        def remember(task: Any) -> None:
            if task is not None:
                # The gate by itself: the package may put something in front of the one on the task.
                self.submitted[task.layer_id] = (task.attention_start_gate, task.wait_for_save_layer)
            add(task)

        receiver.add_request = remember

    def _layer_of(self, key: str, offset: int) -> int:
        if self.schedule.plane == "key":
            return int(key.rpartition("@")[2])
        return int(np.searchsorted(self.layout.offsets, offset, side="right")) - 1

    def _seconds(self, direction: int, layer: int) -> float:
        if direction == LOAD:
            return self.schedule.load
        late = self.schedule.late.get(layer, 0.0)
        if late and self.schedule.needed and layer in self.layout.sources.values():
            self._until_needed(layer)
        return self.schedule.save + late

    def _before_failure(self, direction: int, layer: int) -> None:
        """A failure is noticed at different places, as the compute thread happens to be; so until it waits for it."""
        if direction == SAVE and layer in self.layout.sources.values():
            self._until_needed(layer)
        elif direction == LOAD:
            end = time.perf_counter() + 2.0
            while self.waiting not in (layer, None) and time.perf_counter() < end:
                time.sleep(2e-4)
            time.sleep(5e-3)  # from the flag into the wait itself

    def _until_needed(self, source: int) -> None:
        """Until the compute thread waits for a load that waits for this save, and the device has nothing to do."""
        end = time.perf_counter() + 2.0
        while time.perf_counter() < end:
            waiting = self.waiting
            if waiting is None:
                return  # the forward is over, or was given up
            if self.layout.sources.get(waiting) == source and self.stream.done == self.stream.issued:
                return
            time.sleep(2e-4)

    def _observe(self, direction: int, layer: int) -> None:
        if direction == SAVE:
            return
        self.order.append(layer)
        gate, source = self.submitted[layer]
        if gate is not None and (gate._event is None or not gate._event.query()):
            self.errors.append(f"step {self.steps}: load of layer {layer} started before its gate")
        if source is not None and not self.worker.sync_save_events[source].query():
            self.errors.append(f"step {self.steps}: load of layer {layer} before the save event of {source}")
        if any(self.pool.leases.get(key, 0) <= 0 for key in self.load_keys):
            self.errors.append(f"step {self.steps}: load of layer {layer} without a lease")

    def pattern(self, layer: int, block: int, kind: int) -> np.ndarray:
        """Bytes of one block of one layer in this step: `kind` 0 as loaded, 1 as computed."""
        value = (layer * 37 + block * 11 + kind * 101 + self.steps * 7) % 255 + 1
        return np.full(self.layout.bytes[layer], value, dtype=np.uint8)

    # -- one step -------------------------------------------------------------------------------------------------
    def _requests(self) -> list[Any]:
        made = []
        self.load_keys = []
        self.pool.forget()
        for number in range(self.schedule.requests):
            ids = list(range(number * self.per_request, (number + 1) * self.per_request))
            name = f"s{self.steps}-r{number}"
            loads, saves = ([f"{kind}-{name}-{block}" for block in ids] for kind in ("load", "save"))
            request = ReqMeta(
                req_id=name, block_ids_by_group=[ids], block_hashes=[f"{name}-{block}" for block in ids],
                is_last_chunk=True, block_ids_np=np.array(ids, dtype=np.int64), save_end_token=len(ids) * TOKENS,
            )  # fmt: skip
            self._fill(request, loads, saves, ids)
            # The key-based plane has no leases.
            request.load_keys = [] if self.schedule.plane == "key" else loads[: self.schedule.blocks]
            self.load_keys += request.load_keys
            made.append(request)
        if self.schedule.plane == "gva":
            self.pool.batch_add_lease(self.load_keys)
        elif self.schedule.plane == "range":
            self.pool.batch_get_start(self.load_keys)
        return made

    def _fill(self, request: Any, loads: list[str], saves: list[str], ids: list[int]) -> None:
        """The request's objects in the pool, and where its loads and saves find them."""
        layers = range(self.schedule.layers)
        if self.schedule.plane == "key":
            self.pool.store_objects(
                {
                    f"{key}@{layer}": self.pattern(layer, block, 0)
                    for key, block in zip(loads, ids, strict=True)
                    for layer in layers
                }
            )
            return
        total = int(self.layout.offsets[-1])
        gvas = self.pool.store_objects(
            {
                key: np.concatenate([self.pattern(layer, block, 0) for layer in layers])
                for key, block in zip(loads, ids, strict=True)
            }
        )
        if self.schedule.plane == "gva":
            request.load_block_gvas_np = np.array(gvas, dtype=np.int64)
            places = [self.pool.allocate(key, [total])[0].ctypes.data for key in saves]
            request.block_gvas_np = np.array(places, dtype=np.int64)
            request.save_keys = saves
        else:
            request.load_block_keys, request.save_block_keys = list(loads), list(saves)
            self.pool.batch_put_start(saves, [total] * len(saves))

    def _tasks(self, requests: list[Any]) -> None:
        worker, schedule, n = self.worker, self.schedule, self.schedule.layers
        ranges = {"use_key_major_ranges": True} if schedule.plane == "range" else {}

        def task(layer: int, first: int, last: int) -> Any:
            made = LayerTransferTask(
                layer, [LayerBlockRange(request, first, last) for request in requests],
                layer_idx_in_group=layer, **ranges,
            )  # fmt: skip
            if ranges:
                made.final_group_layer = layer == n - 1
            return made

        worker.layer_load_tasks = [
            [] if layer in schedule.no_load else [task(layer, 0, schedule.blocks)] for layer in range(n)
        ]
        saving = schedule.saves
        worker.layer_save_tasks = [
            [task(layer, 0, self.per_request)] if saving and layer not in schedule.no_save else [] for layer in range(n)
        ]
        if schedule.plane == "range":
            worker._layer_load_aborted.clear()
            for name in ("request_ids", "last_chunk_req_ids"):
                setattr(worker, f"_current_{SESSIONS}_{name}", {request.req_id for request in requests})
            tracker = getattr(worker, f"_{SESSIONS}_session_tracker")
            for request in requests:
                for key in request.load_keys:
                    tracker.record_get_result(key, [request.req_id], succeeded=True)
        worker._build_shared_save_data()
        worker._build_shared_load_data()

    def begin(self) -> list[Any]:
        """What `start_load_kv` leaves behind: fresh tasks, leases, an empty submission state."""
        self.steps += 1
        self.order = []
        self.submitted.clear()
        requests = self._requests()
        self.worker.current_layer = self.worker.next_layer_to_submit = 0
        attention_fence.reset_attention_compute_start_gate()
        self._tasks(requests)
        return requests

    def layer(self, layer: int) -> None:
        """One layer: wait for its load, submit attention behind the gate, hand its save over."""
        self.waiting = layer
        self.worker.wait_for_layer_load()
        self.waiting = -1
        time.sleep(self.schedule.host)
        attention_fence.record_attention_compute_start()
        self.stream.launch(self.schedule.attention, lambda: self._attention(layer))
        if layer == self.schedule.layers - 1:
            self.waiting = None  # what follows waits for the saves themselves
        self.worker.save_kv_layer(None)
        self.stream.launch(self.schedule.rest)

    def _attention(self, layer: int) -> None:
        buffer, size = self.buffers[layer], self.layout.bytes[layer]
        for block in range(self.num_blocks):
            loaded = block % self.per_request < self.schedule.blocks
            if not loaded:
                buffer[block, :size] = self.pattern(layer, block, 1)
            elif layer not in self.schedule.no_load and (buffer[block, :size] != self.pattern(layer, block, 0)).any():
                self.errors.append(f"step {self.steps}: attention of layer {layer} found wrong bytes in {block}")

    def step(self) -> float:
        """One forward; seconds from its first layer to the end of its device work."""
        self.begin()
        self.waiting = -1
        started = time.perf_counter()
        for layer in range(self.schedule.layers):
            self.layer(layer)
        end = torch.npu.Event()
        end.record()
        end.synchronize()
        seconds = time.perf_counter() - started
        self.check()
        return seconds

    def check(self) -> None:
        """After a step: saved bytes, leases, queue, finished requests, final layer last."""
        schedule, n = self.schedule, self.schedule.layers
        self.errors += [f"device: {error!r}" for error in self.stream.errors]
        self.errors += self.pool.errors
        self.stream.errors, self.pool.errors = [], []
        if schedule.saves:
            self._check_saved(set(range(n)) - schedule.no_save)
        wanted = [layer for layer in range(n) if layer not in schedule.no_load]
        if sorted(self.order) != wanted or self.order[-1:] != wanted[-1:]:
            self.errors.append(f"step {self.steps}: loads started in the order {self.order}")
        finished = {f"s{self.steps}-r{number}" for number in range(schedule.requests)}
        if (found := self.worker.kv_recv_thread.get_and_clear_finished_requests()) != finished:
            self.errors.append(f"step {self.steps}: finished requests {sorted(found)}, expected {sorted(finished)}")

    def _check_saved(self, layers: set[int]) -> None:
        """What the saves left in the pool: blocks as they were loaded, and the one that was computed."""
        offsets, schedule = self.layout.offsets, self.schedule
        names = {block: f"save-s{self.steps}-r{block // self.per_request}-{block}" for block in range(self.num_blocks)}
        if schedule.plane == "key":
            sizes = {f"{name}@{layer}": self.layout.bytes[layer] for name in names.values() for layer in layers}
        else:
            sizes = dict.fromkeys(names.values(), int(offsets[-1]))
        found = self.pool.read_objects(sizes)
        for layer in sorted(layers):
            for block, name in names.items():
                computed = int(block % self.per_request == schedule.blocks)
                if not computed and layer in schedule.no_load:
                    continue
                if schedule.plane == "key":
                    saved = found[f"{name}@{layer}"]
                else:
                    saved = found[name][offsets[layer] : offsets[layer + 1]]
                if not (saved == self.pattern(layer, block, computed)).all():
                    self.errors.append(f"step {self.steps}: wrong bytes saved for layer {layer} block {block}")

    def unfinished(self) -> int:
        """Tasks of the receive queue without their `task_done`."""
        return int(self.worker.kv_recv_thread.request_queue.unfinished_tasks)
