"""Counting closures on torch.Tensor's copy and read methods, with the direction decided by `registry`.

Closures and not wrapt: `Tensor.to` is on every hot path, and a wrapt call costs as much as the method itself.
A D2H or H2D copy always makes a new tensor, as on a device; a CPU torch would alias.
"""

from __future__ import annotations

from typing import Any

from ascend_sim.counters import D2H, H2D, ITEM, TOLIST, call_site, record

from . import lazy
from .patches import put
from .registry import DEVICE, HOST, PINNED, UNKNOWN, kind_of, kind_of_device, mark, real_device
from .streams import Stream, current_stream, default_stream


def _nbytes(tensor: Any) -> int:
    return int(tensor.numel()) * int(tensor.element_size())


def _covers_stream(stream: Stream) -> None:
    """A blocking copy of device memory ends after everything queued before it on its stream."""
    if stream.pending:
        stream.perform(stream.seq)


class _Methods:
    """torch's own methods, which the closures call."""

    def __init__(self, torch: Any) -> None:
        tensor = torch.Tensor
        self.to, self.copy_, self.cpu = tensor.to, tensor.copy_, tensor.cpu
        self.tolist, self.item, self.setitem = tensor.tolist, tensor.item, tensor.__setitem__
        self.pin_memory, self.is_pinned = tensor.pin_memory, tensor.is_pinned


def install_copies(torch: Any) -> None:
    """Put the closures on `torch.Tensor`."""
    own = _Methods(torch)
    is_lazy = lazy.enabled()
    tensor = torch.Tensor
    dtype_type, tensor_type, device_type = torch.dtype, torch.Tensor, torch.device
    empty_like = torch.empty_like
    own_to, own_copy = own.to, own.copy_
    contiguous = torch.contiguous_format

    def download(source: Any, dtype: Any, non_blocking: bool, site: Any) -> Any:
        """D2H into a new host tensor."""
        record(D2H, site, _nbytes(source))
        value = source if dtype is None or dtype is source.dtype else own_to(source, dtype)
        stream = current_stream()
        target = mark(empty_like(value, memory_format=contiguous), HOST)
        if is_lazy and non_blocking and stream is not default_stream():
            lazy.issue_d2h(target, value, own_copy, stream, site)
            return target
        if not non_blocking:
            _covers_stream(stream)
        return own_copy(target, value)

    def upload(source: Any, dtype: Any, non_blocking: bool, site: Any) -> Any:
        """H2D into a new device tensor."""
        record(H2D, site, _nbytes(source))
        kind = kind_of(source)
        target = mark(own_copy(empty_like(source, dtype=dtype or source.dtype), source), DEVICE)
        if is_lazy and non_blocking and kind == PINNED:
            lazy.watch_h2d(source, current_stream(), site)
        return target

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else None
        if isinstance(first, dtype_type) or (first is None and "device" not in kwargs and "other" not in kwargs):
            made = own_to(self, *args, **kwargs)
            if made is not self and kind_of(self) & HOST:
                mark(made, HOST)
            return made
        if isinstance(first, tensor_type) or "other" in kwargs:
            wanted = kind_of(first if first is not None else kwargs["other"])
        elif first is not None and first.__class__ is device_type:
            wanted = DEVICE if first.type == "cpu" else UNKNOWN
        elif first is not None:
            wanted = kind_of_device(first)
            args = (real_device(first), *args[1:])
        else:
            wanted = kind_of_device(kwargs["device"])
            kwargs["device"] = real_device(kwargs["device"])
        if wanted == UNKNOWN or self.device.type != "cpu":
            return own_to(self, *args, **kwargs)
        from_host = bool(kind_of(self) & HOST)
        to_host = bool(wanted & HOST)
        if from_host == to_host:
            return own_to(self, *args, **kwargs)
        if is_lazy and from_host:
            lazy.check_read(self)
        site = call_site(2)
        if site is None:
            return own_to(self, *args, **kwargs)
        if isinstance(first, tensor_type):
            dtype: Any = first.dtype
        elif "other" in kwargs:
            dtype = kwargs["other"].dtype
        else:
            dtype = kwargs.get("dtype", args[1] if len(args) > 1 else None)
        rest = args[2] if len(args) > 2 else False
        non_blocking = bool(kwargs.get("non_blocking", rest))
        return (download if to_host else upload)(self, dtype, non_blocking, site)

    def cpu(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device.type != "cpu":
            return own.cpu(self, *args, **kwargs)
        if kind_of(self) & HOST:
            if is_lazy:
                lazy.check_read(self)
            return self
        site = call_site(2)
        return own.cpu(self, *args, **kwargs) if site is None else download(self, None, False, site)

    def npu(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        site = call_site(2)
        if not kind_of(self) & HOST or site is None:
            return self
        return upload(self, None, non_blocking, site)

    def copy_(self: Any, src: Any, non_blocking: bool = False) -> Any:
        if not isinstance(src, tensor_type):
            return own_copy(self, src, non_blocking)
        to_host, from_host = kind_of(self) & HOST, kind_of(src)
        if is_lazy and from_host & HOST:
            lazy.check_read(src)
        if bool(to_host) == bool(from_host & HOST):
            return own_copy(self, src, non_blocking)
        site = call_site(2)
        if site is None:
            return own_copy(self, src, non_blocking)
        stream = current_stream()
        if to_host:
            record(D2H, site, _nbytes(self))
            if is_lazy and non_blocking and stream is not default_stream():
                lazy.issue_d2h(self, src.expand(self.shape), own_copy, stream, site)
                return self
            if not non_blocking:
                _covers_stream(stream)
        else:
            record(H2D, site, _nbytes(self))
            if is_lazy and non_blocking and from_host == PINNED:
                lazy.watch_h2d(src, stream, site)
        return own_copy(self, src, non_blocking)

    def counted_read(kind: str, read: Any) -> Any:
        def wrapped(self: Any) -> Any:
            memory = kind_of(self)
            if is_lazy and memory & HOST:
                lazy.check_read(self)
            site = call_site(2)
            if site is not None:
                record(kind, site)
                if memory == DEVICE:
                    record(D2H, site, _nbytes(self))
                if not memory & HOST:
                    _covers_stream(current_stream())
            return read(self)

        return wrapped

    def setitem(self: Any, index: Any, value: Any) -> None:
        if isinstance(value, tensor_type):
            lazy.check_read(value)
        own.setitem(self, index, value)

    def pin_memory(self: Any, device: Any = None) -> Any:
        if kind_of(self) == PINNED:
            return self
        # A real pin_memory copies: the new tensor no longer follows its source.
        return mark(own_copy(empty_like(self, memory_format=contiguous), self), PINNED)

    def is_pinned(self: Any, device: Any = None) -> bool:
        return kind_of(self) == PINNED

    for method in (to, cpu, npu, copy_, pin_memory, is_pinned):
        put(tensor, method.__name__, method)
    put(tensor, "tolist", counted_read(TOLIST, own.tolist))
    put(tensor, "item", counted_read(ITEM, own.item))
    if is_lazy:
        put(tensor, "__setitem__", setitem)
    global _pin_memory
    _pin_memory = pin_memory


_pin_memory: Any = None


def reinstall_pin_memory(torch: Any) -> None:
    """Put `pin_memory` back after vLLM's CPU worker module has replaced it with an alias."""
    put(torch.Tensor, "pin_memory", _pin_memory)
