"""What the hooks rely on in vllm-ascend, as hashes of normalised syntax trees (`vllm-pairs hash TARGET`).

A body is accepted when it was read and run here, whatever release it came with. Nothing of it is replaced; the order
of waits, calls and clears inside these functions is what the stages, the readiness and the legal orders stand on.
"""

from __future__ import annotations

from typing import Final

STORE: Final = "vllm_ascend.distributed.kv_transfer.kv_pool.ascend_store"
WORKER: Final = f"{STORE}.pool_worker:KVPoolWorker"
THREAD: Final = f"{STORE}.kv_transfer:KVTransferThread"
GVA_RECEIVER: Final = f"{STORE}.kv_transfer:KVCacheStoreLayerRecvingThread"
KEY_RECEIVER: Final = f"{STORE}.kv_transfer:KVCacheStoreKeyLayerRecvingThread"
BUILDER: Final = f"{STORE}.kv_transfer:LayerBatchBuilder"
GATE: Final = f"{STORE}.attention_fence:AttentionComputeStartGate"

# The targets of the hooks.
WRAPPED: Final[dict[str, tuple[str, ...]]] = {
    f"{WORKER}.__init__": (
        "fc3afcae6a55df8e019e7d8faedd35d4ee2f5ded851265d872a332fb165048de",
        "ab03c9ff5375ecdd70ed1327004d68c6e5ed765a603b00402b36099c16e73c9e",
        "8faa8eaab9182ecba9ff594e01419c1317dd5b7a5c41c60c80366c021166d7fc",
        "44e522c0d202e5ce08211c71d21cbed53b13bc3ca6ff1bfc880587d8c0c47fcd",
    ),
    f"{WORKER}._start_kv_transfer_threads": (
        "1488fa0c385d6e52540ee2b85f36d96172839448ba5dedb069f0cf834377944d",
        "620c9b57aafb8f1826a0ef06bf167b4e83dc986d53571ae2e65b530a82cd1cbb",
        "0d94946bb6aff83719af50e9dd1c8f54ed4f017d82d17186e7e2228d067f2e92",
        "db2e8cf8fcb999c5596aaeef50f57ea12abdf491bfa45437c28e509779e61dc4",
    ),
    f"{WORKER}.process_layer_data": (
        "31cba8e4cbcf5dd8e43079ac47faa2168afd06a37e714367c0775cde0b7911df",
        "104145024ba89a44f5b9ee6d6f3c25f4327ac3f681219a22b9400f3b095fbd72",
        "c7c3172196f183d5ec5634b6097694f6156c30d45bcfa3431e61a04a57a9bc6e",
        "3e1ff9e161128209b0e0def598ab6cb5b5572b314a1d305aff6d32c8e3f455be",
    ),
    f"{WORKER}.wait_for_layer_load": (
        "5b0cf942e04f20b69f516ab7cbceb46d6ee4496dd20817c22d1b30e3106969dd",
        "fb6336e1fcbb9642ae4355968ff50c724662a69cb1793522a8bb29b14dab611a",
        "de78d91f2882393ab501c8fb860b329f934809dc2cb117e1c04dffc172c830c8",
        "0905359514d12b75b7b9937f0c03301beef8896000b43162a533398c2295bcc8",
    ),
    f"{WORKER}.save_kv_layer": (
        "7b26d11ce766bcc45a22b0aa1ed06b0fe802af125002e7d063889c9e68b554f1",
        "f39a2f81ab997dca6762a9be05f834d09853e4b724ecc8c30e26fbae55004d01",
        "e7fd0453cf8bdb331f7256b84861ded03560fe8741d22a18ceff46978fa3b6d9",
        "5cb8b178cf71d7927075b73082361a3470123c7d3986e086d10b45f878ac48b7",
    ),
    f"{WORKER}.set_external_slot_release_waiter": ("ba0c857550b059f3e0ba619ecfb18aa9bc589de5040bef03b55679a10874ebac",),
    f"{GVA_RECEIVER}.__init__": (
        "1ce8b96fed4e5d559b2016d8209342069135f9556118884beceb1d812f100249",
        "0ee6977f1fc6d2d93080e28cb5009e697e94055972ef2f25212b806adc35d1f6",
        "04def94b96610dfa7a728f1b31dfd38623708b7e3940f616721fa80ddb08fc0d",
    ),
    f"{KEY_RECEIVER}.__init__": (
        "cfd1b7e9bd38bcdf1bafb40b8a1d112fd3c8a3ec9a186828f7ce466c4e28f562",
        "482c6694909e4bbee3cc74a21d516140ad2b96a93de7e1989a986148a2ee249b",
    ),
}

# Functions that no hook touches and that a hook depends on.
RELIED_ON: Final[dict[str, tuple[str, ...]]] = {
    f"{THREAD}.__init__": ("2c6d6ac5e130733ec6077723dc9bea9c04f9edfec3cc6c39fc074d4ee2abd8b4",),
    f"{THREAD}.run": ("cf5eab592704e181a74788fb38e82e8cbac9d505f9ab8deca3a0b87c92c4952a",),
    f"{THREAD}.add_request": ("d2ab3ca2a17c12aa7f269a3c3f65b6b306a33dcc93af06c8e9bd7948986b1e04",),
    f"{THREAD}._batch_copy_with_limits": ("353982b90976eb7697563e0337cdb99699d752dbdea5a487ebf5450956c9a83c",),
    f"{GVA_RECEIVER}._handle_request": (
        "5ca368eab8e6ee2c8c637f5cd5dfe440705b766c574028e35347d325cc3c5d6b",
        "78f1c33cb1d549cb1ec03db682a1d79b4384058410ecc22004f361dbcb786604",
    ),
    f"{KEY_RECEIVER}._handle_request": (
        "61845ec09ca5e0b489fd4d8d9ccc0fa6166b5624415ea735c33d4d0dff23940f",
        "dff9dd0e89755b7b24d8d8e6d8977016d2415c81fcf783742d24a1e5e47e6bf7",
    ),
    f"{KEY_RECEIVER}._wait_for_save": ("982c5f9382a33b832081688830075080a220f7695b714a33c9535ca4574b0d65",),
    f"{WORKER}._submit_ready_layer_loads": (
        "c99168bac565932ba436f893d1fbb140b87ab7bad9774c36e022eef682b0b8b1",
        "b9d01473456bee783741ebe7e2de35fad4bf3d8e72d2ada160404e9159a51593",
    ),
    f"{BUILDER}.build": (
        "a5343123df01b1de00b25dbfbd6d4409200ef6abfe2e7b534e328aeb3b15a68e",
        "ed05d2124a5c5b79f2e2f813a662f45799de69d0ec71d9b34e43bc452e48bc5f",
    ),
    f"{GATE}.__init__": (
        "c0b8fb3317f9cba4db8ff0251f7b46f75e78954a2027e2eb7c0917140f63c01b",
        "f10e65805ed4d20794ffbb25e83384a3b98bfa6dfde3b390a91e71c7ed5912c9",
    ),
    f"{GATE}.record": (
        "b62afd27056e5f91d88e0089338b90a4b86bdc8cfd86ee5bf60212d1c5da1eff",
        "7c086d3c5f4c0b9221ab2f79d4df9e744de03218a7ff495053bfd7f08adf1319",
    ),
    f"{GATE}.wait": ("42e5fbdbb6cb04127887dc07498185d9ffb273a01c12c06b249bc0da12789a2f",),
}

# The range path is not in every release.
OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    f"{GVA_RECEIVER}._handle_range_layer_task": (
        "09c7897ff888d06cbf61c89f34f63d4abecc34bf4f5a6884694ec87c5ffa2f08",
        "aa29b2847b83af0791bb2013fff2c6b5ba8922e880052990193aceee832fd180",
    ),
    f"{GVA_RECEIVER}._handle_range_request": (
        "eccc0d9f8e076e6d0d331db940535af8e4aa0ca460ba9062993ef5679f11c008",
        "4a1b853ddde6faa2973867b9ccf6604d4608e33dc31cf8139f9d4ddf6e66aa5c",
    ),
}
