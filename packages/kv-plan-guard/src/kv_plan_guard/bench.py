"""What the guard costs on this machine: observe, snapshot and audit, beside the floor of comparing the same arrays.

Every step of a scenario has plans of its own; no two steps repeat. Times are medians of hot samples in one run.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kv_plan_guard import snapshot
from kv_plan_guard.config import Config
from kv_plan_guard.facts import CachedRequests, NewRequest, PlanFacts, StepFacts
from kv_plan_guard.guard import Guard
from kv_plan_guard.layout import GroupLayout, Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

SAMPLES: Final = 40
WARM: Final = 8
BLOCK: Final = 128


@dataclass(frozen=True, slots=True)
class Cost:
    """Medians in microseconds of one scenario; `total` is the median of the sums, step by step."""

    name: str
    observe_us: float
    snapshot_us: float
    audit_us: float
    total_us: float
    floor_us: float
    slow_audits: int
    snapshot_bytes: int

    @property
    def ratio(self) -> float:
        """Total over floor: the figure that carries over to other machines."""
        return self.total_us / self.floor_us


class Engine:
    """A stand-in for scheduler and runner: hands out blocks in shuffled order and builds plans token by token.

    Written without the guard's rules: a plan comes from plain positions, division and remainder.
    """

    def __init__(self, rows: int, columns: int, pool: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._free = (self._rng.permutation(pool - 1) + 1).tolist()
        self._table = np.zeros((rows, columns), np.int32)
        self._lent: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._born = 0
        self.step = 0

    def start(self, computed: int) -> str:
        """A request with `computed` tokens behind it, not known to the guard yet."""
        self._born += 1
        name = f"cmpl-{self._born:032d}-0"
        self._lent[name], self._computed[name] = [], computed
        return name

    def next(self, work: dict[str, int], new: set[str], finished: set[str]) -> tuple[StepFacts, list[Any], list[str]]:
        """One step: `work` tokens per request, in row order."""
        self.step += 1
        for name in finished:
            self._free += self._lent.pop(name)
            del self._computed[name]
        fresh, cached_ids, cached_blocks, cached_computed = [], [], [], []
        for name, tokens in work.items():
            computed = self._computed[name]
            need = -(-(computed + tokens) // BLOCK) - len(self._lent[name])
            blocks = [self._free.pop() for _ in range(need)]
            self._lent[name] += blocks
            if name in new:
                fresh.append(NewRequest(name, (blocks,), computed, None))
            else:
                cached_ids.append(name)
                cached_blocks.append((blocks,) if blocks else None)
                cached_computed.append(computed)
        facts = StepFacts(
            self.step,
            dict(work),
            fresh,
            CachedRequests(cached_ids, cached_blocks, cached_computed),
            frozenset(finished),
        )
        return facts, self._plan(work), list(work)

    def _plan(self, work: dict[str, int]) -> list[tuple[str, NDArray[Any]]]:
        size, total = len(work), sum(work.values())
        offsets = np.zeros(size + 1, np.int32)
        lengths = np.zeros(size, np.int32)
        positions = np.zeros(total, np.int64)
        slots = np.zeros(total, np.int32)
        widest = 0
        for row, (name, tokens) in enumerate(work.items()):
            computed, blocks = self._computed[name], self._lent[name]
            self._table[row, : len(blocks)] = blocks
            at = int(offsets[row])
            offsets[row + 1] = at + tokens
            where = np.arange(computed, computed + tokens)
            positions[at : at + tokens] = where
            slots[at : at + tokens] = np.array(blocks)[where // BLOCK] * BLOCK + where % BLOCK
            lengths[row] = computed + tokens
            self._computed[name] = computed + tokens
            widest = max(widest, len(blocks))
        return [
            ("block_table", self._table[:size, :widest].copy()),
            ("slot_mapping", slots),
            ("seq_lens", lengths),
            ("query_start_loc", offsets),
            ("positions", positions),
        ]


Step = tuple[StepFacts, list[tuple[str, "NDArray[Any]"]], list[str]]


def prefill(tokens: int) -> Iterator[Step]:
    """A new request of `tokens` tokens in every step; the one before it is finished."""
    engine = Engine(1, -(-tokens // BLOCK) + 1, 4096)
    last: set[str] = set()
    while True:
        name = engine.start(0)
        yield engine.next({name: tokens}, {name}, last)
        last = {name}


def decode(requests: int, context: int) -> Iterator[Step]:
    """`requests` requests, one token each and step, from about `context` tokens on."""
    engine = Engine(requests, -(-context // BLOCK) + 4, requests * (context // BLOCK + 4) + 64)
    names = [engine.start(context + at) for at in range(requests)]
    new = set(names)
    while True:
        yield engine.next(dict.fromkeys(names, 1), new, set())
        new = set()


def mixed(decodes: int, chunks: int, chunk: int, prompt: int) -> Iterator[Step]:
    """Decodes beside prompts in chunks; a prompt that is through is finished and replaced by a new one."""
    engine = Engine(decodes + chunks, 64, 8192)
    steady = [engine.start(1000 + at) for at in range(decodes)]
    working = [engine.start(0) for _ in range(chunks)]
    new, finished = {*steady, *working}, set[str]()
    left = dict.fromkeys(working, prompt)
    while True:
        work = dict.fromkeys(steady, 1) | dict.fromkeys(working, chunk)
        yield engine.next(work, new, finished)
        new, finished = set(), set()
        for at, name in enumerate(working):
            left[name] -= chunk
            if left[name] <= 0:
                finished.add(name)
                working[at] = engine.start(0)
                new.add(working[at])
                left[working[at]] = prompt


#: Figure name to its scenario.
SCENARIOS: Final[dict[str, Callable[[], Iterator[Step]]]] = {
    "c1_prefill_2048": lambda: prefill(2048),
    "c8_decode": lambda: decode(8, 1000),
    "b256_32k": lambda: decode(256, 32_000),
    "c8_mixed": lambda: mixed(4, 4, 512, 4096),
    "prefill_16k": lambda: prefill(16_384),
}


def layout(pool: int = 1 << 17) -> Layout:
    """One dense group as Ascend has it: int32 slots, blocks of 128 tokens."""
    return Layout((GroupLayout("full", BLOCK, pool, slot_dtype="int32"),))


def measure(name: str, samples: int = SAMPLES) -> Cost:
    """Run one scenario; AssertionError if the guard finds anything."""
    steps = SCENARIOS[name]()
    guard = Guard(Config(enabled=True, replay_files=1), layout())
    buffer = np.zeros(1 << 22, np.uint8)
    observe: list[float] = []
    pack: list[float] = []
    audit: list[float] = []
    total: list[float] = []
    floor: list[float] = []
    clock = time.perf_counter_ns
    # Made beforehand: in an engine no Python loop makes the plans either. Floor and guard take turns step by step, so
    # that a busy machine slows both alike; each sees arrays that nothing has touched in between.
    made = [next(steps) for _ in range(WARM + samples)]
    copies = [[array.copy() for _, array in arrays] for _, arrays, _ in made]
    results = []
    gc_was_on = gc.isenabled()
    gc.disable()
    for number, (facts, arrays, req_ids) in enumerate(made):
        t0 = clock()
        for (_, array), copy in zip(arrays, copies[number], strict=True):
            np.array_equal(array, copy)
        if number >= WARM:
            floor.append((clock() - t0) / 1e3)
        t0 = clock()
        first = guard.observe(facts)
        t1 = clock()
        parts: dict[str, Any] = snapshot.pack(arrays, buffer)
        plan = PlanFacts(facts.step, 0, req_ids, **parts)
        t2 = clock()
        found = guard.audit(plan)
        t3 = clock()
        results += [first, found]
        if number >= WARM:
            for times, ns in ((observe, t1 - t0), (pack, t2 - t1), (audit, t3 - t2), (total, t3 - t0)):
                times.append(ns / 1e3)
    if gc_was_on:
        gc.enable()
    for result in results:
        assert result.ok, guard.report(result.violations)
    size = sum(array.nbytes for _, array in made[-1][1])
    return Cost(
        name,
        median(observe),
        median(pack),
        median(audit),
        median(total),
        median(floor),
        guard.stats.slow_audits,
        size,
    )


def measure_all(samples: int = SAMPLES) -> list[Cost]:
    """All scenarios."""
    return [measure(name, samples) for name in SCENARIOS]


def table(costs: list[Cost]) -> str:
    """The costs as text."""
    head = ("scenario", "observe", "snapshot", "audit", "total us", "floor us", "ratio", "bytes")
    rows = [head]
    rows += [
        (
            c.name,
            f"{c.observe_us:.1f}",
            f"{c.snapshot_us:.1f}",
            f"{c.audit_us:.1f}",
            f"{c.total_us:.1f}",
            f"{c.floor_us:.1f}",
            f"{c.ratio:.1f}",
            str(c.snapshot_bytes),
        )
        for c in costs
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


__all__ = ["SCENARIOS", "Cost", "Engine", "layout", "measure", "measure_all", "table"]
