"""Results of operators on host tensors are host tensors.

Only the operators that vLLM and vllm-ascend use on their host arrays of lengths and locations; others give tensors
without a mark. The mark is set where every tensor argument is marked as host memory.
"""

from __future__ import annotations

from typing import Any

from .patches import put
from .registry import ATTRIBUTE, HOST, UNKNOWN, kind_of, mark

_METHODS = (
    "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__floordiv__", "__truediv__", "__mod__",
    "__neg__", "__invert__", "__and__", "__or__", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__",
    "__getitem__", "add", "sub", "mul", "div", "clone", "contiguous", "reshape", "clamp", "clamp_min", "clamp_max",
    "cumsum", "diff", "sum", "max", "min", "any", "all", "argmax", "abs", "int", "long", "float", "bool", "type",
    "index_select", "masked_select", "masked_fill", "nonzero", "repeat", "repeat_interleave", "expand", "flatten",
)  # fmt: skip
_FUNCTIONS = (
    "add", "sub", "cumsum", "diff", "clamp", "clone", "max", "min", "sum", "maximum", "minimum", "where", "any", "all",
    "repeat_interleave", "index_select", "cat", "stack", "concat",
)  # fmt: skip


def install_host_results(torch: Any) -> None:
    """Wrap the operators."""
    for name in _METHODS:
        put(torch.Tensor, name, _marking(getattr(torch.Tensor, name), torch.Tensor))
    for name in _FUNCTIONS:
        put(torch, name, _marking(getattr(torch, name), torch.Tensor))


def _marking(own: Any, tensor_type: Any) -> Any:
    def operator(first: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(first, *args, **kwargs)
        try:  # written out: on a device tensor, the usual case, this look-up is all that is added
            host = getattr(first.untyped_storage(), ATTRIBUTE, UNKNOWN) & HOST
        except (AttributeError, NotImplementedError, RuntimeError):
            host = first.__class__ in (list, tuple) and len(first) and kind_of(first[0]) & HOST
        if host and _all_host(first, tensor_type) and _all_host(args, tensor_type):
            for made in result if isinstance(result, tuple) else (result,):
                if isinstance(made, tensor_type) and kind_of(made) == UNKNOWN:
                    mark(made, HOST)
        return result

    operator.__wrapped__ = own  # type: ignore[attr-defined]
    operator.__name__ = getattr(own, "__name__", "operator")
    return operator


def _all_host(values: Any, tensor_type: Any) -> bool:
    values = values if values.__class__ in (list, tuple) else (values,)
    return all(kind_of(value) & HOST for value in values if isinstance(value, tensor_type))
