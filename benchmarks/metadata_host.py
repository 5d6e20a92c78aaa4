"""Host time of the length update and of the whole input preparation: upstream against the hook, in one run, as ratios.

The update is upstream's own `_update_seq_lens_cpu` on real request state and buffers; the whole is `prepare_inputs`
plus the attention builders of a running engine, in ordinary decode steps. In the simulator the runner's kernels run on
the host, so the whole is diluted by them: its ratio here is a lower bound of what a host that only launches them sees.
"""

# env: engine

from __future__ import annotations

import argparse
import gc
import inspect
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# A sibling of this script has the name of a library that numba looks for (coverage): look here no more.
sys.path.pop(0)

SIZES = (8, 32, 128, 256, 512)
PREPARE_SIZES = (8, 256)
ROUNDS = 7
PROMPT_TOKENS, NEW_TOKENS = 8, 24


def bare_runner(num_reqs: int) -> tuple[Any, Any, list[str], Any]:
    """A runner that holds what the update reads, a scheduler output of one ordinary decode step, and its index."""
    import numpy as np
    import torch
    from vllm_ascend.worker.v2.input_batch import AscendInputBuffers
    from vllm_ascend.worker.v2.model_runner import NPUModelRunner
    from vllm_ascend.worker.v2.states import AscendRequestState

    device = torch.device("cpu")
    rows = max(SIZES)
    runner = object.__new__(NPUModelRunner)
    runner.req_states = AscendRequestState(rows, 64, 512, 0, 512, device)
    runner.input_buffers = AscendInputBuffers(rows, 512, device)
    runner.num_computed_tokens_cpu = torch.zeros(rows, dtype=torch.int32)
    runner.num_computed_tokens_event = SimpleNamespace(synchronize=lambda: None)
    runner.speculator = None
    runner.sync_spec_pp_cpu_counts = False
    runner.is_last_pp_rank = True
    runner.adaptive_verification = None
    runner.attn_groups = []
    runner.model_state = SimpleNamespace(num_new_sampled_tokens_per_step=1)
    runner.vllm_config = ordinary_config()
    req_ids = [f"cmpl-{i:032x}-0" for i in range(num_reqs)]
    for req_id in req_ids:
        runner.req_states.add_request(req_id, 20, list(range(20)), 20, max_tokens=8)
    scheduler_output = SimpleNamespace(
        num_scheduled_tokens=dict.fromkeys(req_ids, 1),
        scheduled_cached_reqs=SimpleNamespace(req_ids=req_ids),
        scheduled_new_reqs=[],
        scheduled_spec_decode_tokens={},
        has_structured_output_requests=False,
    )
    index = np.array([runner.req_states.req_id_to_index[req_id] for req_id in req_ids])
    has_index = "batch_req_state" in inspect.signature(NPUModelRunner.prepare_inputs).parameters
    held = SimpleNamespace(idx_mapping_np=index, num_scheduled_tokens=np.ones(num_reqs, np.int32))
    return runner, scheduler_output, req_ids, held if has_index else None


def ordinary_config() -> Any:
    """The parts of a vLLM configuration that the facts are read from, for a dense model without any feature."""
    return SimpleNamespace(
        speculative_config=None,
        scheduler_config=SimpleNamespace(async_scheduling=True),
        model_config=SimpleNamespace(runner_type="generate", is_diffusion=False, hf_config=None),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_eplb=False
        ),
        kv_transfer_config=None,
        additional_config={},
    )


def microseconds(function: Any, number: int) -> float:
    """Mean of one call over `number` calls."""
    started = time.perf_counter_ns()
    for _ in range(number):
        function()
    return (time.perf_counter_ns() - started) / number / 1e3


def update_row(num_reqs: int) -> dict[str, float]:
    """Upstream's update against the hook's, alternating, at one batch size; medians over the rounds."""
    from mrv2_metadata.adapters.state import RunnerState
    from mrv2_metadata.config import Config
    from mrv2_metadata.stats import Stats
    from vllm_ascend.worker.v2.model_runner import NPUModelRunner

    runner, scheduler_output, req_ids, held = bare_runner(num_reqs)
    upstream = inspect.unwrap(vars(NPUModelRunner)["_update_seq_lens_cpu"])
    state = RunnerState(runner, Config(enabled=True), Stats())
    state.batch_req_state = held
    known = state.expected.copy()
    known[:] = runner.req_states.num_computed_tokens_np

    def hook() -> None:
        state.expected[:] = known  # the step that computes these tokens; part of what is timed
        state.update_lengths(runner, scheduler_output, req_ids)

    upstream(runner, scheduler_output, req_ids)
    expected = runner.input_buffers.seq_lens_np[:num_reqs].copy()
    runner.input_buffers.seq_lens_np[:] = 0
    hook()
    if not (runner.input_buffers.seq_lens_np[:num_reqs] == expected).all():
        raise RuntimeError(f"the hook's lengths differ from upstream's at {num_reqs} requests")
    if state.stats.counts["device_steps"]:
        raise RuntimeError(f"the hook took the device for the authority: {dict(state.stats.reasons)}")
    pairs = []
    for _ in range(ROUNDS):
        theirs = microseconds(lambda: upstream(runner, scheduler_output, req_ids), max(20, 4000 // num_reqs))
        pairs.append((theirs, microseconds(hook, 2000)))
    theirs, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {"num_reqs": num_reqs, "upstream_us": theirs, "hook_us": ours, "ratio": theirs / ours}


def prepare_times(model: str, hook: bool) -> dict[int, float]:
    """Median host microseconds of `prepare_inputs` plus builders in ordinary decode steps, by batch size."""
    from vllm import LLM, SamplingParams

    os.environ["VLLM_MRV2_METADATA"] = json.dumps({"enabled": hook, "strict": True})
    llm = LLM(
        model=model, skip_tokenizer_init=True, max_model_len=256, dtype="float32", enforce_eager=True, block_size=128,
        kv_cache_memory_bytes=256 << 20, max_num_seqs=max(PREPARE_SIZES), enable_prefix_caching=False, seed=0,
        async_scheduling=False,
    )  # fmt: skip
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    spent: dict[str, float] = {}
    steps: list[tuple[int, int, float]] = []

    def timed(name: str, call: Any) -> Any:
        def wrapped(*args: Any, **named: Any) -> Any:
            started = time.perf_counter_ns()
            result = call(*args, **named)
            spent[name] = time.perf_counter_ns() - started
            if name == "build":
                batch = args[0]
                steps.append((batch.num_reqs, batch.num_tokens, (spent["inputs"] + spent["build"]) / 1e3))
            return result

        return wrapped

    runner.prepare_inputs = timed("inputs", runner.prepare_inputs)
    runner.model_state.prepare_attn = timed("build", runner.model_state.prepare_attn)
    found = {}
    for num_reqs in PREPARE_SIZES:
        steps.clear()
        prompts: list[Any] = [
            {"prompt_token_ids": [10 + (i * 7 + j) % 480 for j in range(PROMPT_TOKENS)]} for i in range(num_reqs)
        ]
        sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
        llm.generate(prompts, sampling, use_tqdm=False)
        found[num_reqs] = statistics.median(us for reqs, tokens, us in steps if reqs == tokens == num_reqs)
    state = runner.__dict__.get("_mrv2_metadata")
    if hook and (state is None or state.declined is not None):
        raise RuntimeError(f"the hook is not in place: {state.declined if state else 'not installed'}")
    llm.llm_engine.engine_core.shutdown()
    del llm, runner
    gc.collect()
    return found


def measure() -> dict[str, Any]:
    """The whole run: figures and rows. The engines come first: they set up what the bare runner's modules need."""
    from ascend_sim import models

    model = str(models.build("dense"))
    # Off, on, off: the mean of both offs, so that a machine that warms up or slows down favours neither.
    first, on, last = prepare_times(model, False), prepare_times(model, True), prepare_times(model, False)
    rows = [update_row(num_reqs) for num_reqs in SIZES]
    figures = {f"ratio_{row['num_reqs']}": row["ratio"] for row in rows}
    for num_reqs in PREPARE_SIZES:
        off = (first[num_reqs] + last[num_reqs]) / 2
        figures[f"prepare_ratio_{num_reqs}"] = off / on[num_reqs]
        rows.append({"num_reqs": num_reqs, "prepare_off_us": off, "prepare_on_us": on[num_reqs]})
    passed = figures["ratio_8"] >= 8 and figures["ratio_256"] >= 50
    return {"figures": figures, "rows": rows, "passed": passed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/metadata_host"))
    options = parser.parse_args()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ascend_sim import activate

    activate("ascend")
    from mrv2_metadata.plugin import load
    from vllm_pairs import current_pair

    load()
    host = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}
    head = {"name": "metadata_host", "version": 1, "pair": current_pair().id, "host": host, "seed": 0}
    summary = head | measure()
    options.out.mkdir(parents=True, exist_ok=True)
    partial = options.out / ".summary.json"
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(options.out / "summary.json")
    for row in summary["rows"]:
        sys.stdout.write("  ".join(f"{name} {value:.4g}" for name, value in row.items()) + "\n")
    sys.stdout.write(json.dumps(summary["figures"]) + "\n")
    sys.stdout.flush()
    os._exit(0 if summary["passed"] else 1)  # engine threads hang in an orderly end on some versions


if __name__ == "__main__":
    main()
