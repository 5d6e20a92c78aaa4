"""Fast stand-ins for the hot Triton kernels of Model Runner V2, which a CPU otherwise runs in Triton's interpreter.

Each stands for kernel sources it was tested against (`ascend_sim.kernels.contract`); where a kernel differs, or a call
passes arguments the fast function does not cover, the interpreter runs it. ``ASCEND_SIM_KERNELS`` switches them one by
one. Importing this package imports neither torch nor vLLM.
"""

from ascend_sim.kernels.registry import KernelStatus, install, remove, status
from ascend_sim.kernels.spec import KernelSpecError, parse
from ascend_sim.kernels.table import KERNELS, Kernel, Variant

NAMES = tuple(kernel.name for kernel in KERNELS)
__all__ = [
    "KERNELS",
    "NAMES",
    "Kernel",
    "KernelSpecError",
    "KernelStatus",
    "Variant",
    "install",
    "parse",
    "remove",
    "status",
]
