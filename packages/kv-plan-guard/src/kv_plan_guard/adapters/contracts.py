"""What the hooks rely on in vLLM, as hashes of normalised syntax trees (`vllm-pairs hash TARGET`).

Every hook wraps and replaces nothing. The two methods of the output are relied on all the same: the snapshot rides on
the copy that `__init__` makes of `num_sampled_tokens`, inside the order "copy stream behind the step's stream, copies,
event", and `get_output` waits for that event before it hands anything out.
"""

from __future__ import annotations

from typing import Final

RUNNER: Final = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
OUTPUT: Final = "vllm.v1.worker.gpu.async_utils:AsyncOutput"
POOLING_OUTPUT: Final = "vllm.v1.worker.gpu.async_utils:AsyncPoolingOutput"

RELIED_ON: Final[dict[str, tuple[str, ...]]] = {
    f"{OUTPUT}.__init__": (
        "e983b4bdbc097919c8a21db2b5d92539708f8804be192bd0ff900c446585354c",
        "661999419ac1a7a5e5a534de4ca104a08060441b2865200b788a97d68661cf99",
        "d594d8167dddbcba281ee94f51e6e6a5c111dfb22686e25199bef923474a870a",
        "8ac8b403b4d27e5030c74dd3a2b7452262276d2ea1f523fa987b9134dd343426",
    ),
    f"{OUTPUT}.get_output": (
        "6055bb40b7f740ff92f9c15faa010f80b9a0aa905a13f29d5c9d193492ed10d5",
        "d30718863542cae971103b9d7ef80635b5bf37cf96cbf4ac0d244f1f709fe542",
        "1892ab3b0cadbbab5ef90a7014b25c7ebfb8e7df722f3ac8a45738a5419574c0",
        "bbec4ff1f72fe89828dc0460daa86d91935cbdcb32a9e0e1ddb8fe6b49db817e",
        "84026b6d9cbed8efdf3a2c54cd1d72fc12f383c7d6a012b2493350d89f02a0e5",
    ),
    # The order of a step: states updated, inputs prepared, block tables and slots, builders, forward.
    f"{RUNNER}.execute_model": (
        "9a1ee43ea36ca9edfe4da0c559903a326db69793d75b67f321ddae968d3ecdb5",
        "cf02d77ec80c55dd2399208ef5ea2b42f89a969c00656d093d12b996c7ebbbc2",
        "3b2add554c6a33aa618ae80f4c2cb6dff174bb9920561a522fd0c4f09a3ac99c",
        "fc902e2f1ec8386ae938fbff5af23d473946e577bbbde41d16dd21d4fb13315f",
        "10b1af996fa7dd9c767f783c50bf21b494e6ec90ed022a60ae85b622ebf74f5a",
        "c30a4263e8f313f13cabeddcc7a40feebe17d10cc8a1da504baf3b34b258ade9",
    ),
    # How a row gets its blocks; the mirror follows the scheduler's output by the same public meaning, not by this code.
    f"{RUNNER}.update_requests": (
        "d4884e274470597266f9aa7bda4e95003652357575fa17e529f4c55ce59ed872",
        "3c9dee7bffeaa6f624562b54d312101b81cb58de48b5e5dd8df69d354a8962c0",
    ),
    f"{POOLING_OUTPUT}.__init__": (
        "da90dfd56336c239d86974674c25125fb951c10e4c0c0cff01552312b4b9c5b3",
        "91a4dc8f966ec0d75bb88927827f4a0e1b3f4c3cb553de131aaf181a3807e466",
    ),
    f"{POOLING_OUTPUT}.get_output": (
        "db3d4b4789b3ca7d2f99b1d63f2e86a77593a9e52dafd413b01e9adf76aa5ec7",
        "ffaf1f0cdd67bc6bdd1ae92bf2f879098e6331db8ffc824cdd35db97e2dbcfac",
    ),
}
