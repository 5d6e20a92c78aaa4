"""One engine process for `test_lazy_copies_engine.py`: `python lazy_copies_run.py JOB.json OUT.json`.

The job: `mode` ("ascend" or "plain"), `speculative` (0: none), `asynchronous`, and `fault` (None, "length wait" or
"output wait"). Generates without the fault, then, where one is asked for, plants it and generates again on that engine.
"""

import json
import os
import random
import sys
from pathlib import Path

REQUESTS, PROMPT, NEW = 8, 30, 12


def main(job_path, out_path):
    job = json.loads(Path(job_path).read_text())
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the fault is planted in this process
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from ascend_sim.activation import activate

    activate(job["mode"])
    llm = engine(job)
    result = {"tokens": generate(llm)}
    if job["mode"] == "ascend":
        from ascend_sim import counters

        result["per_decode_step"] = counters.per_decode_step()
        result["output_copies"] = output_copies()
    if job["fault"]:
        plant(job["fault"], llm)
        try:
            result["tokens_with_fault"] = generate(llm)
        except Exception as error:
            result["error"] = {"type": type(error).__name__, "text": str(error)}
    Path(out_path).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # the engine is in whatever state the fault left it


def engine(job):
    from ascend_sim import models
    from vllm import LLM

    extra = {}
    if job["speculative"]:
        extra["speculative_config"] = {
            "method": "eagle",
            "model": str(models.build("eagle")),
            "num_speculative_tokens": job["speculative"],
        }
    return LLM(
        model=str(models.build("dense")),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        block_size=128,
        max_model_len=512,
        kv_cache_memory_bytes=64 << 20,
        max_num_seqs=REQUESTS,
        enable_prefix_caching=False,
        async_scheduling=job["asynchronous"],
        **extra,
    )


def generate(llm):
    from vllm import SamplingParams

    numbers = random.Random(1)
    prompts = [{"prompt_token_ids": [numbers.randrange(10, 500) for _ in range(PROMPT)]} for _ in range(REQUESTS)]
    sampling = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True, detokenize=False)
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def output_copies():
    """Where the copies that vLLM's output tensors make of themselves come from."""
    import vllm.v1.outputs as outputs

    return outputs.LogprobsTensors.to_cpu_nonblocking.__module__


def plant(fault, llm):
    """Take one wait out of the real code, as someone's patch might."""
    if fault == "length wait":
        runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        runner.num_computed_tokens_event.synchronize = lambda: None
        return
    import vllm.v1.worker.gpu.async_utils as async_utils

    made = async_utils.AsyncOutput.__init__

    def without_wait(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.copy_event.synchronize = lambda: None

    async_utils.AsyncOutput.__init__ = without_wait


if __name__ == "__main__":
    main(*sys.argv[1:3])
