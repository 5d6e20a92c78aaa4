"""A host query_start_loc that carries its device twin, for a builder that would upload it once more.

The builder slices it, pins it, sends it to the device and reads lists from it. The stand-in answers exactly that: the
slice `[:n]` keeps the twin, `pin_memory().to(device)` hands the twin out, every other slice is the plain host tensor.
Anything else raises, so that a builder which begins to use it in a new way fails at once and by name.
"""

from __future__ import annotations

from typing import Any

from mrv2_metadata.errors import ProxyError


class DeviceTwin:
    """Stands for `host` [num_reqs + 1] int32; `device` holds the same values on `target`."""

    __slots__ = ("_device", "_host", "_on_use", "_target")

    def __init__(self, host: Any, device: Any, target: Any, on_use: Any) -> None:
        self._host = host
        self._device = device
        self._target = target
        self._on_use = on_use

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) and key.start is None and key.step is None and _positive(key.stop):
            if key.stop > self._device.shape[0]:
                raise ProxyError(
                    f"query_start_loc[:{key.stop}] was asked for; its device twin has {self._device.shape[0]} values"
                )
            return DeviceTwin(self._host[key], self._device[key], self._target, self._on_use)
        return self._host[key]

    def pin_memory(self) -> DeviceTwin:
        """Nothing to pin: nothing will be uploaded."""
        return self

    def to(self, device: Any, non_blocking: bool = False) -> Any:
        """The device twin; only for the runner's own device."""
        if device != self._target:
            raise ProxyError(f"query_start_loc.to({device!r}) was asked for; its device twin is on {self._target!r}")
        self._on_use()
        return self._device

    def __getattr__(self, name: str) -> Any:
        raise ProxyError(
            f"the attention builder used query_start_loc_cpu.{name}, which mrv2-metadata's stand-in does not answer; "
            "turn the hook off and report the builder"
        )


def _positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0
