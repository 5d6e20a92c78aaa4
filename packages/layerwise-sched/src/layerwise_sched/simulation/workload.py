"""What a simulated worker does in each step: durations by layer, in integer nanoseconds, generated or replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from layerwise_sched.errors import WorkloadError
from layerwise_sched.model import DataPath, LayerPlan
from layerwise_sched.simulation.layout import make_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

ABSENT: Final = -1
"""A duration of a thing that does not happen: no load, or no save task, in this layer."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One forward pass. Every list has one entry a layer, ns; ABSENT where the thing does not happen.

    host: compute thread, from the end of `wait_for_layer_load` to the recorded attention boundary.
    post: compute thread, from there to the recorded save event.
    after: compute thread, from there to the next layer.
    attention: compute stream, from the boundary to the save event. rest: compute stream, after it.
    load: backend calls of the load; ABSENT: no I/O. save: the send thread's put; ABSENT: no save task.
    build, submit, finish, handler: the receive thread's own parts (`layerwise_sched.stages`).
    slot: how long after the dequeue the other connector releases the slot, ns; 0 everywhere without one.
    requests: ids of the step's requests. groups: KV cache groups of each layer's load.
    gap: compute thread, before the step begins, ns.
    """

    host: Sequence[int]
    post: Sequence[int]
    after: Sequence[int]
    attention: Sequence[int]
    rest: Sequence[int]
    load: Sequence[int]
    save: Sequence[int]
    build: Sequence[int]
    submit: Sequence[int]
    finish: Sequence[int]
    handler: Sequence[int]
    slot: Sequence[int]
    requests: tuple[str, ...] = ()
    groups: Sequence[tuple[int, ...]] = ()
    gap: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """The steps of one worker under one plan.

    window: upstream's hybrid rule (several groups on the range path): tasks are submitted by layer distance and not
    by count. slot_waiter: another connector's release waiter is installed.
    """

    plan: LayerPlan
    steps: Sequence[StepTimes]
    window: bool = False
    slot_waiter: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    """What to generate. Times are means in microseconds; a spread is the sigma of a log-normal around the mean.

    path .. buckets: see `make_plan`. steps: forward passes. requests: requests batched in each step; a load's and a
    save's time grow with it, by `per_request` of the mean for each further one. hit_every: every n-th step admits a
    new pool hit; only there do independent layers load (continued chunks find them resident).
    load_us, save_us, attention_us, rest_us, host_us, build_us: means. spread: of loads and saves.
    straggler_us, straggler_layers: saves of these layers take that much longer in every step.
    straggler_odds: chance of any other save to do so. saving_rank: False for a TP rank that saves nothing.
    no_save: layers without a save task. groups: KV cache groups; layer l belongs to group l % groups.
    slot_us: another connector's slot release, after the dequeue; None: no waiter.
    """

    path: DataPath = DataPath.GVA
    layers: int = 12
    shared_buffers: int | None = None
    prefetch_layers: int | None = None
    independent: tuple[int, ...] = (0,)
    buckets: tuple[int, ...] | None = None
    steps: int = 20
    requests: int = 1
    per_request: float = 0.5
    hit_every: int = 1
    load_us: float = 2_300
    save_us: float = 300
    attention_us: float = 1_000
    rest_us: float = 1_000
    host_us: float = 200
    build_us: float = 40
    spread: float = 0.0
    straggler_us: float = 0.0
    straggler_layers: tuple[int, ...] = ()
    straggler_odds: float = 0.0
    saving_rank: bool = True
    no_save: tuple[int, ...] = ()
    groups: int = 1
    slot_us: float | None = None
    names: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.path, DataPath):
            raise WorkloadError(f"path must be a DataPath ({', '.join(DataPath)}), got {self.path!r}")
        for name in ("steps", "requests", "hit_every", "groups"):
            if getattr(self, name) < 1:
                raise WorkloadError(f"{name} must be >= 1, got {getattr(self, name)!r}")
        for name in ("load_us", "save_us", "attention_us", "rest_us", "host_us", "build_us", "straggler_us", "spread"):
            if not 0 <= getattr(self, name) < 1e9:
                raise WorkloadError(f"{name} must be from 0 to below 1e9, got {getattr(self, name)!r}")
        if not 0 <= self.straggler_odds <= 1:
            raise WorkloadError(f"straggler_odds must be from 0 to 1, got {self.straggler_odds!r}")


def generate(spec: Spec, seed: int = 0) -> Workload:
    """A workload from a spec; the same seed gives the same integers. Raises WorkloadError."""
    plan = make_plan(spec.layers, spec.path, spec.shared_buffers, spec.prefetch_layers, spec.independent, spec.buckets)
    rng = np.random.default_rng(seed)
    independent = {layer % spec.layers for layer in spec.independent}
    return Workload(
        plan,
        [_step(spec, number, independent, rng) for number in range(spec.steps)],
        window=spec.path is DataPath.RANGE and spec.groups > 1,
        slot_waiter=spec.slot_us is not None,
    )


def _step(spec: Spec, number: int, independent: set[int], rng: np.random.Generator) -> StepTimes:
    layers = spec.layers
    scale = 1 + spec.per_request * (spec.requests - 1)

    def constant(us: float) -> list[int]:
        return [round(us * 1_000)] * layers

    def drawn(us: float) -> list[int]:
        factor = np.exp(rng.normal(0, spec.spread, layers) - spec.spread**2 / 2)
        return [round(us * 1_000 * scale * value) for value in factor]

    load, save = drawn(spec.load_us), drawn(spec.save_us)
    late = rng.random(layers) < spec.straggler_odds
    for layer in range(layers):
        if late[layer] or layer in spec.straggler_layers:
            save[layer] += round(spec.straggler_us * 1_000)
        if not spec.saving_rank or layer in spec.no_save:
            save[layer] = ABSENT
        if layer in independent and number % spec.hit_every:
            load[layer] = ABSENT
    return StepTimes(
        host=constant(spec.host_us),
        post=constant(20),
        after=constant(20),
        attention=constant(spec.attention_us),
        rest=constant(spec.rest_us),
        load=load,
        save=save,
        build=constant(spec.build_us),
        submit=constant(20),
        finish=constant(20),
        handler=constant(0),
        slot=constant(spec.slot_us or 0),
        requests=spec.names or tuple(f"r{number}.{index}" for index in range(spec.requests)),
        groups=[(layer % spec.groups,) for layer in range(layers)],
    )
