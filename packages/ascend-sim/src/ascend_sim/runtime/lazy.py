"""Lazy copies: a copy that nobody waited for has not happened yet.

With ASCEND_SIM_LAZY_COPIES=1

* a `non_blocking` D2H copy on a side stream takes its value when it is issued and writes it into its target only at a
  host wait that covers it; until then the target holds poison, and a read of it through torch raises;
* a `non_blocking` H2D copy from pinned memory must find its source unchanged at the next host wait that covers it.

What it does not see: a side stream that reads a device tensor without being ordered after the main stream, a device
tensor overwritten while a side copy of it is pending (the value is taken at issue), D2H copies on the main stream
(performed at once), uploads from pageable memory (a real device stages them before the call returns) and kernels that
read pinned memory directly (UVA). Reads through numpy are seen only where `late.py` looks for poison.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ascend_sim.counters import Site, call_site

if TYPE_CHECKING:
    from . import streams

ENV = "ASCEND_SIM_LAZY_COPIES"

POISON = -987654321  # int32 and int64; narrower integers hold POISON_BYTE in every byte
POISON_BYTE = 0xA5


class LazyCopyError(RuntimeError):
    """A copy's target was read, or its source was changed, before a host wait covered the copy."""


def enabled() -> bool:
    """Whether the lazy mode is asked for by the environment."""
    return os.environ.get(ENV, "") == "1"


@dataclass(eq=False)
class PendingCopy:
    """A D2H copy on its way: `start` and `end` bound its target's bytes in host memory."""

    target: Any
    value: Any
    site: Site
    start: int
    end: int


_pending: dict[int, PendingCopy] = {}  # by id of the copy, in the order of issue


def byte_range(tensor: Any) -> tuple[int, int]:
    """First byte and the byte after the last that `tensor` can touch, as addresses."""
    if tensor.numel() == 0:
        return tensor.data_ptr(), tensor.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def fill_poison(tensor: Any) -> None:
    """Fill with a value no reader can take for data: NaN, POISON, 0xA5 bytes, or True for bool."""
    import torch

    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(float("nan"))
    elif tensor.dtype in (torch.int32, torch.int64):
        tensor.fill_(POISON)
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    elif tensor.dtype is torch.uint8:
        tensor.fill_(POISON_BYTE)
    else:
        width = tensor.element_size()
        tensor.fill_(int.from_bytes(bytes([POISON_BYTE]) * width, "little", signed=tensor.dtype.is_signed))


def issue_d2h(target: Any, source: Any, copy: Any, stream: streams.Stream, site: Site) -> None:
    """Queue the copy `source` -> `target` on `stream`; `copy` is torch's own `Tensor.copy_`."""
    import torch

    start, end = byte_range(target)
    entry = PendingCopy(target, source.detach().clone(), site, start, end)

    def land(checked: bool) -> None:
        del checked  # the value arrives in any case
        _pending.pop(id(entry), None)
        with torch.inference_mode():  # targets made under inference mode take no write outside it
            copy(entry.target, entry.value)

    with torch.inference_mode():
        fill_poison(target)
    _pending[id(entry)] = entry
    stream.push(land)


def watch_h2d(source: Any, stream: streams.Stream, site: Site) -> None:
    """Remember the bytes of a pinned `source` whose upload was just queued on `stream`."""
    snapshot = source.detach().clone()

    def check(checked: bool) -> None:
        if checked and not same_bytes(source, snapshot):
            raise LazyCopyError(
                f"the pinned source of the upload at {site}:{site.line} (shape {tuple(source.shape)}, {source.dtype}) "
                "was changed before a host wait covered the upload: wait for the upload first, or alternate two buffers"
            )

    stream.push(check)


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two tensors of one shape hold the same values, NaN equal to NaN."""
    import torch

    if a.is_floating_point():
        return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) and torch.equal(a.isnan(), b.isnan()))
    return bool(torch.equal(a, b))


def pending_overlap(start: int, end: int) -> PendingCopy | None:
    """A pending copy whose target shares a byte with [start, end)."""
    for entry in list(_pending.values()):
        if entry.start < end and start < entry.end:
            return entry
    return None


def check_read(tensor: Any) -> None:
    """Raise LazyCopyError when `tensor` lies in the target of a pending copy."""
    if not _pending:
        return
    entry = pending_overlap(*byte_range(tensor))
    if entry is not None:
        reader = call_site(2)
        raise LazyCopyError(_read_message(entry, f"{reader}:{reader.line}" if reader else "an operator"))


def check_holder(holder: Any, where: str) -> None:
    """Raise LazyCopyError when an attribute of `holder` (array, tensor, or a sequence of them) is still pending."""
    if not _pending:
        return
    for value in list(vars(holder).values()):
        for start, end in _ranges(value):
            entry = pending_overlap(start, end)
            if entry is not None:
                raise LazyCopyError(_read_message(entry, where))


def _ranges(value: Any) -> list[tuple[int, int]]:
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return [byte_range(value)] if value.device.type == "cpu" else []
    if isinstance(value, np.ndarray):
        start = int(value.__array_interface__["data"][0])
        last = sum((size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True))
        return [(start, start + last + value.itemsize)] if value.size else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [found for item in value if not isinstance(item, (int, str)) for found in _ranges(item)]
    return []


def _read_message(entry: PendingCopy, where: str) -> str:
    return (
        f"{where} reads the target of the D2H copy issued at {entry.site}:{entry.site.line} (shape "
        f"{tuple(entry.target.shape)}, {entry.target.dtype}) before a host wait covered that copy: synchronize an "
        "event recorded after it on its stream"
    )
