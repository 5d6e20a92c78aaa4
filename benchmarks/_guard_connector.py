"""A KV connector without a store: it claims tokens of some prompts, loads them later or in the step that uses them, and
sometimes fails.

The scheduler's side is a real `KVConnectorBase_V1`; `WORKER` plays the worker's side inside the same process.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.outputs import KVConnectorOutput

BLOCK = 16


@dataclass
class Load:
    """One load: blocks of a request that wait to be filled."""

    req_id: str
    blocks: list[int]
    first_block: int
    first_token: int
    num_tokens: int
    inside: bool = False  # in the step that uses it


@dataclass
class Metadata(KVConnectorMetadata):
    """Loads that begin, and requests whose loads are over, as the scheduler's side knows them."""

    started: list[Load] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


class RandomConnector(KVConnectorBase_V1):
    """Claims a random number of tokens for about a third of the requests, to be loaded asynchronously; with `inside` in
    its extra configuration, two in three of them in the step that uses them.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._draw = random.Random(len(repr(role)))
        self._seen: set[str] = set()
        self._begin: list[Load] = []
        self._inside = bool(vllm_config.kv_transfer_config.kv_connector_extra_config.get("inside"))
        self._now: set[str] = set()  # requests whose load is inside

    # -- scheduler's side ------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if request.request_id in self._seen:
            return 0, False
        claimed = (request.num_tokens - 1 - num_computed_tokens) // BLOCK * BLOCK
        if claimed <= 0 or self._draw.random() > 0.35:
            return 0, False
        tokens = self._draw.randrange(1, claimed // BLOCK + 1) * BLOCK
        inside = self._inside and self._draw.random() < 0.67
        (self._now.add if inside else self._now.discard)(request.request_id)
        return tokens, not inside

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if not num_external_tokens:
            return
        self._seen.add(request.request_id)
        (row,) = blocks.get_block_ids()
        have = len(row) * BLOCK
        # The blocks of the whole row: the last `num_external_tokens` of what is allocated so far are loaded.
        first = have // BLOCK - num_external_tokens // BLOCK
        load = row[first : first + num_external_tokens // BLOCK]
        name = request.request_id
        self._begin.append(Load(name, load, first, first * BLOCK, num_external_tokens, name in self._now))

    def build_connector_meta(self, scheduler_output: Any) -> Metadata:
        begin, self._begin = self._begin, []
        return Metadata(begin)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    # -- worker's side: not used here ------------------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return


class Worker:
    """Ends loads some steps later, or at once; one block in ten loads cannot be read, in five where they are inside."""

    def __init__(self) -> None:
        self.open: dict[str, Load] = {}
        self.just_ended: set[str] = set()
        self.failed_inside = 0

    def step(self, metadata: Metadata, draw: random.Random) -> KVConnectorOutput | None:
        inside = [load for load in metadata.started if load.inside]
        for load in metadata.started:
            if not load.inside:
                self.open[load.req_id] = load
        bad = {draw.choice(load.blocks) for load in inside if draw.random() < 0.2}
        self.failed_inside += len(bad)
        self.just_ended |= {load.req_id for load in inside}
        ended = [name for name in self.open if draw.random() < 0.4]
        invalid = {draw.choice(self.open[name].blocks) for name in ended if draw.random() < 0.1}
        for name in ended:
            del self.open[name]
        self.just_ended |= set(ended)
        if not ended and not bad:
            return None
        return KVConnectorOutput(finished_recving=set(ended), invalid_block_ids=invalid | bad)


WORKER = Worker()


def facts_of(metadata: Metadata) -> Any:
    """The guard's facts of one step: what begins now, and what the worker has reported done since."""
    from kv_plan_guard import ConnectorFacts, Transfer

    done, WORKER.just_ended = WORKER.just_ended, set()
    started = [
        Transfer(
            f"load {load.req_id}",
            load.req_id,
            0,
            "load",
            load.blocks,
            first_block=load.first_block,
            first_token=load.first_token,
            num_tokens=load.num_tokens,
        )
        for load in metadata.started
    ]
    waiting = {load.req_id: [load.blocks] for load in metadata.started if not load.inside}
    return ConnectorFacts("RandomConnector", started, frozenset(f"load {name}" for name in done), waiting=waiting)
