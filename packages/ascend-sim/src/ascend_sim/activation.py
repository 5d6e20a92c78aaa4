"""Activation: one call, one order of steps, once per process.

Two modes. ``ascend`` (``ASCEND_SIM=1``): the real vllm-ascend runner with the hardware edge stood in for. ``plain``
(``ASCEND_SIM=plain``): the control, vLLM's own CPU engine with its own MRV2 runner; only what that needs on a CPU is
answered.
"""

import os

_ALIASES = {"1": "ascend", "ascend": "ascend", "plain": "plain"}
_mode: str | None = None


class SimulatorError(RuntimeError):
    """The simulator cannot do what was asked; the message names what is missing."""


def active_mode() -> str | None:
    """``"ascend"``, ``"plain"`` or, where nothing was activated in this process, ``None``."""
    return _mode


def activate(mode: str | None = None) -> str:
    """Put the stand-ins in place for this process and its children, before vLLM is imported.

    `mode` is ``"ascend"`` (default), its alias ``"1"``, or ``"plain"``; ``None`` takes ``ASCEND_SIM`` from the
    environment. Idempotent. Raises `SimulatorError` for an unknown mode, for a second call with the other mode and
    where vLLM was imported first.
    """
    global _mode
    wanted = mode or os.environ.get("ASCEND_SIM") or "ascend"
    if wanted not in _ALIASES:
        raise SimulatorError(
            f"ASCEND_SIM={wanted!r} is not a mode: use '1' (the Ascend runner) or 'plain' (vLLM's CPU runner)"
        )
    resolved = _ALIASES[wanted]
    if _mode is not None:
        if _mode != resolved:
            raise SimulatorError(
                f"mode {resolved!r} asked for, but this process is already in mode {_mode!r}: use a new process"
            )
        return _mode
    _check_not_late()
    _mode = resolved
    os.environ["ASCEND_SIM"] = "1" if resolved == "ascend" else "plain"
    try:
        _install(resolved)
    except BaseException:
        _mode = None  # half installed is not active: a second call must not say so
        raise
    return resolved


def platform_plugin() -> str | None:
    """Entry point of ``vllm.platform_plugins``: the simulator's platform where it is active, else nothing."""
    if os.environ.get("ASCEND_SIM") and _ALIASES.get(os.environ["ASCEND_SIM"]) == "ascend":
        activate()
        return "ascend_sim.platform.platform.AscendSimPlatform"
    return None


def _check_not_late() -> None:
    import sys

    late = [name for name in ("vllm.platforms", "vllm.triton_utils", "torch_npu", "vllm_ascend") if name in sys.modules]
    if late:
        raise SimulatorError(
            f"activate() comes too late: {', '.join(late)} already imported; call it first, or set ASCEND_SIM=1"
        )


def _install(mode: str) -> None:
    from ascend_sim import distributions, native, startup, triton_cpu

    startup.disarm()
    distributions.set_environment(mode)
    distributions.install(mode)
    triton_cpu.install(ascend=mode == "ascend")
    native.install()
    if mode == "ascend":
        import wrapt

        from ascend_sim import standins

        standins.install()
        # vllm-ascend is imported long after transformers has looked for what is installed.
        wrapt.register_post_import_hook(lambda _module: standins.install_late(), "vllm_ascend")
        import torch

        from ascend_sim import runtime

        runtime.install(torch)
