"""A connector that claims tokens, loads nothing and says so: for guard_rejected_load.py. Imported by the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from guard_rejected_load import BLOCK
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


@dataclass
class Claims(KVConnectorMetadata):
    """Request and the blocks that it waits for."""

    loads: list[tuple[str, list[int]]] = field(default_factory=list)


COUNTS = {"claimed": 0, "rejected": 0}


class RejectingConnector(KVConnectorBase_V1):
    """Claims the whole blocks of every second prompt, once, and cannot load the first of them."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._later = vllm_config.kv_transfer_config.kv_connector_extra_config["load"] == "async"
        self._seen: set[str] = set()
        self._claims: list[tuple[str, list[int]]] = []
        self._bad: set[int] = set()
        self._open: dict[str, int] = {}  # asynchronous loads: request, the block that cannot be loaded

    # -- the scheduler's side
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if request.request_id in self._seen or int(request.request_id.split("-")[0]) % 2 == 0:
            return 0, False
        return (request.num_tokens - 1 - num_computed_tokens) // BLOCK * BLOCK, self._later

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._seen.add(request.request_id)
            (row,) = blocks.get_block_ids()
            COUNTS["claimed"] += 1
            self._claims.append((request.request_id, list(row[: num_external_tokens // BLOCK])))

    def build_connector_meta(self, scheduler_output: Any) -> Claims:
        claims, self._claims = self._claims, []
        return Claims(claims)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    # -- the worker's side
    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        for name, row in self._get_connector_metadata().loads:
            if self._later:
                self._open[name] = row[0]
            else:
                self._bad.add(row[0])

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        over, self._open = self._open, {}
        self._bad |= set(over.values())
        return None, set(over) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        bad, self._bad = self._bad, set()
        COUNTS["rejected"] += len(bad)
        return bad

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return
