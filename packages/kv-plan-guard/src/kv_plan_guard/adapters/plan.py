"""The observation: which tensors of the final attention metadata are packed, and the `PlanFacts` made of them.

Metadata classes differ between backends and releases, so they are told by what they have. Read are, per KV cache group:
the block table, the slot mapping, query_start_loc and the lengths that the operators get. What a class does not hold is
taken from the runner's own tensors that its builder was given, and the coverage notes say so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kv_plan_guard.facts import PlanFacts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kv_plan_guard.layout import GroupLayout, Layout


@dataclass(slots=True)
class GroupSource:
    """One attention group of a KV cache group: the name of a layer of it, and what its metadata was seen to hold."""

    gid: int
    layer: str
    key: str
    layout: GroupLayout


@dataclass(slots=True)
class HostPart:
    """What of a plan is on the host already: lengths and query ends that operators take as lists."""

    seq_lens: list[int] | None = None
    query_ends: list[int] | None = None


@dataclass(slots=True)
class Taken:
    """The plan of one step before its copy has landed: the tensors by name, and everything the host knew."""

    req_ids: list[str]
    num_tokens: int
    num_reqs: int
    sources: list[GroupSource]
    tensors: list[tuple[str, Any]]
    hosts: dict[str, HostPart] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)  # a part that is the same memory as one packed before


class PlanReader:
    """Reads the plans of one runner; `notes` say what could not be read from the final metadata itself."""

    def __init__(self, runner: Any, layout: Layout) -> None:
        self.layout = layout
        self.device = runner.device
        self.sources: list[GroupSource] = []
        self.notes: dict[str, None] = {}
        draft = getattr(runner.speculator, "draft_attn_layer_names", None) or set()
        for gid, groups in enumerate(runner.attn_groups):
            for number, group in enumerate(groups):
                # The drafter writes its own plan; the target's metadata of a shared group speaks for the target.
                layer = next((name for name in group.layer_names if name not in draft), None)
                if layer is not None:
                    self.sources.append(GroupSource(gid, layer, f"{gid}.{number}", layout.groups[gid]))

    def take(self, batch: Any, metadata: Any, block_tables: Any, slot_mappings: Any) -> Taken:
        """Collect this step's tensors. `batch` is the runner's input batch, `metadata` what its builders returned."""
        longest = _longest(batch)
        taken = Taken(
            req_ids=batch.req_ids,
            num_tokens=int(batch.num_tokens_after_padding),
            num_reqs=int(batch.num_reqs_after_padding),
            sources=[],
            tensors=[],
        )
        seen: dict[tuple[Any, ...], str] = {}
        pack = _Packer(taken, seen)
        pack.add("positions", batch.positions)
        for source in self.sources:
            final = metadata.get(source.layer)
            if final is None:
                self.notes[f"layer {source.layer} has no attention metadata"] = None
                continue
            taken.sources.append(source)
            self._take_group(pack, source, final, batch, block_tables[source.gid], slot_mappings[source.gid], longest)
        return taken

    def _take_group(
        self, pack: _Packer, source: GroupSource, final: Any, batch: Any, table: Any, slots: Any, longest: int | None
    ) -> None:
        key, group = source.key, source.layout
        own_table = _tensor(final, "block_tables", "block_table")
        if own_table is None or own_table.dim() != 2:
            own_table = table
            if group.kind != "mamba":
                self._note(final, "block table")
        columns = _columns(group, longest, int(own_table.shape[1]))
        pack.add(f"{key}.block_table", own_table[:, :columns])
        if group.slots != "unused":
            own_slots = _tensor(final, "slot_mapping")
            if own_slots is None:
                self._note(final, "slot mapping")
                own_slots = slots
            elif own_slots.data_ptr() != slots.data_ptr() and group.kind != "cross":
                pack.add(f"{key}.runner_slots", slots)  # writers may use either
            pack.add(f"{key}.slot_mapping", own_slots)
        host = HostPart(_list(final, "seq_lens_list"), _list(final, "actual_seq_lengths_q"))
        on_host = host.seq_lens is not None
        lens = _tensor(final, "seq_lens_gpu") if on_host else _tensor(final, "seq_lens_gpu", "seq_lens")
        if lens is None:
            lens = batch.seq_lens
            if not on_host and group.kind != "mamba":
                self._note(final, "sequence lengths")
        pack.add(f"{key}.seq_lens", lens)
        starts = _tensor(final, "query_start_loc")
        pack.add(f"{key}.query_start_loc", batch.query_start_loc if starts is None else starts)
        if batch.dcp_local_seq_lens is not None and group.shards > 1:
            local = _tensor(final, "dcp_local_seq_lens", "dcp_context_kv_lens")
            pack.add(f"{key}.local_seq_lens", batch.dcp_local_seq_lens if local is None else local)
        if group.kind == "mamba":
            self._take_state(pack, key, final)
        pack.taken.hosts[key] = host

    def _take_state(self, pack: _Packer, key: str, final: Any) -> None:
        """Recurrent state indices: decodes [d, 1 + speculative blocks], then prefills [p], in row order."""
        for name, short in (("state_indices_tensor_d", "d"), ("state_indices_tensor_p", "p")):
            indices = _tensor(final, name)
            if indices is not None and indices.numel():
                pack.add(f"{key}.state_{short}", indices[:, 0] if indices.dim() == 2 else indices)
        if _tensor(final, "state_indices_tensor_d") is None and _tensor(final, "state_indices_tensor_p") is None:
            self._note(final, "state indices")
        accepted = _tensor(final, "num_accepted_tokens")
        if accepted is not None:
            pack.add(f"{key}.num_accepted", accepted)

    def _note(self, final: Any, what: str) -> None:
        self.notes[f"{type(final).__name__} holds no {what} that is known here: the runner's own was audited"] = None

    def plans(self, step: int, taken: Taken, landed: dict[str, NDArray[Any]]) -> list[PlanFacts]:
        """The facts of each group, from the landed arrays."""

        def part(name: str) -> NDArray[Any] | None:
            return landed.get(taken.alias.get(name, name))

        made = []
        for source in taken.sources:
            key, group = source.key, source.layout
            host = taken.hosts[key]
            lens = part(f"{key}.seq_lens")
            starts = part(f"{key}.query_start_loc")
            cross = group.kind == "cross"
            facts: dict[str, Any] = {
                "step": step,
                "group": source.gid,
                "req_ids": taken.req_ids,
                "num_tokens": taken.num_tokens,
                "num_reqs": taken.num_reqs,
                "local": self.layout.pcp_size > 1,
            }
            made.append(
                PlanFacts(
                    **facts,
                    query_start_loc=starts,
                    block_table=part(f"{key}.block_table"),
                    slot_mapping=part(f"{key}.slot_mapping"),
                    seq_lens=lens,
                    seq_lens_host=None if host.seq_lens is None else np.asarray(host.seq_lens, np.int64),
                    positions=None if cross else part("positions"),
                    local_seq_lens=part(f"{key}.local_seq_lens"),
                    state_blocks=_joined(part(f"{key}.state_d"), part(f"{key}.state_p")),
                    num_accepted=part(f"{key}.num_accepted"),
                )
            )
            if (other := part(f"{key}.runner_slots")) is not None:
                made.append(PlanFacts(**facts, slot_mapping=other))
            if host.query_ends is not None and starts is not None and host.query_ends != starts[1:].tolist():
                made.append(PlanFacts(**facts, query_start_loc=np.asarray([0, *host.query_ends], np.int64)))
        return made


class _Packer:
    """Collects the tensors to pack; memory that two names share is packed once."""

    def __init__(self, taken: Taken, seen: dict[tuple[Any, ...], str]) -> None:
        self.taken = taken
        self._seen = seen

    def add(self, name: str, tensor: Any) -> None:
        where = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
        first = self._seen.setdefault(where, name)
        if first is not name:
            self.taken.alias[name] = first
        else:
            self.taken.tensors.append((name, tensor))


def _tensor(holder: Any, *names: str) -> Any:
    for name in names:
        value = getattr(holder, name, None)
        if value is not None and hasattr(value, "data_ptr"):
            return value
    return None


def _list(holder: Any, name: str) -> list[int] | None:
    value = getattr(holder, name, None)
    return value if isinstance(value, list) else None


def _longest(batch: Any) -> int | None:
    """The longest sequence of the batch by the runner's own host bound; None where it keeps none."""
    bound = getattr(batch, "seq_lens_cpu_upper_bound", None)
    return None if bound is None else int(bound[: batch.num_reqs].max())


def _columns(group: GroupLayout, longest: int | None, width: int) -> int:
    """How many columns of a row are worth copying: those a sequence of `longest` tokens can need."""
    if longest is None or group.kind == "cross":
        return width
    if group.kind == "ring":
        return min(group.ratio, width)
    if group.kind == "mamba" and group.mamba_mode == "none":
        return min(1 + group.state_blocks, width)
    return min((-(-longest // group.span) + group.state_blocks) * group.ratio, width)


def _joined(decodes: NDArray[Any] | None, prefills: NDArray[Any] | None) -> NDArray[Any] | None:
    parts = [part for part in (decodes, prefills) if part is not None]
    return np.concatenate(parts) if len(parts) == 2 else parts[0] if parts else None
