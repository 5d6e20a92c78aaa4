"""Host time of the length update and of the whole input preparation: upstream against the hook, in one run, as ratios.

The update is `_update_seq_lens_cpu` on real request state and buffers: upstream's function against a call of the
hooked method, dispatch and counters included. The whole is `prepare_inputs`, the attention builders and what the hook
does in between, in ordinary decode steps of a running engine. Both are timed without the marks that the simulator
sets on the results of torch's operators: they would make upstream's loop look ten times as slow. The whole holds the
runner's kernels, which run on the host here, and the simulator's bookkeeping of the upload that the hook avoids: it
says what the hook does to the whole in the simulator, not what it does on an NPU's host.
"""

# env: engine

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _metadata_bare import bare_runner, ordinary_config, upstream
from _metadata_engine import leave, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZES = (8, 32, 128, 256, 512)
PREPARE_SIZES = (8, 256)
REPEATS = {8: 4, 256: 1}
ROUNDS = 41
PROMPT_TOKENS, NEW_TOKENS = 8, 24
TOKENS: dict[int, list[list[int]]] = {}  # by batch size: every engine must give the same


@contextlib.contextmanager
def without_marks() -> Iterator[None]:
    """Torch's own operators for as long as something is timed; the simulator's counters then know less."""
    import torch
    from ascend_sim.runtime import host_results, patches

    marked = {*host_results._METHODS, *host_results._FUNCTIONS}
    before = [
        (owner, name, was) for owner, name, was in patches._put_in if owner in (torch, torch.Tensor) and name in marked
    ]
    kept = [(owner, name, vars(owner)[name]) for owner, name, _ in before]
    if not before:
        raise RuntimeError("the simulator marks nothing: this benchmark no longer knows what it times")
    for owner, name, was in reversed(before):
        if was is patches._ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, was)
    try:
        yield
    finally:
        for owner, name, value in kept:
            setattr(owner, name, value)


def microseconds(function: Any, number: int) -> float:
    """Mean of one call over `number` calls."""
    started = time.perf_counter_ns()
    for _ in range(number):
        function()
    return (time.perf_counter_ns() - started) / number / 1e3


def update_row(num_reqs: int) -> dict[str, float]:
    """Upstream's update against the hooked one, alternating, at one batch size; medians over the rounds."""
    from mrv2_metadata.adapters import install
    from mrv2_metadata.config import Config

    shared = install.metadata()
    if shared is None:
        raise RuntimeError("the hooks are not in place")
    config = ordinary_config()
    shared.admit(config, Config(enabled=True, strict=True))
    runner, scheduler_output, req_ids, held = bare_runner(num_reqs, config)
    plain = upstream("_update_seq_lens_cpu")
    state = shared.state_of(runner)
    state.batch_req_state = held
    known = state.expected.copy()
    known[:] = runner.req_states.num_computed_tokens_np

    def theirs() -> None:
        plain(runner, scheduler_output, req_ids)

    def ours() -> None:
        state.expected[:] = known  # the step that computes these tokens; part of what is timed
        runner._update_seq_lens_cpu(scheduler_output, req_ids)

    before = dict(shared.stats.counts)
    theirs()
    expected = runner.input_buffers.seq_lens_np[:num_reqs].copy()
    runner.input_buffers.seq_lens_np[:] = 0
    ours()
    if not (runner.input_buffers.seq_lens_np[:num_reqs] == expected).all():
        raise RuntimeError(f"the hook's lengths differ from upstream's at {num_reqs} requests")
    with without_marks():
        rounds = [
            (microseconds(theirs, max(5, 1600 // num_reqs)), microseconds(ours, 400 if held else 100))
            for _ in range(ROUNDS)
        ]
    after = shared.stats.counts
    if after["device_steps"] != before["device_steps"] or after["steps"] == before["steps"]:
        raise RuntimeError(f"the hook did not take the scheduler for the authority: {dict(shared.stats.reasons)}")
    upstream_us, hook_us = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"num_reqs": num_reqs, "upstream_us": upstream_us, "hook_us": hook_us, "ratio": upstream_us / hook_us}


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
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    spent = dict.fromkeys(("inputs", "attn", "attn_upstream", "build"), 0)
    steps: list[tuple[int, int, float]] = []

    def timed(name: str, call: Any) -> Any:
        def wrapped(*args: Any, **named: Any) -> Any:
            started = time.perf_counter_ns()
            result = call(*args, **named)
            spent[name] = time.perf_counter_ns() - started
            if name == "build":
                # Upstream's own block-table and slot kernels are taken out: no part of the metadata, and the
                # simulator interprets them. What the hook does around them stays in.
                whole = spent["inputs"] + spent["attn"] - spent["attn_upstream"] + spent["build"]
                steps.append((args[0].num_reqs, args[0].num_tokens, whole / 1e3))
            return result

        return wrapped

    runner.prepare_inputs = timed("inputs", runner.prepare_inputs)
    runner.prepare_attn = timed("attn", runner.prepare_attn)
    runner.model_state.prepare_attn = timed("build", runner.model_state.prepare_attn)
    inherited = GPUModelRunner.prepare_attn
    GPUModelRunner.prepare_attn = timed("attn_upstream", inherited)
    found = {}
    for num_reqs in PREPARE_SIZES:
        steps.clear()
        prompts: list[Any] = [
            {"prompt_token_ids": [10 + (i * 7 + j) % 480 for j in range(PROMPT_TOKENS)]} for i in range(num_reqs)
        ]
        sampling = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
        with without_marks():
            for _ in range(REPEATS[num_reqs]):
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        if TOKENS.setdefault(num_reqs, tokens) != tokens:
            raise RuntimeError(f"the tokens of {num_reqs} requests are not those of the first engine")
        found[num_reqs] = statistics.median(us for reqs, tokens, us in steps if reqs == tokens == num_reqs)
    GPUModelRunner.prepare_attn = inherited
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
    from mrv2_metadata.adapters import install

    # Off, on, off: the mean of both offs, so that a machine that warms up or slows down favours neither.
    first, on = prepare_times(model, False), prepare_times(model, True)
    rows = [update_row(num_reqs) for num_reqs in SIZES]
    install.disable()
    last = prepare_times(model, False)
    figures = {f"ratio_{row['num_reqs']}": row["ratio"] for row in rows}
    for num_reqs in PREPARE_SIZES:
        off = (first[num_reqs] + last[num_reqs]) / 2
        figures[f"prepare_ratio_{num_reqs}"] = off / on[num_reqs]
        offs = {"prepare_off_us": off, "prepare_off_first_us": first[num_reqs], "prepare_off_last_us": last[num_reqs]}
        rows.append({"num_reqs": num_reqs, **offs, "prepare_on_us": on[num_reqs]})
    passed = figures["ratio_8"] >= 8 and figures["ratio_256"] >= 50
    return {"figures": figures, "rows": rows, "passed": passed}


def markdown(summary: dict[str, Any]) -> str:
    """The table of README and docs page: microseconds of one run, upstream's and with the hook, and their ratio."""
    lines = ["| requests | length update, us | ratio | `prepare_inputs` and builder, us | ratio |", "|---" * 5 + "|"]
    whole = {row["num_reqs"]: row for row in summary["rows"] if "prepare_on_us" in row}
    for row in summary["rows"]:
        if "ratio" not in row:
            continue
        number = row["num_reqs"]
        cells = [str(number), f"{row['upstream_us']:.1f} → {row['hook_us']:.1f}", f"{row['ratio']:.1f}"]
        if number in whole:
            on, off = whole[number]["prepare_on_us"], whole[number]["prepare_off_us"]
            cells += [f"{off:.0f} → {on:.0f}", f"{off / on:.2f}"]
        else:
            cells += ["-", "-"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/metadata_host"))
    parser.add_argument("--markdown", type=Path, help="print the table of a recorded summary.json and run nothing")
    options = parser.parse_args()
    if options.markdown:
        sys.stdout.write(markdown(json.loads(options.markdown.read_text())))
        return
    prepare("ascend")
    from vllm_pairs import current_pair

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
    leave(summary["passed"])


if __name__ == "__main__":
    main()
