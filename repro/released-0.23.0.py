"""The released pair vLLM 0.23.0 with vllm-ascend 0.23.0 cannot initialise Model Runner V2.

The plugin's graph manager hands the core's an argument that this core does not know. Real here: both releases; the
hardware and the compiled operators are the simulator's stand-ins, and the error comes before any of them matters.
"""

# pairs: 0.23.0

from __future__ import annotations

import os
import re
import traceback

from _show import finish

ARGUMENT = "lora_capture_cases"


def start(mode: str) -> str:
    """Start one engine on the tiny model; what it ended with."""
    from ascend_sim import models
    from vllm import LLM

    try:
        llm = LLM(
            model=str(models.build("dense")),
            dtype="float32",
            block_size=128,
            max_model_len=256,
            kv_cache_memory_bytes=64 << 20,
            enforce_eager=True,
        )
    except BaseException:
        text = traceback.format_exc()
        found = re.findall(r"\w+\.__init__\(\) got an unexpected keyword argument '\w+'", text)
        return found[-1] if found else text.strip().splitlines()[-1]
    del llm
    return f"{mode} engine starts"


def main() -> None:
    """Start the pair's own runner; read what the core's class takes as a second witness."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")
    from ascend_sim import activate

    activate()
    import inspect

    from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager

    takes = ARGUMENT in inspect.signature(ModelCudaGraphManager.__init__).parameters
    rows = [
        {
            "what": "engine under Model Runner V2",
            "expected": "ascend engine starts",
            "seen": start("ascend"),
            "faulty": True,
        },
        {"what": f"the core's graph manager takes {ARGUMENT}", "expected": True, "seen": takes, "faulty": True},
    ]
    finish("released-0.23.0", rows)


if __name__ == "__main__":
    main()
