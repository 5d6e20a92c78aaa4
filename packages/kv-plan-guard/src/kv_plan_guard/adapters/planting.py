"""Plant one fault into a live runner's own tensors and objects, once, at the first step where it can exist.

Nothing that the guard reads as its expectation is touched: no SchedulerOutput, no mirror, no snapshot. The places are
methods of the runner instance, so that a fault lies below the guard's hooks: what it changes goes the way of any other
value into the builders' metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Place: TypeAlias = Literal["inputs", "plan", "append", "add", "metadata", "sampled"]
FIRST_STEP: Final = 3  # earlier steps show that the same engine is silent before the fault


@dataclass(slots=True)
class Scene:
    """What a fault may change. `batch`, `tables`, `slots`: the step's input batch, block tables and slot mappings."""

    runner: Any
    gid: int
    batch: Any = None
    tables: Any = None
    slots: Any = None
    metadata: Any = None
    arguments: list[Any] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)  # what a fault keeps from earlier steps

    @property
    def block_size(self) -> int:
        """Tokens per kernel block of the fault's group."""
        return int(self.runner.kernel_block_sizes[self.gid])

    @property
    def pool(self) -> int:
        """Kernel blocks of the fault's group."""
        return self.pool_of(self.gid)

    def pool_of(self, gid: int) -> int:
        """Kernel blocks of a group."""
        manager, kernel = int(self.runner.block_tables.block_sizes[gid]), int(self.runner.kernel_block_sizes[gid])
        return int(self.runner.kv_cache_config.num_blocks) * (manager // kernel)

    def lengths(self) -> list[int]:
        """Tokens of each row after this step, by the runner's own host counts."""
        batch = self.batch
        return (batch.num_computed_tokens_np[: batch.num_reqs] + batch.num_scheduled_tokens[: batch.num_reqs]).tolist()

    def last_column(self, row: int) -> int:
        """The column that the row's last token is written to."""
        return (self.lengths()[row] - 1) // self.block_size if not self.is_state else 0

    @property
    def is_state(self) -> bool:
        """Whether the fault's group holds recurrent state."""
        spec = self.runner.kv_cache_config.kv_cache_groups[self.gid].kv_cache_spec
        return "Mamba" in type(spec).__name__


Plant: TypeAlias = Callable[[Scene], bool]


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault: `plant` changes the scene and returns whether it could.

    `wants`: `slots` needs a group with a slot mapping, `table` any group (a recurrent one where there is one), `groups`
    two groups, `state` a recurrent group, `host` lengths that operators take from the host, `drafts` speculation.
    `workload` names what has to be asked of the engine for the fault to be possible.
    """

    name: str
    place: Place
    plant: Plant
    wants: str = "slots"
    workload: str = "mixed"


FAULTS: dict[str, Fault] = {}


def fault(place: Place, wants: str = "slots", workload: str = "mixed") -> Callable[[Plant], Plant]:
    """Put a function into the catalogue under its own name; see `Fault`."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        FAULTS[name] = Fault(name, place, plant, wants, workload)
        return plant

    return register


def has_rows(scene: Scene, at_least: int = 1) -> bool:
    """Whether the step's batch has so many rows."""
    return scene.batch is not None and scene.batch.num_reqs >= at_least


def with_row(ids: Any, gid: int, new: list[int]) -> tuple[list[int], ...]:
    """The block ids of all groups with one group's replaced."""
    return tuple(new if group == gid else list(old) for group, old in enumerate(ids))


class Planter:
    """Wraps the methods of one runner instance; `step` counts its real steps, `planted` is the step of the fault.

    Without a fault it only counts: the control.
    """

    def __init__(self, runner: Any, fault: Fault | None, gid: int) -> None:
        self.fault = fault
        self.step = -1
        self.planted: int | None = None
        self.outputs: dict[int, tuple[int, Any]] = {}  # by identity, each kept alive: which step a decision became
        self.scene = Scene(runner, gid)
        self._wrapped: list[tuple[Any, str]] = []
        self._watch(runner)

    def remove(self) -> None:
        """Give every method that was wrapped its own back."""
        for holder, name in self._wrapped:
            holder.__dict__.pop(name, None)

    def _wrap(self, holder: Any, name: str, method: Any) -> None:
        setattr(holder, name, method)
        self._wrapped.append((holder, name))

    def _watch(self, runner: Any) -> None:
        execute = runner.execute_model

        def execute_model(scheduler_output: Any, *args: Any, **named: Any) -> Any:
            if not named.get("dummy_run"):
                self.step += 1
                self.outputs[id(scheduler_output)] = (self.step, scheduler_output)
                self._before(scheduler_output)
            return execute(scheduler_output, *args, **named)

        self._wrap(runner, "execute_model", execute_model)
        if self.fault is not None:
            getattr(self, f"_at_{self.fault.place}")(runner)

    def _before(self, scheduler_output: Any) -> None:
        """Remember what a fault may name later: blocks of finished requests, and rows of requests that come back."""
        scene = self.scene
        states, tables = scene.runner.req_states, scene.runner.block_tables
        freed = scene.memory.setdefault("freed", [])
        rows, resumed = scene.memory.setdefault("rows", {}), scene.memory.setdefault("resumed", {})
        taken: set[int] = set()
        for request in scheduler_output.scheduled_new_reqs:
            taken.update(block for group in request.block_ids for block in group)
            if request.req_id in rows:
                resumed[request.req_id] = rows[request.req_id]
            rows[request.req_id] = list(request.block_ids[scene.gid])
        for groups in scheduler_output.scheduled_cached_reqs.new_block_ids:
            taken.update(block for ids in groups or () for block in ids)
        for req_id in scheduler_output.finished_req_ids:
            index = states.req_id_to_index.get(req_id)
            if index is not None:
                count = int(tables.num_blocks.np[scene.gid, index])
                freed.extend(tables.block_tables[scene.gid].gpu[index, :count].tolist())
        freed[:] = [block for block in freed if block and block not in taken]

    def _try(self) -> bool:
        if self.fault and self.planted is None and self.step >= FIRST_STEP and self.fault.plant(self.scene):
            self.planted = self.step
            return True
        return False

    def _at_inputs(self, runner: Any) -> None:
        prepare = runner.prepare_inputs

        def prepare_inputs(*args: Any, **named: Any) -> Any:
            self.scene.batch = batch = prepare(*args, **named)
            self._try()
            return batch

        self._wrap(runner, "prepare_inputs", prepare_inputs)

    def _at_plan(self, runner: Any) -> None:
        prepare = runner.prepare_attn

        def prepare_attn(batch: Any) -> Any:
            tables, slots = prepare(batch)
            self.scene.batch, self.scene.tables, self.scene.slots = batch, tables, slots
            self._try()
            return tables, slots

        self._wrap(runner, "prepare_attn", prepare_attn)

    def _at_append(self, runner: Any) -> None:
        """`append_block_ids(req_index, new_block_ids, overwrite)`: the fault may change the arguments, or take them."""
        append = runner.block_tables.append_block_ids

        def append_block_ids(*arguments: Any, **named: Any) -> None:
            self.scene.arguments = [*arguments, named.get("overwrite")] if "overwrite" in named else list(arguments)
            self._try()
            for index, ids, overwrite in self.scene.memory.pop("calls", [tuple(self.scene.arguments)]):
                append(index, ids, overwrite=overwrite)

        self._wrap(runner.block_tables, "append_block_ids", append_block_ids)

    def _at_add(self, runner: Any) -> None:
        """Behind `add_requests`: rows of new and resumed requests are staged and not yet written."""
        add = runner.add_requests

        def add_requests(scheduler_output: Any) -> None:
            add(scheduler_output)
            self.scene.arguments = [scheduler_output]
            self._try()

        self._wrap(runner, "add_requests", add_requests)

    def _at_metadata(self, runner: Any) -> None:
        """What the builder of the fault's group returns: the last object before the kernels."""
        for group in runner.attn_groups[self.scene.gid]:
            builder = group.get_metadata_builder(0)
            build = builder.build

            def built(*args: Any, build: Any = build, **named: Any) -> Any:
                self.scene.metadata = metadata = build(*args, **named)
                self._try()
                return metadata

            self._wrap(builder, "build", built)

    def _at_sampled(self, runner: Any) -> None:
        """`postprocess_sampled`, where rejected drafts are taken back on the device: shows in the next step's plan."""
        postprocess = runner.postprocess_sampled

        def postprocess_sampled(*args: Any, **named: Any) -> Any:
            self.scene.arguments = [args, named]
            if self._try():
                self.planted = self.step + 1
                args, named = self.scene.arguments
            return postprocess(*args, **named)

        self._wrap(runner, "postprocess_sampled", postprocess_sampled)
