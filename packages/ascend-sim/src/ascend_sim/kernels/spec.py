"""The switch ``ASCEND_SIM_KERNELS``: which kernels are fast and which stay in Triton's interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

ENVIRONMENT = "ASCEND_SIM_KERNELS"
_WORDS = {"fast": True, "interpreter": False}


class KernelSpecError(ValueError):
    """The value of ``ASCEND_SIM_KERNELS`` names no kernel or no implementation."""


def parse(spec: str, names: Collection[str]) -> dict[str, bool]:
    """``{kernel name: fast?}`` for every name.

    `spec` is ``"fast"`` (also the empty string), ``"interpreter"``, or a comma list of these and
    ``NAME=fast|interpreter``; a bare word holds for all kernels, a named one overrides it. Raises `KernelSpecError`
    for anything else.
    """
    everything, named = True, {}
    for item in filter(None, (part.strip() for part in spec.split(","))):
        name, equals, word = item.rpartition("=")
        if word not in _WORDS:
            raise KernelSpecError(f"{ENVIRONMENT}: {word!r} in {item!r} is neither 'fast' nor 'interpreter'")
        if not equals:
            everything = _WORDS[word]
        elif name not in names:
            raise KernelSpecError(f"{ENVIRONMENT}: no kernel {name!r}; there are {', '.join(sorted(names))}")
        else:
            named[name] = _WORDS[word]
    return {name: named.get(name, everything) for name in names}
