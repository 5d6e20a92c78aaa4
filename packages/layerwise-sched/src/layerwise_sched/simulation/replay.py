"""A recorded run as a workload, so that the same steps can be run under another policy: what if.

Taken from the recording: the compute thread's own times (from its stalls, boundaries and saves), transfers, builds,
the send thread's puts and the plan. Stream times are known only where an NPU event was observed (waited for, or seen
by a query); where a layer has no observation the median of the observed layers stands in, and `Replayed.guessed` says
how many did. A step with a dropped row, a failed task or an unfinished task is left out and counted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerwise_sched.errors import TimelineError
from layerwise_sched.model import DependencyKind, LayerPlan
from layerwise_sched.simulation.workload import ABSENT, StepTimes, Workload
from layerwise_sched.stages import Stage, stage_sums
from layerwise_sched.timeline import Code

if TYPE_CHECKING:
    from layerwise_sched.runs import Run, Stall, Step, TaskRun


@dataclass(frozen=True, slots=True)
class Replayed:
    """A workload and how much of it was not on record. skipped: steps left out. guessed: stream times stood in for."""

    workload: Workload
    skipped: int
    guessed: int


def workload_of(run: Run) -> Replayed:
    """The workload that a run recorded. Raises TimelineError where it holds no whole step or no plan."""
    if run.plan is None:
        raise TimelineError("the timeline has no plan (layers, prefetch depth, sources), so it cannot be replayed")
    by_step: dict[int, list[TaskRun]] = {}
    for task in run.tasks.values():
        by_step.setdefault(task.task.step, []).append(task)
    stalls: dict[int, dict[int, Stall]] = {}
    for stall in run.stalls:
        stalls.setdefault(stall.step, {})[stall.layer] = stall
    steps: list[StepTimes] = []
    skipped = guessed = 0
    send_at, last_end = 0, None
    for step in run.steps:
        tasks = by_step.get(step.step, [])
        entered = stalls.get(step.step, {})
        whole = len(entered) == run.plan.num_layers and all(task.complete for task in tasks)
        reader = _Step(run, run.plan, step, tasks, entered)
        if not whole or not reader.whole():
            skipped += 1
            last_end = None
            continue
        times, missing, send_at = reader.times(send_at, 0 if last_end is None else step.begin - last_end)
        steps.append(times)
        guessed += missing
        last_end = step.end
    if not steps:
        raise TimelineError(f"the timeline holds no whole step to replay ({skipped} are not whole)")
    waiter = any(task.task.slot_waiter for task in run.tasks.values())
    return Replayed(Workload(run.plan, steps, slot_waiter=waiter), skipped, guessed)


class _Step:
    """Reads one step's durations."""

    def __init__(self, run: Run, plan: LayerPlan, step: Step, tasks: list[TaskRun], stalls: dict[int, Stall]) -> None:
        self.run, self.plan, self.step, self.stalls = run, plan, step, stalls
        self.tasks = {task.task.layer: task for task in tasks}
        layers = plan.num_layers
        recorded = {(at, gate) for gate, at in run.gates.items() if step.begin <= at <= step.end}
        self.gate = {run.gate_layers[gate]: (gate, at) for at, gate in sorted(recorded)}
        self.saved = [run.save_recorded.get((step.step, layer)) for layer in range(layers)]
        self.npu: dict[tuple[DependencyKind, int], int] = {}
        for task in tasks:
            for kind, subject in (
                (DependencyKind.SAVE_NPU, task.task.source),
                (DependencyKind.GATE_NPU, task.task.gate),
            ):
                if (found := task.met.get(kind)) is not None and subject is not None:
                    key = (kind, subject)
                    self.npu[key] = min(found.at, self.npu.get(key, found.at))

    def whole(self) -> bool:
        """Whether every boundary and every save of the step is on record."""
        layers = range(self.plan.num_layers)
        return all(layer in self.gate and self.saved[layer] is not None for layer in layers) and all(
            (self.step.step, layer) in self.run.save_set for layer in layers
        )

    def times(self, send_at: int, gap: int) -> tuple[StepTimes, int, int]:
        """The durations; how many stream times were stood in for; when the send thread was last busy."""
        layers = self.plan.num_layers
        host, post, after = [], [], []
        for layer in range(layers):
            boundary, saved = self.gate[layer][1], self.saved[layer] or 0
            host.append(max(0, boundary - self.stalls[layer].end))
            post.append(max(0, saved - boundary))
            after.append(max(0, self.stalls[layer + 1].begin - saved) if layer + 1 < layers else 0)
        attention, rest, guessed = self._stream()
        save, send_at = self._saves(send_at)
        zero = [0] * layers
        parts = {name: list(zero) for name in ("build", "submit", "finish", "handler", "slot")}
        load = [ABSENT] * layers
        for layer, task in self.tasks.items():
            sums = stage_sums(task)
            if task.task.has_io:
                load[layer] = sums[Stage.TRANSFER]
            for name in ("build", "submit", "finish", "handler"):
                parts[name][layer] = sums[Stage(name)]
            released = [span.end for span in task.spans if span.code is Code.SLOT_RELEASE]
            if released:
                parts["slot"][layer] = released[-1] - (task.dequeued or 0)
        requests: tuple[str, ...] = next((task.task.requests for task in self.tasks.values()), ())
        groups = [self.tasks[layer].task.groups if layer in self.tasks else (0,) for layer in range(layers)]
        times = StepTimes(
            host, post, after, attention, rest, load, save, requests=requests, groups=groups, gap=max(0, gap), **parts
        )
        return times, guessed, send_at

    def _stream(self) -> tuple[list[int], list[int], int]:
        """Attention and rest of each layer on the stream, from the observed NPU events; how many had none."""
        layers = self.plan.num_layers
        reached = [self.npu.get((DependencyKind.GATE_NPU, self.gate[layer][0])) for layer in range(layers)]
        computed = [self.npu.get((DependencyKind.SAVE_NPU, layer)) for layer in range(layers)]
        attention: list[int | None] = []
        both: list[int | None] = []  # from a boundary to the next one, where the stream was busy all the way
        for layer in range(layers):
            begin, end = reached[layer], computed[layer]
            attention.append(max(0, end - begin) if begin is not None and end is not None else None)
            if layer + 1 < layers:
                following = reached[layer + 1]
                known = begin is not None and following is not None and self._busy(layer + 1, following)
                both.append(max(0, following - begin) if known else None)  # type: ignore[operator]
        both.append(self._last(reached, _filled(both)))
        guessed = sum(value is None for value in attention)
        filled, whole = _filled(attention), _filled(both)
        attended = [min(part, total) if seen is None else part
                    for part, total, seen in zip(filled, whole, attention, strict=True)]  # fmt: skip
        return attended, [max(0, total - part) for part, total in zip(attended, whole, strict=True)], guessed

    def _last(self, reached: list[int | None], before: list[int]) -> int:
        """Stream time of the last layer, to the step's end; no task waits for its gate, so its begin may be unseen."""
        begin = reached[-1]
        if begin is None:
            begin = self.gate[len(reached) - 1][1]
            if len(reached) > 1 and (earlier := reached[-2]) is not None:
                begin = max(begin, earlier + before[-1])
        return max(0, self.step.end - begin)

    def _busy(self, layer: int, reached: int) -> bool:
        """Whether the stream, not the host, decided when the boundary of `layer` was reached."""
        return reached > self.gate[layer][1]

    def _saves(self, send_at: int) -> tuple[list[int], int]:
        """Put times: from when the send thread could begin to when it set the CPU event."""
        found = []
        for layer in range(self.plan.num_layers):
            done = self.run.save_set[self.step.step, layer]
            recorded = self.saved[layer] or 0
            begin = max(send_at, recorded, self.npu.get((DependencyKind.SAVE_NPU, layer), 0))
            if (self.step.step, layer) in self.run.compute_saves:
                found.append(ABSENT)
                continue
            found.append(max(0, done - begin))
            send_at = done
        return found, send_at


def _filled(values: list[int | None]) -> list[int]:
    """The values with the median of the known ones in the gaps; 0 where none is known."""
    known = [value for value in values if value is not None]
    middle = round(statistics.median(known)) if known else 0
    return [middle if value is None else value for value in values]
