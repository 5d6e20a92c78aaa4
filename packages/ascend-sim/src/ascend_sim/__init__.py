"""The real vllm-ascend Model Runner V2 in the real vLLM engine on a plain CPU.

Importing this package changes nothing and imports neither torch nor vLLM. `activate()`, or ``ASCEND_SIM=1`` in the
environment of every process, puts the stand-ins for the Ascend software stack in place.
"""

from ascend_sim.activation import SimulatorError, activate, active_mode

__version__ = "0.1.0"
__all__ = ["SimulatorError", "__version__", "activate", "active_mode"]
