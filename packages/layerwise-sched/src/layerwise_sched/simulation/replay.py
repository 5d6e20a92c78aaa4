"""A recorded run as a workload, so that the same steps can be run under another policy: what if.

Taken from the recording: the compute thread's own times (from its stalls, boundaries and saves), transfers, builds,
the send thread's puts, the threads' wake-ups and the plan. When the compute stream reached a place is known where a
thread really waited for it, and where the sampler saw it not there and then there; a wait that returned at once only
says "not later", and an event last seen incomplete "not earlier". Where a layer has no such wait the median of its
other steps stands in, else that of the other layers, within those bounds, and `Replayed.guessed` says how many did. A
step with a dropped row, a failed task or an unfinished task is left out and counted.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from layerwise_sched.errors import TimelineError
from layerwise_sched.model import DependencyKind, LayerPlan
from layerwise_sched.simulation.workload import ABSENT, StepTimes, Workload
from layerwise_sched.stages import Stage, stage_sums
from layerwise_sched.timeline import Code, Proof

if TYPE_CHECKING:
    from layerwise_sched.runs import Run, Stall, Step, TaskRun


SLACK_NS: Final = 20_000
"""Two stamps of different threads that are nearer than this say the same time."""
SEEN_NS: Final = 1_000_000
"""An event seen incomplete and, not later than this, complete, is known: it was in the middle. And an event that the
sampler saw incomplete no longer than this behind its record says nothing of a busy stream: a wake-up takes that long.
"""
ROUNDS: Final = 16


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
    held = {hold.head for hold in run.holds}
    readers: list[tuple[_Step, int]] = []
    skipped = 0
    last_end = None
    for step in run.steps:
        tasks = by_step.get(step.step, [])
        entered = stalls.get(step.step, {})
        whole = len(entered) == run.plan.num_layers and all(task.complete for task in tasks)
        reader = _Step(run, run.plan, step, tasks, entered, held)
        if not whole or not reader.whole():
            skipped += 1
            last_end = None
            continue
        readers.append((reader, 0 if last_end is None else max(0, step.begin - last_end)))
        last_end = step.end
    if not readers:
        raise TimelineError(f"the timeline holds no whole step to replay ({skipped} are not whole)")
    streams = [_Stream(reader) for reader, _ in readers]
    rests = _medians([stream.rests for stream in streams])
    for stream in streams:
        stream.measure(rests)
    attentions = _medians([stream.attentions for stream in streams])
    busy = _busy(streams, attentions, rests)
    guessed = 0
    steps: list[StepTimes] = []
    for (reader, gap), stream in zip(readers, streams, strict=True):
        attention, rest, _, missing = stream.fill(attentions, rests, busy)
        steps.append(reader.times(attention, rest, stream.computed, gap))
        guessed += missing
    waiter = any(task.task.slot_waiter for task in run.tasks.values())
    return Replayed(Workload(run.plan, steps, slot_waiter=waiter), skipped, guessed)


def _busy(streams: list[_Stream], attentions: list[int], rests: list[int]) -> list[int]:
    """For each layer the stream time behind its save that was seen before the next boundary: the median over the steps.

    What is seen of a layer counts from the layers before it, of which some steps know nothing and take the medians: so
    again until they stay the same.
    """
    found: list[int] | None = None
    for _ in range(ROUNDS):
        before = found
        found = _medians([stream.fill(attentions, rests, before)[2] for stream in streams], of_others=False)
        if found == before:
            break
    assert found is not None
    return found


class _Step:
    """Reads one step's durations."""

    def __init__(
        self,
        run: Run,
        plan: LayerPlan,
        step: Step,
        tasks: list[TaskRun],
        stalls: dict[int, Stall],
        held: set[int],
    ) -> None:
        self.run, self.plan, self.step, self.stalls, self.held = run, plan, step, stalls, held
        self.tasks = {task.task.layer: task for task in tasks}
        layers = plan.num_layers
        recorded = {(at, gate) for gate, at in run.gates.items() if step.begin <= at <= step.end}
        self.gate = {run.gate_layers[gate]: (gate, at) for at, gate in sorted(recorded)}
        self.saved = [run.save_recorded.get((step.step, layer)) for layer in range(layers)]

    def whole(self) -> bool:
        """Whether every boundary and every save of the step is on record."""
        layers = range(self.plan.num_layers)
        return all(layer in self.gate and self.saved[layer] is not None for layer in layers) and all(
            (self.step.step, layer) in self.run.save_set for layer in layers
        )

    def boundary(self, layer: int) -> int:
        """When the host recorded the attention boundary of a layer, ns."""
        return self.gate[layer][1]

    def times(self, attention: list[int], rest: list[int], computed: list[int | None], gap: int) -> StepTimes:
        """The durations of the step, with its stream times as they were measured or stood in for."""
        layers = self.plan.num_layers
        host, post, after = [], [], []
        for layer in range(layers):
            boundary, saved = self.boundary(layer), self.saved[layer] or 0
            host.append(max(0, boundary - self._load_end(layer)))
            post.append(max(0, saved - boundary))
            after.append(max(0, self.stalls[layer + 1].begin - saved) if layer + 1 < layers else 0)
        zero = [0] * layers
        parts = {name: list(zero) for name in ("build", "submit", "finish", "handler", "slot")}
        load = [ABSENT] * layers
        woke = self._wake_ups()
        for layer, task in self.tasks.items():
            sums = stage_sums(task)
            if task.task.has_io:
                load[layer] = sums[Stage.TRANSFER]
            for name in ("build", "submit", "finish", "handler"):
                parts[name][layer] = sums[Stage(name)]
            parts["handler"][layer] += woke.get(layer, 0)
            parts["build"][layer] += self._save_wake_up(task)
            released = [span.end for span in task.spans if span.code is Code.SLOT_RELEASE]
            if released:
                parts["slot"][layer] = released[-1] - (task.dequeued or 0)
        requests: tuple[str, ...] = next((task.task.requests for task in self.tasks.values()), ())
        groups = [self.tasks[layer].task.groups if layer in self.tasks else (0,) for layer in range(layers)]
        return StepTimes(
            host, post, after, attention, rest, load, self._saves(computed), requests=requests, groups=groups, gap=gap,
            **parts,
        )  # fmt: skip

    def _load_end(self, layer: int) -> int:
        """When the compute thread could go on with a layer: the end of its load, where it waited for that.

        What passes until it runs again is its wake-up, and host time wherever the wait ends.
        """
        stall, task = self.stalls[layer], self.tasks.get(layer)
        if task is None or task.done is None:
            return stall.end
        return min(stall.end, max(stall.begin, task.done))

    def _wake_ups(self) -> dict[int, int]:
        """Each task's time from when the receive thread could take it to when it did; none where a policy held it."""
        found: dict[int, int] = {}
        free = self.step.begin
        for task in sorted(self.tasks.values(), key=lambda task: task.dequeued or 0):
            taken = task.dequeued or 0
            if task.task.cid not in self.held and not task.position:
                found[task.task.layer] = max(0, taken - max(free, task.enqueued))
            free = task.done or taken
        return found

    def _save_wake_up(self, task: TaskRun) -> int:
        """From a save's CPU event to the end of the receive thread's wait for it; the building follows that."""
        at = self.run.save_set.get((self.step.step, task.task.source if task.task.source is not None else -1))
        ends = [(span.begin, span.end) for span in task.spans if span.code is Code.SAVE_CPU]
        if at is None or not ends or at < ends[-1][0]:
            return 0
        return max(0, ends[-1][1] - at)

    def _saves(self, computed: list[int | None]) -> list[int]:
        """Put times: from when the send thread could begin to when it set the CPU event."""
        found: list[int] = []
        sent = 0
        for layer in range(self.plan.num_layers):
            key = (self.step.step, layer)
            done = self.run.save_set[key]
            if key in self.run.compute_saves:
                found.append(ABSENT)
                continue
            wait = self.run.sends.get(key)
            if wait is not None and wait.end > wait.begin:
                begin = wait.end
            else:  # the stream was there: the thread's own time since it could begin is part of the put
                begin = max(sent, self.saved[layer] or 0, computed[layer] or 0)
            found.append(max(0, done - begin))
            sent = done
        return found


class _Stream:
    """When the compute stream was where, in one step, as far as that is known.

    reached: begin of each layer's attention; computed: its save event; ns, None where nobody really waited for it.
    latest: not later than this, ns, for each `computed`; until and since: not later and not earlier for each `reached`.
    """

    def __init__(self, step: _Step) -> None:
        self.step = step
        self.layers = layers = step.plan.num_layers
        self.reached: list[int | None] = [None] * layers
        self.computed: list[int | None] = [None] * layers
        self.latest = [step.step.end] * layers
        self.until = [step.step.end] * layers
        self.since = [0] * layers
        self.attentions: list[int | None] = [None] * layers
        owner = {gate: layer for layer, (gate, _) in step.gate.items()}
        for task in step.tasks.values():
            if task.task.gate is not None and (layer := owner.get(task.task.gate)) is not None:
                late = step.boundary(layer) + SEEN_NS
                self.reached[layer] = _end(self.reached[layer], _seen(task, DependencyKind.GATE_NPU, late))
                if (incomplete := task.unmet.get(DependencyKind.GATE_NPU, 0)) > late:
                    self.since[layer] = max(self.since[layer], incomplete)
                if (met := task.met.get(DependencyKind.GATE_NPU)) is not None:
                    self.until[layer] = min(self.until[layer], met.at)
            if (source := task.task.source) is not None:
                late = (step.saved[source] or 0) + SEEN_NS
                self.computed[source] = _end(self.computed[source], _seen(task, DependencyKind.SAVE_NPU, late))
                if (met := task.met.get(DependencyKind.SAVE_NPU)) is not None:
                    self.latest[source] = min(self.latest[source], met.at)
        for layer in range(layers):
            if (wait := step.run.sends.get((step.step.step, layer))) is not None:
                self.latest[layer] = min(self.latest[layer], wait.end)
                if wait.end > wait.begin:
                    self.computed[layer] = _end(self.computed[layer], wait.end)
        self.rests = [self._rest(layer) for layer in range(layers)]

    def _rest(self, layer: int) -> int | None:
        """Stream time behind a layer's save, where the next boundary found the stream busy with it."""
        if layer + 1 == self.layers:
            return None
        done, following = self.computed[layer], self.reached[layer + 1]
        if done is None or following is None or following - self.step.boundary(layer + 1) <= SLACK_NS:
            return None
        return max(0, following - done)

    def _last_rest(self, computed: int) -> int | None:
        """Stream time behind the last save, where the step's end waited for nothing else."""
        last, step = self.layers - 1, self.step
        end = step.step.end
        others = max(step.saved[last] or 0, step.run.save_set[step.step.step, last])
        return max(0, end - computed) if end - others > SLACK_NS else None

    def _begins(self, layer: int, rests: list[int]) -> int | None:
        """Begin of a layer's attention: seen, or the boundary, or the end of the layer before where that was later."""
        if (seen := self.reached[layer]) is not None:
            return seen
        boundary = self.step.boundary(layer)
        if not layer:
            return boundary
        done = self.computed[layer - 1]
        return None if done is None else max(boundary, done + rests[layer - 1])

    def measure(self, rests: list[int]) -> None:
        """Attention times, given the rest of each layer."""
        for layer in range(self.layers):
            begin, end = self._begins(layer, rests), self.computed[layer]
            if begin is not None and end is not None:
                self.attentions[layer] = max(0, end - begin)
            elif begin is not None and self.step.run.sends.get((self.step.step.step, layer)) is None:
                following = self.reached[layer + 1] if layer + 1 < self.layers else None  # nobody saw the save's event
                if following is not None and following - self.step.boundary(layer + 1) > SLACK_NS:
                    self.attentions[layer] = max(0, following - begin - rests[layer])

    def fill(
        self, attentions: list[int], rests: list[int], busy: list[int] | None
    ) -> tuple[list[int], list[int], list[int | None], int]:
        """Attention and rest of each layer; the rests for which the stream was seen busy at the next boundary; and how
        many attentions were stood in for. busy: what stands in for such a rest that nobody saw; None: nothing yet.
        """
        attended: list[int] = []
        rested: list[int] = []
        seen: list[int | None] = []
        missing = at = 0
        for layer in range(self.layers):
            at = max(at, self.step.boundary(layer))
            time = self.attentions[layer]
            if time is None:
                missing += 1
                time = max(0, min(attentions[layer], self.latest[layer] - at))
            attended.append(time)
            at = max(at + time, self.step.saved[layer] or 0)  # the stream is not past a save that is not issued yet
            seen.append(None)
            if layer + 1 == self.layers:
                last = self._last_rest(at)
                rested.append(rests[layer] if last is None else last)
                break
            rest = self.rests[layer]
            if rest is None:
                rest = seen[-1] = self._busy_until_boundary(layer + 1, at)
            if rest is None:
                rest = rests[layer]
                if busy is not None:
                    rest = max(rest, min(busy[layer], self.until[layer + 1] - at))
            rested.append(rest)
            at += rest
        return attended, rested, seen, missing

    def _busy_until_boundary(self, layer: int, at: int) -> int | None:
        """From `at` to when the stream reached the boundary of a layer, ns, where it was seen not there yet."""
        reached = max(self.reached[layer] or 0, self.since[layer])
        return reached - at if reached > max(at, self.step.boundary(layer) + SLACK_NS) else None


def _seen(task: TaskRun, kind: DependencyKind, late: int) -> int | None:
    """When an NPU event of the task completed, ns: of the simulator, by a wait that found it incomplete, or between two
    looks of the sampler that are near each other and later than `late`.
    """
    met = task.met.get(kind)
    if met is not None and met.proof is Proof.MODEL:
        return met.at
    code = Code.GATE_NPU if kind is DependencyKind.GATE_NPU else Code.SAVE_NPU
    incomplete = task.unmet.get(kind)
    if incomplete is None:
        return None
    if met is not None and met.proof is Proof.QUERY and 0 <= met.at - incomplete <= SEEN_NS:
        return (incomplete + met.at) // 2 if incomplete > late else None
    return next((span.end for span in task.spans if span.code is code and span.begin <= incomplete <= span.end), None)


def _end(known: int | None, at: int | None) -> int | None:
    """The earlier of two observations."""
    if known is None or at is None:
        return at if known is None else known
    return min(known, at)


def _medians(steps: list[list[int | None]], *, of_others: bool = True) -> list[int]:
    """For each layer the median over the steps; where a layer was never seen, that of all others; 0 for none."""
    everything = [value for values in steps for value in values if value is not None] if of_others else []
    middle = round(statistics.median(everything)) if everything else 0
    found = []
    for layer in zip(*steps, strict=True):
        known = [value for value in layer if value is not None]
        found.append(round(statistics.median(known)) if known else middle)
    return found
