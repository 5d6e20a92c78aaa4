"""What ``ascend_sim_startup.pth`` imports in every Python process that has ``ASCEND_SIM`` set.

Most such processes never touch vLLM (pip, compilers, resource trackers), so activation waits until the first import of
a package that must find the stand-ins already in place.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

# The first of these to be imported decides; each looks at the others while it is imported. Not triton: torch itself
# searches for that one half-way through its own import, when nothing of torch can be replaced yet.
TRIGGERS = frozenset({"vllm", "vllm_ascend", "torch_npu"})


class _ActivateOnImport:
    """Meta-path finder that never finds anything: it activates the simulator, removes itself and lets the others
    search.
    """

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in TRIGGERS:
            disarm()
            from ascend_sim.activation import activate

            activate(os.environ["ASCEND_SIM"])
        return None


_finder = _ActivateOnImport()


def arm() -> None:
    """Wait for the first import of a trigger package. Idempotent."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def disarm() -> None:
    """Stop waiting. Idempotent."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


if os.environ.get("ASCEND_SIM"):
    arm()
