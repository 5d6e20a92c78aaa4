"""A planted slow-down of known size: with PLANTED_DELAY_US in the environment, every engine step first spins so long.

Python imports this file at its start wherever its folder is on PYTHONPATH. `nox -s evidence` puts it there for every
arm, so that the arms differ in the number alone; 0 us is the planted 0 %. It is no part of any package.
"""

import os
import sys
import time


def _plant(delay_us: float) -> None:
    import wrapt

    def spin(wrapped, _instance, args, kwargs):  # type: ignore[no-untyped-def]  # wrapt's own signature
        until = time.perf_counter() + delay_us * 1e-6
        while time.perf_counter() < until:
            pass
        return wrapped(*args, **kwargs)

    @wrapt.when_imported("vllm_ascend.worker.v2.model_runner")
    def _(module):  # type: ignore[no-untyped-def]
        wrapt.wrap_function_wrapper(module, "NPUModelRunner.execute_model", spin)
        sys.stderr.write(f"planted delay: {delay_us:g} us before every step (pid {os.getpid()})\n")


if os.environ.get("PLANTED_DELAY_US"):
    _plant(float(os.environ["PLANTED_DELAY_US"]))
