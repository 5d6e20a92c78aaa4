"""What can be put in only after vLLM's CPU worker has replaced torch's stream names and vLLM's upload helper.

`vllm.v1.worker.cpu.shm` makes them no-ops and aliases, which is right for a CPU engine and hides every wait and copy.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Any

from . import copies, lazy, streams
from .patches import put

logger = logging.getLogger(__name__)


def patch_torch_names(torch: Any) -> None:
    """`torch.cuda`, `torch.accelerator` and `torch.Event`: the names MRV2 uses, over the CPU worker's no-ops."""
    names = ("Stream", "Event", "stream", "set_stream", "current_stream", "default_stream", "synchronize")
    for name in names:
        put(torch.cuda, name, getattr(streams, name))
    put(torch.cuda, "ExternalStream", streams.Stream)
    for name in ("Stream", "Event"):
        put(torch, name, getattr(streams, name))
    for name in ("synchronize", "current_stream", "set_stream"):
        put(torch.accelerator, name, getattr(streams, name))
    put(torch.Tensor, "record_stream", _record_stream)
    copies.reinstall_pin_memory(torch)


def _record_stream(self: Any, stream: Any) -> None:
    """Memory is not reused while a pending copy holds it."""


def upload_helper(torch: Any) -> Any:
    """vLLM's `async_tensor_h2d` with a real copy to the device.

    A list, an array or a pageable tensor is staged in pinned memory first, as on the device, so that its owner may
    reuse it at once; a pinned tensor is read where it is.
    """

    def async_tensor_h2d(data: Any, device: Any = None, dtype: Any = None, out: Any = None) -> Any:
        if isinstance(data, torch.Tensor):
            host = data
        elif hasattr(data, "__array_interface__"):
            host = torch.from_numpy(data)
        else:
            host = torch.tensor(data, dtype=dtype if dtype is not None else getattr(out, "dtype", None))
        if not host.is_pinned():
            host = host.pin_memory()
        if out is not None:
            return out.copy_(host, non_blocking=True)
        target = device if device is not None else torch.device("cpu")
        return host.to(target, dtype, non_blocking=True) if dtype is not None else host.to(target, non_blocking=True)

    return async_tensor_h2d


def patch_upload_helpers(torch: Any) -> None:
    """Rebind the upload helper in every loaded module that has vLLM's or the CPU worker's function by name."""
    from vllm.utils import torch_utils
    from vllm.v1.worker.cpu import shm

    helper = upload_helper(torch)
    # Up to 0.29 MRV2 calls `async_copy_to_gpu`, which the CPU worker leaves alone: it pins and copies, as it should.
    aliases = {id(owner.async_tensor_h2d) for owner in (torch_utils, shm) if hasattr(owner, "async_tensor_h2d")}
    for module in list(sys.modules.values()):
        if not getattr(module, "__name__", "").startswith(("vllm.", "vllm_ascend.")):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in aliases:
                put(module, name, helper)
    if hasattr(torch_utils, "_StreamPlaceholder"):
        put(torch_utils, "_StreamPlaceholder", streams.current_stream)


def patch_output_copies() -> None:
    """`to_cpu_nonblocking` returns its tensors uncopied when they say they are on the CPU; here they always do."""
    import vllm.v1.outputs as outputs

    for name in ("LogprobsTensors", "RoutedExpertsTensors"):
        cls = getattr(outputs, name, None)
        if cls is not None and hasattr(cls, "to_cpu_nonblocking"):
            put(cls, "to_cpu_nonblocking", _to_cpu_nonblocking)


def _to_cpu_nonblocking(self: Any) -> Any:
    import dataclasses

    import torch

    names = self._fields if hasattr(self, "_fields") else [f.name for f in dataclasses.fields(self)]
    moved = {
        name: value.to("cpu", non_blocking=True)
        for name in names
        if isinstance(value := getattr(self, name), torch.Tensor)
    }
    return self._replace(**moved) if hasattr(self, "_replace") else dataclasses.replace(self, **moved)


def patch_readers() -> None:
    """In the lazy mode: look for a pending target where the engine reads through numpy, so that it never spins."""
    if not lazy.enabled():
        return
    import vllm.v1.worker.gpu.async_utils as async_utils
    import vllm.v1.worker.gpu.spec_decode.utils as draft_utils

    _check_after(async_utils.AsyncOutput, "get_output")
    _check_after(getattr(async_utils, "AsyncPoolingOutput", None), "get_output")
    _check_after(getattr(draft_utils, "DraftTokensHandler", None), "get_draft_tokens")


def _check_after(cls: Any, name: str) -> None:
    own = getattr(cls, name, None)
    if own is None:
        return

    @functools.wraps(own)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(self, *args, **kwargs)
        lazy.check_holder(self, f"{cls.__module__}:{cls.__qualname__}.{name}")
        return result

    put(cls, name, checked)


def check_runner_lengths(runner_class: Any) -> None:
    """In the lazy mode: after the runner has set its host lengths, look for poison among them.

    `runner_class` is vllm-ascend's MRV2 `NPUModelRunner`; a version without `_update_seq_lens_cpu` is left alone.
    """
    own = getattr(runner_class, "_update_seq_lens_cpu", None)
    if own is None or not lazy.enabled():
        return

    @functools.wraps(own)
    def checked(self: Any, scheduler_output: Any, req_ids: Any) -> Any:
        result = own(self, scheduler_output, req_ids)
        lengths = self.input_buffers.seq_lens_np[: len(req_ids)]
        if (lengths < 0).any():
            lazy.check_holder(self, "NPUModelRunner._update_seq_lens_cpu")
            lazy.check_holder(self.req_states, "NPUModelRunner._update_seq_lens_cpu")
            raise lazy.LazyCopyError(
                f"NPUModelRunner._update_seq_lens_cpu made host lengths {lengths.tolist()!r} from a copy that had not "
                "landed"
            )
        return result

    put(runner_class, "_update_seq_lens_cpu", checked)
