"""What the tests of kv-plan-guard change in a running engine, by name: each takes the engine and a dict for findings.

None of them touches what the guard expects; some change the runner, some the guard's own parts (a test that removes a
wait, or one that lets a fault come in every step).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

POISON = -987654321  # what ascend-sim's lazy copies fill a target with until its wait


def _guard(llm: Any) -> tuple[Any, Any]:
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    return runner, runner.__dict__["_kv_plan_guard"]


def overwrite_after_snapshot(llm: Any, found: dict[str, Any]) -> None:
    """Every buffer a plan lies in is overwritten once the forward is queued, long before the copy lands."""
    runner, guard = _guard(llm)
    execute = runner.execute_model
    found["overwritten"] = 0

    def execute_model(scheduler_output: Any, *args: Any, **named: Any) -> Any:
        result = execute(scheduler_output, *args, **named)
        if guard.open is not None:
            runner.block_tables.slot_mappings.fill_(-77)
            for table in runner.block_tables.input_block_tables:
                table.fill_(3)
            runner.input_buffers.positions.fill_(5)
            found["overwritten"] += 1
        return result

    runner.execute_model = execute_model


def watch_landing(llm: Any, found: dict[str, Any]) -> None:
    """Whether a snapshot's host buffer still held poison when its copy was issued, and in which thread it was read."""
    _, guard = _guard(llm)
    carried, read = guard.carried, guard.read_output
    found.update(issued=0, late=0, read=0, threads=[])

    def watched_carry(record: Any, output: Any) -> None:
        carried(record, output)
        if record.snapshot is not None:
            found["issued"] += 1
            words = record.snapshot.buffers.array.view("int32")[: record.snapshot.nbytes // 4]
            found["late"] += bool((words == POISON).all())

    def watched_read(record: Any) -> None:
        found["read"] += 1
        name = "step" if threading.current_thread() is threading.main_thread() else "other"
        if name not in found["threads"]:
            found["threads"].append(name)
        read(record)

    guard.carried, guard.read_output = watched_carry, watched_read


def no_output_wait(llm: Any, found: dict[str, Any]) -> None:
    """The output is read without its event: what upstream would do without its wait."""
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    runner, _ = _guard(llm)
    sample = runner.sample_tokens

    def sample_tokens(*args: Any, **named: Any) -> Any:
        output = sample(*args, **named)
        if isinstance(output, AsyncOutput):
            output.copy_event.synchronize = lambda: None
        return output

    runner.sample_tokens = sample_tokens


def _plant(llm: Any, found: dict[str, Any], when: Callable[[int], bool]) -> None:
    runner, _ = _guard(llm)
    prepare = runner.prepare_attn
    found.update(step=-1, planted=[])

    def prepare_attn(batch: Any) -> Any:
        tables, slots = prepare(batch)
        found["step"] += 1
        if when(found["step"]):
            slots[0, 0] += 1
            found["planted"].append(found["step"])
        return tables, slots

    runner.prepare_attn = prepare_attn


def fault_once(llm: Any, found: dict[str, Any]) -> None:
    """One wrong slot, in the sixth step; later plans are right again. Counts the outputs that were released."""
    _plant(llm, found, lambda step: step == 6)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    update = scheduler.update_from_output
    found["released"] = 0

    def update_from_output(*args: Any, **named: Any) -> Any:
        found["released"] += 1
        return update(*args, **named)

    scheduler.update_from_output = update_from_output


def fault_every_step(llm: Any, found: dict[str, Any]) -> None:
    """The same wrong slot in every step from the third on."""
    _plant(llm, found, lambda step: step >= 3)


def count_allocations(llm: Any, found: dict[str, Any]) -> None:
    """The number of buffer pairs ever made, step by step."""
    runner, guard = _guard(llm)
    execute = runner.execute_model
    found["allocated"], found["tokens"] = [], []

    def execute_model(scheduler_output: Any, *args: Any, **named: Any) -> Any:
        found["allocated"].append(guard.pool.allocated)
        found["tokens"].append(scheduler_output.total_num_scheduled_tokens)
        return execute(scheduler_output, *args, **named)

    runner.execute_model = execute_model


MUTATIONS: dict[str, Callable[[Any, dict[str, Any]], None]] = {
    "overwrite after snapshot": overwrite_after_snapshot,
    "watch landing": watch_landing,
    "no output wait": no_output_wait,
    "fault once": fault_once,
    "fault every step": fault_every_step,
    "count allocations": count_allocations,
}


def steps_after(llm: Any) -> list[str]:
    """What further steps of a stopped engine end with: what they raise, "released" tokens, or "nothing"."""
    ends = []
    for _ in range(4):
        try:
            outputs = llm.llm_engine.step()
            ends.append("released" if any(len(o.outputs[0].token_ids) for o in outputs) else "nothing")
        except Exception as error:
            ends.append(type(error).__name__)
    return ends
