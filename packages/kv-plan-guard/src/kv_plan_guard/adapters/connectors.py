"""KV connectors by name: what their metadata says about blocks; others leave CONN and LIFETIME inactive.

AscendStoreConnector (vllm-ascend, `kv_pool/ascend_store`): its metadata lists requests with the blocks it keeps for
them, a load where the pool held more than the engine, and saves. Loads for scheduled requests happen inside the step;
requests that are not scheduled wait for theirs, and the worker's output names them when they have arrived. Before
blocks of finished or preempted requests may be used again the worker fences their saves: `released_req_ids`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kv_plan_guard.facts import ConnectorFacts, Transfer

if TYPE_CHECKING:
    from kv_plan_guard.layout import GroupLayout

KNOWN: Final = ("AscendStoreConnector",)
CHECKS: Final = ("LIFETIME", "CONN")


def checks_of(connector: str | None) -> tuple[str, ...]:
    """Which checks the reader of a connector feeds."""
    return CHECKS if connector in KNOWN else ()


class ConnectorReader:
    """Reads one connector's metadata out of each SchedulerOutput; keeps which transfers are open, by request."""

    def __init__(self, name: str | None, groups: tuple[GroupLayout, ...]) -> None:
        self.name = name
        self.groups = groups
        self.known = name in KNOWN
        self._stores: dict[str, list[str]] = {}
        self._waiting: dict[str, list[str]] = {}
        self._over: set[str] = set()  # loads of the step before: done inside it
        self.counts = dict.fromkeys(("loads", "load_tokens", "load_blocks", "stores", "over"), 0)

    def facts(self, step: int, scheduler_output: Any) -> ConnectorFacts | None:
        """The facts of one step; None without a connector, or with one that is not known here."""
        metadata = scheduler_output.kv_connector_metadata if self.known else None
        if metadata is None:
            return None
        finished, self._over = self._over, set()
        for req_id in getattr(metadata, "released_req_ids", None) or ():
            finished.update(self._stores.pop(req_id, ()))
        scheduled = scheduler_output.num_scheduled_tokens
        started: list[Transfer] = []
        tables: dict[tuple[str, int], list[int]] = {}
        waiting: dict[str, list[list[int]]] = {}
        for request in metadata.requests:
            # Copies: the connector goes on extending its own lists, and an audit may come later.
            rows = [list(row) for row in request.block_ids_by_group]
            for gid, row in enumerate(rows):
                if not self.groups[gid].ephemeral and request.req_id in scheduled:
                    tables[request.req_id, gid] = row
            if request.req_id not in scheduled:
                waiting[request.req_id] = rows
            started += self._load(step, request, rows, request.req_id in scheduled)
            started += self._store(step, request, rows)
        self.counts["over"] += len(finished)
        return ConnectorFacts(self.name or "", started, frozenset(finished), tables, {}, waiting)

    def _load(self, step: int, request: Any, rows: list[list[int]], inside: bool) -> list[Transfer]:
        spec = request.load_spec
        if spec is None or not spec.can_load:
            return []
        first, end = int(spec.vllm_cached_tokens), int(spec.kvpool_cached_tokens)
        made = []
        for gid, row in enumerate(rows):
            group = self.groups[gid]
            if group.ephemeral or end <= first:
                continue
            low, high = first // group.span, -(-end // group.span)
            job = f"load {request.req_id} group {gid} step {step}"
            made.append(
                Transfer(
                    job,
                    request.req_id,
                    gid,
                    "load",
                    row[low:high],
                    first_block=low,
                    first_token=first,
                    num_tokens=end - first,
                    computed_before=first,
                )
            )
            self.counts["loads"] += 1
            self.counts["load_tokens"] += end - first
            self.counts["load_blocks"] += high - low
            if inside:
                self._over.add(job)
            else:
                self._waiting.setdefault(request.req_id, []).append(job)
        return made

    def _store(self, step: int, request: Any, rows: list[list[int]]) -> list[Transfer]:
        if not request.can_save:
            return []
        first, end = int(request.save_start_token), int(request.save_end_token)
        made = []
        for gid, row in enumerate(rows):
            group = self.groups[gid]
            if group.ephemeral or end <= first:
                continue
            low = first // group.span
            job = f"store {request.req_id} group {gid} step {step}"
            blocks = row[low : end // group.span]
            if blocks:
                made.append(Transfer(job, request.req_id, gid, "store", blocks, first_block=low))
                self._stores.setdefault(request.req_id, []).append(job)
                self.counts["stores"] += 1
        return made

    def arrived(self, connector_output: Any) -> None:
        """The worker's own connector output of a step: which waiting loads and which saves are over."""
        for req_id in getattr(connector_output, "finished_recving", None) or ():
            self._over.update(self._waiting.pop(req_id, ()))
        for req_id in getattr(connector_output, "finished_sending", None) or ():
            self._over.update(self._stores.pop(req_id, ()))
