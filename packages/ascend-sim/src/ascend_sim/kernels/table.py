"""The kernels that have a fast function: where they live and the sources each function was tested against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ascend_sim.kernels import blocks, drafts, inputs, rejection, sampling

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Variant:
    """One fast function and the source digests (`contract.source_digest`) of the kernels it was tested equal to."""

    function: Callable[..., None]
    sources: frozenset[str]


@dataclass(frozen=True)
class Kernel:
    """A switchable name, the ``module:attribute`` targets that hold such a kernel, and its variants."""

    name: str
    targets: tuple[str, ...]
    variants: tuple[Variant, ...]

    def function_for(self, digest: str) -> Callable[..., None] | None:
        """The fast function for a kernel source, or None where none was tested against it."""
        return next((variant.function for variant in self.variants if digest in variant.sources), None)


def _kernel(name: str, targets: list[str], **sources: str) -> Kernel:
    """A row of the table; each keyword is a function's name and its value the digests, separated by spaces."""
    functions = {
        name: getattr(module, name) for module in (blocks, drafts, inputs, rejection, sampling) for name in vars(module)
    }
    variants = tuple(Variant(functions[function], frozenset(digests.split())) for function, digests in sources.items())
    return Kernel(name, tuple(targets), variants)


_GPU = "vllm.v1.worker.gpu"
_NPU = "vllm_ascend.worker.v2"
_INPUT = f"{_GPU}.input_batch"
_REJECT = f"{_GPU}.spec_decode.rejection_sampler_utils"
_DRAFT = f"{_GPU}.spec_decode.autoregressive.speculator"

KERNELS: tuple[Kernel, ...] = (
    _kernel(
        "prepare_prefill_inputs",
        [f"{_INPUT}:_prepare_prefill_inputs_kernel"],
        prepare_prefill_inputs="c3603161fe0b cb9cefb7c58c",
    ),
    _kernel("prepare_pos_seq_lens", [f"{_INPUT}:_prepare_pos_seq_lens_kernel"], prepare_pos_seq_lens="fd3dfeabe21a"),
    _kernel(
        "combine_sampled_and_draft_tokens",
        [f"{_INPUT}:_combine_sampled_and_draft_tokens_kernel"],
        combine_sampled_and_draft_tokens="fce663301246",
    ),
    _kernel(
        "num_sampled_and_rejected",
        [f"{_INPUT}:_get_num_sampled_and_rejected_kernel"],
        num_sampled_and_rejected="55a30ddf79a4",
    ),
    _kernel(
        "post_update",
        [f"{_INPUT}:_post_update_kernel", f"{_NPU}.input_batch:_post_update_kernel"],
        post_update="df695c8ddc45",
        post_update_by_cores="350bf0893975",
    ),
    _kernel(
        "post_update_num_computed_tokens",
        [f"{_INPUT}:_post_update_num_computed_tokens_kernel"],
        post_update_num_computed_tokens="28c6b341672c",
    ),
    _kernel("expand_idx_mapping", [f"{_INPUT}:_expand_idx_mapping_kernel"], expand_idx_mapping="153796d9f0c8"),
    _kernel("apply_write", [f"{_GPU}.buffer_utils:_apply_write_kernel"], apply_write="3617a477f718"),
    _kernel(
        "gather_block_tables", [f"{_GPU}.block_table:_gather_block_tables_kernel"], gather_block_tables="8499dae8132f"
    ),
    _kernel(
        "slot_mapping",
        [f"{_GPU}.block_table:_compute_slot_mappings_kernel", f"{_NPU}.block_table:_compute_slot_mappings_kernel"],
        # vLLM 0.29 and later; up to 0.28; vllm-ascend 0.28 and later
        compute_slot_mappings="89b4e0264f64 092355f75dee e17ab371c5c0",
        compute_slot_mappings_in_float="117c09a656d5",
    ),
    _kernel(
        "temperature",
        [f"{_GPU}.sample.gumbel:_temperature_kernel", f"{_NPU}.sample.gumbel:_temperature_kernel"],
        temperature="ff3f5d0a4cf3 4270378f8bab",
    ),
    _kernel(
        "gumbel_sample",
        [f"{_GPU}.sample.gumbel:_gumbel_sample_kernel"],
        gumbel_sample="70f4e4fd742f 95b1c1f92b9f",
        gumbel_sample_processed="977d90fd5421",
    ),
    _kernel(
        "local_logits_stats",
        [f"{_REJECT}:_compute_local_logits_stats_kernel"],
        local_logits_stats="3029efcf419f 689c29174c9e",
    ),
    _kernel("rejection", [f"{_REJECT}:_rejection_kernel"], rejection="c59912b6e18c 0fcf0b8aa8c5"),
    _kernel(
        "resample", [f"{_REJECT}:_resample_kernel"], resample="02c6b1243487 edd6bbbe611c bf328b073756 f13d66bb1ca8"
    ),
    _kernel("insert_resampled", [f"{_REJECT}:_insert_resampled_kernel"], insert_resampled="e5e3f7a06b5e 29e9cb40fcc2"),
    _kernel("draft_prefill_inputs", [f"{_DRAFT}:_prepare_prefill_inputs_kernel"], draft_prefill_inputs="e30a31be2a81"),
    _kernel(
        "draft_decode_inputs",
        [f"{_DRAFT}:_prepare_decode_inputs_kernel"],
        draft_decode_inputs="78138f3f0c13 6226e4a68450",
        draft_decode_inputs_fixed_lens="d23bac932f3f",
    ),
    _kernel(
        "update_draft_inputs",
        [f"{_DRAFT}:_update_draft_inputs_kernel"],
        update_draft_inputs="e625e1126bed e1de5eabbf1d",
    ),
)
