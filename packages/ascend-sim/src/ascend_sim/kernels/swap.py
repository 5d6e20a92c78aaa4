"""Put a fast kernel in the place of a Triton kernel object, wherever vLLM's modules hold it, and take it out again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ascend_sim.kernels.arrays import NotCovered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PACKAGES = ("vllm", "vllm_ascend")


class FastKernel:
    """Stands in a module for one Triton kernel: ``kernel[grid](*args, **meta)`` runs the fast function, or, where that
    declines, the kernel.

    Every other attribute is the Triton kernel's own.
    """

    def __init__(self, name: str, original: Any, parameters: tuple[str, ...], function: Callable[..., None]) -> None:
        self.name, self.original, self.parameters, self.function = name, original, parameters, function
        self.calls = 0
        self.declined: dict[str, int] = {}

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **meta: Any) -> None:
            self._launch(grid, args, meta)

        return launch

    def _launch(self, grid: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> None:
        self.calls += 1
        # Launch options (num_warps, ...) are among the keywords; the function ignores what it does not name.
        named = dict(zip(self.parameters, args, strict=False)) | meta
        size = grid(named) if callable(grid) else grid
        try:
            self.function(tuple(size), **named)
        except NotCovered as reason:
            self.declined[str(reason)] = self.declined.get(str(reason), 0) + 1
            self.original[grid](*args, **meta)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __repr__(self) -> str:
        return f"<fast {self.name} for {self.original!r}>"


def replace_everywhere(old: Any, new: Any) -> list[str]:
    """Rebind every module attribute of vLLM and vllm-ascend that is `old` (home and ``from x import`` copies); names
    of what changed.
    """
    changed = []
    for module_name, namespace in _namespaces():
        for attribute, value in list(namespace.items()):
            if value is old:
                namespace[attribute] = new
                changed.append(f"{module_name}.{attribute}")
    return changed


def _namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in _PACKAGES and module is not None:
            yield name, vars(module)
