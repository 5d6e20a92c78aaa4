"""One engine of several workers for test_guard_parallel.py: ``python guard_parallel_run.py JOB.json OUT.json``.

The job: `model`, `engine` (arguments), `plant` (a rank such as "tp1", or null), `guard`. Generates a control; then
plants, generates again, and leaves what came and how long the failure took.
"""

import json
import os
import random
import sys
import time
from pathlib import Path


def main(job_path, out_path):
    job = json.loads(Path(job_path).read_text())
    os.environ["VLLM_KV_PLAN_GUARD"] = json.dumps(job["guard"])
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from ascend_sim import activate

    activate(job["mode"])
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"], skip_tokenizer_init=True, max_model_len=512, dtype="float32", enforce_eager=True,
        block_size=128, kv_cache_memory_bytes=64 << 20, max_num_seqs=8, enable_prefix_caching=False, seed=0,
        worker_extension_cls="guard_worker.GuardWorker", **job["engine"],
    )  # fmt: skip
    numbers = random.Random(1)
    prompts = [{"prompt_token_ids": [numbers.randrange(10, 500) for _ in range(30)]} for _ in range(6)]
    sampling = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True, detokenize=False)
    first = llm.generate(prompts, sampling, use_tqdm=False)
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in first],
        "workers": llm.collective_rpc("guard_counts"),
    }
    if job["plant"]:
        result["planted"] = llm.collective_rpc("guard_plant", args=(job["plant"],))
        started = time.monotonic()
        try:
            llm.generate(prompts, sampling, use_tqdm=False)
            time.sleep(1.0)
            llm.generate(prompts[:1], sampling, use_tqdm=False)
            result["error"] = None
        except BaseException as error:
            result["error"] = f"{type(error).__name__}: {error}"[:3000]
        result["seconds"] = time.monotonic() - started
    Path(out_path).write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the engine is in whatever state the fault left it


if __name__ == "__main__":
    main(*sys.argv[1:3])
