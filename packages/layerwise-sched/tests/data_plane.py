"""An oracle of its own: what every slot holds at every moment, so that a wrong order shows as wrong data.

It knows no rule of `layerwise_sched.legal`. A load writes its layer's data into the slot; attention of a layer reads
it (between boundary and save event) and writes the layer's new tokens there; the save reads it until its end. So:
a layer's data must be in the slot when its attention runs, nothing may overwrite it before its save ended, and the
final layer's task ends last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layerwise_sched.model import DependencyKind
from layerwise_sched.timeline import Code

if TYPE_CHECKING:
    from layerwise_sched.runs import Run


def data_errors(run: Run) -> list[str]:
    """Every read of data that another layer had overwritten, and every final task that was not last."""
    assert run.plan is not None
    errors = []
    chains = run.plan.chains
    writes: dict[int, list[tuple[int, int, int, int]]] = {}  # slot -> (begin, end, step, layer)
    for task in run.tasks.values():
        for span in task.spans:
            if span.code is Code.TRANSFER:
                at = (span.begin, span.end, task.task.step, task.task.layer)
                writes.setdefault(chains[task.task.layer], []).append(at)
    last_read: dict[tuple[int, int], int] = dict(run.save_set)
    for task in run.tasks.values():
        source = task.task.source
        if source is not None and (met := task.met.get(DependencyKind.SAVE_NPU)) is not None:
            key = task.task.step, source
            last_read[key] = max(last_read[key], met.at)
    for slot, spans in writes.items():
        for begin, _, step, layer in spans:
            for owner in range(run.plan.num_layers):
                if chains[owner] != slot or owner >= layer:
                    continue
                if begin < last_read[step, owner]:
                    errors.append(f"step {step}: layer {layer} overwrote layer {owner}, which was still in use")
    for task in run.tasks.values():
        gate = task.task.step * run.plan.num_layers + task.task.layer
        if task.done is None or (task.task.has_io and task.done > run.gates[gate]):
            errors.append(f"step {task.task.step}: attention of layer {task.task.layer} ran before its load ended")
    for task in run.tasks.values():
        if not task.task.final:
            continue
        mates = [other for other in run.tasks.values() if other.task.step == task.task.step]
        if any((other.done or 0) > (task.done or 0) for other in mates):
            errors.append(f"step {task.task.step}: leases were released before all loads of the step were done")
    return errors
