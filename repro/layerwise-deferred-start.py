"""vLLM's deferred connector start against the layer-wise AscendStore path: what a step prepares comes a step late.

Since 0.29 vLLM calls `start_load_kv` after the forward in every step that admits no synchronous load. In vllm-ascend
0.29.0rc1 the layer-wise path prepares its load and save tasks there, so such a forward runs with the tasks of the step
before. (0.30.0rc2 prepares them when the step's metadata is bound, in front of the forward: there nothing is late.)
Real here: vLLM's `ActiveKVConnector` (what decides when), `AscendStoreConnector` and its worker with the send and
receive threads (what runs). The tasks themselves, the pool and the device's time are the rig's.
"""

# pairs: 0.29.0

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from _show import finish


class Connector:
    """What vLLM calls: the connector's own methods of a step, on the rig's worker; the rest answers nothing."""

    def __init__(self, rig: Any) -> None:
        from vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store.ascend_store_connector import AscendStoreConnector

        self.real = AscendStoreConnector.__new__(AscendStoreConnector)
        self.real.use_layerwise, self.real.connector_worker = True, rig.worker
        rig.worker.process_layer_data = lambda requests: rig.begin()  # where upstream makes the step's tasks
        self.bind_connector_metadata = self.real.bind_connector_metadata
        self.start_load_kv = self.real.start_load_kv
        self.clear_connector_metadata = self.real.clear_connector_metadata

    def get_finished(self, finished: Any) -> tuple[None, None]:
        """Nothing is ever asynchronous here."""
        del finished
        return None, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **named: None


def steps(sync_loads: bool, number: int = 3) -> dict[str, int]:
    """So many forwards of one rig, with vLLM's own order of calls around each."""
    from layerwise_rig import Rig
    from layerwise_schedules import SCHEDULES
    from layerwise_stream import device_stream
    from vllm.v1.worker.gpu import kv_connector as core

    core.is_forward_context_available = lambda: True
    core.get_forward_context = lambda: None
    late = wrong = 0
    with device_stream() as stream:
        rig = Rig(SCHEDULES["A"], stream)
        active = core.ActiveKVConnector.__new__(core.ActiveKVConnector)
        active.vllm_config, active.kv_connector = None, Connector(rig)
        active._pending_load_start = active._disabled = False
        rig.begin()  # the step that admitted the requests: its loads were synchronous
        for layer in range(rig.schedule.layers):
            rig.layer(layer)
        stream.synchronize()
        assert not rig.errors, rig.errors[0]
        for _ in range(number):
            before = rig.steps
            metadata = SimpleNamespace(requests=[SimpleNamespace(req_id="r", load_spec=None)])
            active.pre_forward(SimpleNamespace(kv_connector_metadata=metadata, has_sync_kv_loads=sync_loads))
            late += rig.steps == before
            submitted = len(rig.submitted)
            try:
                for layer in range(rig.schedule.layers):
                    rig.layer(layer)
            except Exception as error:
                wrong += 1
                print(f"  the forward raised {type(error).__name__}: {error}")
                break
            stream.synchronize()
            wrong += submitted == len(rig.submitted)  # no load of this step was ever submitted in its forward
            active.post_forward(set())
    return {"forwards before their own tasks": late, "forwards that submitted no load of theirs": wrong}


def main() -> None:
    """Both ways: the flag as vLLM sets it for a step without admissions, and as a control set."""
    from ascend_sim import activate

    activate()
    none = {"forwards before their own tasks": 0, "forwards that submitted no load of theirs": 0}
    rows = [
        {"what": "3 steps that admit no synchronous load", "expected": none, "seen": steps(False), "faulty": True},
        {"what": "the same with has_sync_kv_loads set", "expected": none, "seen": steps(True)},
    ]
    finish("layerwise-deferred-start", rows)


if __name__ == "__main__":
    main()
