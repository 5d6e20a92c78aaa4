"""What counts as host memory and what as device memory.

In the simulator both are plain CPU tensors, so the kind is a mark on the tensor's *storage* (views share it):

* HOST: made by a factory with `device="cpu"` or without a device, from numpy, by `pin_memory`, by a D2H copy, or by
  one of the operators of `host_results` on host tensors;
* DEVICE: made by a factory with a `torch.device`, an "npu" string or `ACCELERATOR`, or by an H2D copy;
* no mark: the result of any other operator. It is taken for device memory by `copy_` and by `.to("cpu")`, and is left
  alone by `.to(device)`.

Limits: a host tensor made by an operator that `host_results` does not know has no mark, so its later upload by
`.to(device)` is not counted and a copy of it into a host tensor counts as D2H. A tensor made without a device under a
device context (`with torch.device(...)`) has no mark. The mark costs one attribute look-up on the storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

UNKNOWN, HOST, PINNED, DEVICE = 0, 1, 3, 4  # PINNED has the HOST bit

ATTRIBUTE = "_ascend_sim_memory"


class AcceleratorName(str):
    """The string "cpu" where it names the simulated device: a platform's `device_type`."""

    __slots__ = ()


ACCELERATOR = AcceleratorName("cpu")


def mark(tensor: torch.Tensor, kind: int) -> torch.Tensor:
    """Mark the storage of `tensor` and return the tensor; tensors without a real storage are left as they are."""
    try:
        setattr(tensor.untyped_storage(), ATTRIBUTE, kind)
    except (NotImplementedError, RuntimeError, AttributeError):  # meta, fake and wrapper tensors
        return tensor
    return tensor


def kind_of(tensor: Any) -> int:
    """Mark of the tensor's storage, UNKNOWN without one."""
    try:
        return getattr(tensor.untyped_storage(), ATTRIBUTE, UNKNOWN)
    except (NotImplementedError, RuntimeError, AttributeError):
        return UNKNOWN


def is_npu(device: Any) -> bool:
    """Whether `device` is spelled as an NPU: "npu", "npu:0"."""
    return isinstance(device, str) and (device == "npu" or device.startswith("npu:"))


def kind_of_device(device: Any) -> int:
    """HOST for the plain string "cpu", DEVICE for everything else that names the simulated NPU, UNKNOWN for "meta".

    vLLM writes the host as the literal "cpu" and the device as `self.device`, a `torch.device`.
    """
    if device is None:
        return UNKNOWN
    if type(device) is str:
        return HOST if device.split(":")[0] == "cpu" else DEVICE if is_npu(device) else UNKNOWN
    if isinstance(device, (AcceleratorName, int)):
        return DEVICE
    return DEVICE if getattr(device, "type", None) == "cpu" else UNKNOWN


def real_device(device: Any) -> Any:
    """The device a CPU torch can use: "npu" spellings, device numbers and `ACCELERATOR` become "cpu"."""
    if isinstance(device, (AcceleratorName, int)) or is_npu(device):
        return "cpu"
    return device
