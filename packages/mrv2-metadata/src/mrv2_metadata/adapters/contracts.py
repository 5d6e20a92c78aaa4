"""What the hooks rely on in vllm-ascend and vLLM, as hashes of normalised syntax trees (`vllm-pairs hash TARGET`).

A body is accepted when it was read and run here, whatever release it came with. `WRAPPED` are the hooks' targets,
`RELIED_ON` functions that no hook touches but whose order or meaning a hook depends on.
"""

from __future__ import annotations

from typing import Final

RUNNER: Final = "vllm_ascend.worker.v2.model_runner:NPUModelRunner"
CORE_RUNNER: Final = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
BUILDER: Final = "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder"
OUTPUT: Final = "vllm.v1.worker.gpu.async_utils:AsyncOutput"

WRAPPED: Final[dict[str, tuple[str, ...]]] = {
    # Replaced. Four bodies under one signature: the barrier for every runner, with a branch, and two later ones.
    f"{RUNNER}._update_seq_lens_cpu": (
        "d1485eccb9985b92f9390b0b8b89aac38c61eea9a6a3aa0e0711c8661be3fc95",
        "720023ca392dda1e8a4ad38b26777b02a7ca001629054e905808ceb7fd0248a4",
        "7c35d5c0cc3920e710318cfa9fe38432323cfdab3f5eed7b467d7346edee768b",
        "f88e92ec73d7a32bfdf7674aad6c47b3fcce428bee29744a7412146cfc1f2c40",
    ),
    # Replaced.
    f"{RUNNER}._copy_num_computed_tokens_to_cpu": ("4bebd2a2c7daf3a8e68aa01ff499b9ac7c2309fec6faf6e80e6a71826eb0d488",),
    # Wrapped: nothing between the length update and its end reads the lengths but build_attn_state, which compares
    # them with the scheduled tokens and so sees the same with an upper bound.
    f"{RUNNER}.prepare_inputs": (
        "e11bad636341446c4d99811ab58254e74050b49fd45eae4fc3f1809274e4c167",
        "4e07653883b4a556f3617b866f9607162a421c1f088d06587342b25393ca685f",
        "6fd8c23e2966a605041818b6976c9d3e26c89e8b65f989d6f330176a8cf10ae2",
        "21cd5ac76a27d392f7e3561e1eeecc2f8dbb9dacc5fb8391c7c6f32bd1803c82",
        "74129610baa6e3e33b2163eaa68623fb223271f75a576b57a1fed2aff25d3f46",
    ),
    f"{RUNNER}.prepare_attn": ("322f75a060045cf7fe7d6bb8f6420cdadce42535113b0e3eae38a4b512eb9e86",),
    f"{BUILDER}.build": (
        "51778c5ab928c4658e667dcf801c3da705b6d6fb9a5745e8bfdb161c824066a7",
        "34bf19ce176562baf7adf6fece1c8ee920f3ee65d56ee6e4266ee2bc9e70a15a",
        "068307f98cddc3f767a0dce42c4be97baefeefea61596283e4b74b036b68a338",
        "d8aab37787023cebaba9f313eb16b78569755681bc064d7a7b5ae196fb645aa6",
    ),
    f"{OUTPUT}.__init__": (
        "e983b4bdbc097919c8a21db2b5d92539708f8804be192bd0ff900c446585354c",
        "661999419ac1a7a5e5a534de4ca104a08060441b2865200b788a97d68661cf99",
        "d594d8167dddbcba281ee94f51e6e6a5c111dfb22686e25199bef923474a870a",
    ),
    f"{OUTPUT}.get_output": (
        "6055bb40b7f740ff92f9c15faa010f80b9a0aa905a13f29d5c9d193492ed10d5",
        "d30718863542cae971103b9d7ef80635b5bf37cf96cbf4ac0d244f1f709fe542",
        "1892ab3b0cadbbab5ef90a7014b25c7ebfb8e7df722f3ac8a45738a5419574c0",
        "bbec4ff1f72fe89828dc0460daa86d91935cbdcb32a9e0e1ddb8fe6b49db817e",
    ),
}

RELIED_ON: Final[dict[str, tuple[str, ...]]] = {
    # Where upstream copies the counts back, and when.
    f"{RUNNER}.postprocess_sampled": (
        "f3b1e7b31fa5202602ead0c11ac8cbef5d0748263a21a4c69d987813871393e3",
        "b39efea1e13cd83b4589872d29989d0464981a33b6c83b91ca75229583fa8d9e",
        "8cf1d2a4a559136f6f4c88c262a45d1a0b55dbad40f3a5c87d0266d729682ce7",
    ),
    # The order: states updated, inputs prepared, block tables and slots, then the builders.
    f"{CORE_RUNNER}.execute_model": (
        "9a1ee43ea36ca9edfe4da0c559903a326db69793d75b67f321ddae968d3ecdb5",
        "cf02d77ec80c55dd2399208ef5ea2b42f89a969c00656d093d12b996c7ebbbc2",
        "3b2add554c6a33aa618ae80f4c2cb6dff174bb9920561a522fd0c4f09a3ac99c",
        "fc902e2f1ec8386ae938fbff5af23d473946e577bbbde41d16dd21d4fb13315f",
        "10b1af996fa7dd9c767f783c50bf21b494e6ec90ed022a60ae85b622ebf74f5a",
    ),
    # The scheduler's counts of running requests reach num_computed_tokens_np here.
    f"{CORE_RUNNER}.update_requests": (
        "d4884e274470597266f9aa7bda4e95003652357575fa17e529f4c55ce59ed872",
        "3c9dee7bffeaa6f624562b54d312101b81cb58de48b5e5dd8df69d354a8962c0",
    ),
    # What the builder does with query_start_loc_cpu besides uploading it.
    "vllm_ascend.attention.utils:split_decodes_and_prefills": (
        "c298a6d472773d7b309fbca4cde3499357d0d9ee18f86f1df41d5f5236c0af02",
    ),
    # How the output copies a tensor: by its `.to()`.
    "vllm.v1.worker.gpu.async_utils:async_copy_to_np": (
        "a76e809c2c56241bb66847fbeae4913a759b81f220b8a5723a6e91effdd2ab84",
    ),
}
