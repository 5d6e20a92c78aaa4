"""Faults for the real threads: in the backend, the policy, the recorder, the queue, and in the rules themselves."""

from __future__ import annotations

import threading
import time
from typing import Any

from layerwise_pool import LOAD, SAVE
from layerwise_sched.legal import HOLD
from layerwise_sched.policy import make_policy


def plant(name: str | None, rig: Any) -> Any:
    """Plant one fault in a rig before its first step; returns what takes it out again."""
    if name is None:
        return lambda: None
    undo = FAULTS[name](rig)
    return undo if undo is not None else lambda: None


def _backend(direction: int, number: int, how: Any) -> Any:
    def fault(rig: Any) -> None:
        rig.pool.fail_at[direction] = (number, how)

    return fault


def _policy_raises(rig: Any) -> None:
    policy = rig.loads.queue.dispatcher.policy
    select, calls = policy.select, [0]

    def failing(queue: Any, ready: Any) -> int:
        calls[0] += 1
        if calls[0] > 5:
            raise ZeroDivisionError("planted fault of the policy")
        return int(select(queue, ready))

    policy.select = failing


def _policy_answers(index: int) -> Any:
    def fault(rig: Any) -> None:
        rig.loads.queue.dispatcher.policy.select = lambda queue, ready: min(index, len(queue) + 1)

    return fault


def _policy_last(rig: Any) -> None:
    rig.loads.queue.dispatcher.policy.select = lambda queue, ready: len(queue) - 1


def _ring(rig: Any) -> None:
    """The recorder breaks in the middle of a step, for every thread."""
    timeline, calls = rig.loads.numbers.timeline, [0]

    class Failing:
        """In place of the threads' rings: every row counts, also where the ring was looked up before."""

        def __init__(self, here: Any) -> None:
            self._here = here

        def __getattr__(self, name: str) -> Any:
            write = getattr(self._here, name)
            if name != "put":
                return write

            def counted(*row: Any) -> None:
                calls[0] += 1
                if calls[0] > 40:
                    raise MemoryError("planted fault of the recorder")
                write(*row)

            return counted

    timeline.here = Failing(timeline.here)


def _none(rig: Any) -> None:
    rig.worker.kv_recv_thread.request_queue.put(None)


def _none_mid_step(rig: Any) -> None:
    layer = rig.layer

    def with_none(number: int) -> None:
        if number == 3:
            rig.worker.kv_recv_thread.request_queue.put(None)
        layer(number)

    rig.layer = with_none


def _stop(rig: Any) -> None:
    """The forward is given up after layer 4, as an interrupted engine does."""
    layer = rig.layer

    def until(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt("planted stop")
        layer(number)

    rig.layer = until


def _slow_waiter(rig: Any) -> None:
    """Another connector's slot waiter, installed late, as AscendMultiConnector does it; it takes 3 ms."""
    rig.waited = []

    def waiter(layer: int) -> None:
        rig.waited.append(layer)
        time.sleep(3e-3)

    rig.worker.set_external_slot_release_waiter(waiter)


# -- broken rules: each must be seen by the rig's own checks -----------------------------------------------------------
def _pass_gate(rig: Any) -> Any:
    from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.attention_fence import AttentionComputeStartGate

    kept = AttentionComputeStartGate.wait
    AttentionComputeStartGate.wait = lambda self, timeout=10.0: True
    return lambda: setattr(AttentionComputeStartGate, "wait", kept)


class _SetOnce(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        return True


def _reuse_early(rig: Any) -> None:
    """The receive thread waits for no save: a slot is overwritten while its former owner is still being saved."""
    receiver = rig.worker.kv_recv_thread
    receiver.layer_save_finished_events = [_SetOnce() for _ in receiver.layer_save_finished_events]

    class Now:
        def synchronize(self) -> None:
            return None

    receiver.sync_save_events = [Now() for _ in receiver.sync_save_events]


def _final_passes(rig: Any) -> None:
    """Past the dispatcher's check: the last ready task is taken, whatever the order rules say.

    The last layer but one is kept back until the final one is ready, so that there is something to pass at any speed.
    """
    queue = rig.loads.queue
    queue.use(make_policy("ready"))
    passed: set[int] = set()  # steps

    def last_ready(tasks: Any) -> int:
        ready = [index for index, task in enumerate(tasks) if rig.loads.missing(task) is None]
        chosen = max(ready, default=0)
        task = tasks[chosen]
        if task.final:
            passed.add(task.step)
        return HOLD if task.layer == rig.schedule.layers - 2 and task.step not in passed else chosen

    queue.dispatcher.choose = last_ready


def _final_first(rig: Any) -> None:
    """The final layer's task comes before those of the layers that are still queued."""
    receiver = rig.worker.kv_recv_thread
    handle = receiver._handle_request

    def handling(data: Any) -> None:
        if data.layer_id == 0:
            rig.pool.batch_remove_lease(rig.load_keys)
        handle(data)

    receiver._handle_request = handling


def _lose_done(rig: Any) -> None:
    queue = rig.worker.kv_recv_thread.request_queue
    done, calls = queue.task_done, [0]

    def losing() -> None:
        calls[0] += 1
        if calls[0] != 3:
            done()

    queue.task_done = losing


FAULTS = {
    "load returns an error": _backend(LOAD, 5, -1),
    "load raises": _backend(LOAD, 5, "raise"),
    "save returns an error": _backend(SAVE, 3, -1),
    "save raises": _backend(SAVE, 3, "raise"),
    "policy raises": _policy_raises,
    "policy answers the last": _policy_last,
    "policy answers out of range": _policy_answers(99),
    "recorder raises": _ring,
    "None in the queue": _none,
    "None in the middle of a step": _none_mid_step,
    "stop in the middle of a step": _stop,
    "slow slot waiter": _slow_waiter,
    "gate passed": _pass_gate,
    "slot reused early": _reuse_early,
    "final layer passes": _final_passes,
    "leases released early": _final_first,
    "task_done lost": _lose_done,
}
