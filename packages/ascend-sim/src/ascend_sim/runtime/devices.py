"""Device arguments on a CPU torch: "npu" means the CPU, `pin_memory=True` gives a marked host tensor.

Every factory that takes a device is wrapped by a closure that also marks the new storage (`registry`).
"""

from __future__ import annotations

import copyreg
from typing import Any

from ascend_sim.counters import H2D, call_site, record

from .patches import put
from .registry import DEVICE, HOST, PINNED, UNKNOWN, is_npu, kind_of, kind_of_device, mark, real_device

_NEW = (
    "empty", "zeros", "ones", "full", "arange", "linspace", "eye", "rand", "randn", "randint", "randperm",
    "empty_strided", "tril_indices", "triu_indices",
)  # fmt: skip
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_METHODS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")


def install_devices(torch: Any) -> None:
    """Wrap the factories, `torch.device` and `torch.Generator`."""
    # torch caches the functions that a device context answers for; it must cache its own, not the closures.
    import torch.utils._device as device_context

    device_context._device_constructors()
    in_context = torch._C._len_torch_function_stack
    for name in _NEW:
        put(torch, name, _factory(getattr(torch, name), in_context, inherits=False))
    for name in _LIKE:
        put(torch, name, _factory(getattr(torch, name), in_context, inherits=True))
    for name in _METHODS:
        put(torch.Tensor, name, _factory(getattr(torch.Tensor, name), in_context, inherits=True))
    put(torch, "tensor", _from_data(torch.tensor, in_context))
    put(torch, "as_tensor", _as_tensor(torch.as_tensor, torch.Tensor, in_context))
    put(torch, "asarray", _as_tensor(torch.asarray, torch.Tensor, in_context))
    put(torch, "from_numpy", _host_view(torch.from_numpy))
    put(torch, "frombuffer", _host_view(torch.frombuffer))
    _replace_device(torch)
    put(torch, "Generator", _proxy("Generator", torch.Generator))


def _factory(own: Any, in_context: Any, inherits: bool) -> Any:
    """Closure on a factory; `inherits`: without a device the result is where its first argument is."""

    def factory(*args: Any, **kwargs: Any) -> Any:
        pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        if device is None:
            made = own(*args, **kwargs)
            if pinned:
                return mark(made, PINNED)
            if inherits:
                kind = kind_of(args[0]) if args else UNKNOWN
                # A new tensor like a pinned one is pageable.
                return mark(made, HOST if kind == PINNED else kind) if kind else made
            return made if in_context() else mark(made, HOST)
        kwargs["device"] = real_device(device)
        kind = PINNED if pinned else kind_of_device(device)
        made = own(*args, **kwargs)
        return mark(made, kind) if kind else made

    factory.__wrapped__ = own  # type: ignore[attr-defined]
    return factory


def _from_data(own: Any, in_context: Any) -> Any:
    """Closure on `torch.tensor`: data given straight to the device is an upload."""

    def tensor(data: Any, **kwargs: Any) -> Any:
        pinned = kwargs.pop("pin_memory", False)
        device = kwargs.get("device")
        kind = PINNED if pinned else kind_of_device(device)
        if device is not None:
            kwargs["device"] = real_device(device)
        made = own(data, **kwargs)
        if kind == DEVICE:
            site = call_site(2)
            if site is not None:
                record(H2D, site, made.numel() * made.element_size())
        elif device is None and not pinned:
            kind = UNKNOWN if in_context() else HOST
        return mark(made, kind) if kind else made

    tensor.__wrapped__ = own  # type: ignore[attr-defined]
    return tensor


def _as_tensor(own: Any, tensor_type: Any, in_context: Any) -> Any:
    """Closure on `torch.as_tensor` and `torch.asarray`: an alias on the host, a copy to the device."""

    def as_tensor(data: Any, **kwargs: Any) -> Any:
        device = kwargs.pop("device", None)
        is_tensor = isinstance(data, tensor_type)
        if device is not None and getattr(device, "type", "cpu") == "meta":
            return own(data, device=device, **kwargs)
        made = own(data, **kwargs)
        if not is_tensor and not in_context() and kind_of(made) == UNKNOWN:
            mark(made, HOST)
        return made if device is None else made.to(device)

    as_tensor.__wrapped__ = own  # type: ignore[attr-defined]
    return as_tensor


def _host_view(own: Any) -> Any:
    """Closure on a factory whose result shares host memory."""

    def host_view(*args: Any, **kwargs: Any) -> Any:
        return mark(own(*args, **kwargs), HOST)

    host_view.__wrapped__ = own  # type: ignore[attr-defined]
    return host_view


class _Proxy(type):
    """Metaclass of a stand-in for a C type that cannot be subclassed: calls and instance checks go to the C type."""

    _own: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if is_npu(a) else a for a in args)
        if is_npu(kwargs.get("device")):
            kwargs["device"] = "cpu"
        elif is_npu(kwargs.get("type")):
            kwargs = {"type": "cpu"}
        if args[:1] == ("cpu",) and cls.__name__ == "device":
            args = args[:1]
        return cls._own(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._own)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls._own)


def _proxy(name: str, own: Any) -> Any:
    return _Proxy(name, (), {"_own": own, "__module__": "torch", "__doc__": own.__doc__, "__slots__": ()})


def make_device(text: str) -> Any:
    """A torch.device from its text; what a pickled device is rebuilt with."""
    import torch

    return torch.device(text)


def _replace_device(torch: Any) -> None:
    own = torch.device
    proxy = _proxy("device", own)
    # pickle refuses a type that is no longer found under its own name.
    copyreg.pickle(own, lambda device: (make_device, (str(device),)))
    from torch._library import infer_schema

    for table in ("SUPPORTED_PARAM_TYPES", "SUPPORTED_RETURN_TYPES"):
        types = getattr(infer_schema, table, {})
        if own in types:
            types[proxy] = types[own]
    put(torch, "device", proxy)
