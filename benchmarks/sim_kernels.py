"""Fast kernels of the simulator against Triton's interpreter, in the real engine: time of each kernel, time of a
decode step, equal tokens.

One process builds two engines (plain decode and EAGLE speculation) of 8 requests on the 2-layer model; each generates
the same requests with the interpreter and with the fast kernels, in the same process. Runs under one pair's
environment; over several, each call adds its pair's row and the figures are the worst pair's.
"""

# env: engine

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

REQUESTS, PROMPT_TOKENS, INTERPRETED_TOKENS, FAST_TOKENS, SEED = 8, 30, 12, 96, 1
SPECULATIVE_TOKENS = 3
Times = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench-sim-kernels"))
    parser.add_argument("--fresh", action="store_true", help="forget the rows of other pairs")
    options = parser.parse_args()
    # A script's own folder comes first on the path, where a benchmark's name may hide a package that vLLM imports.
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).resolve().parent]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    import ascend_sim
    from vllm_pairs import current_pair

    ascend_sim.activate()
    row = {"pair": current_pair().id, **measure_all()}
    summary = merge(options.out / "summary.json", row, fresh=options.fresh)
    show(row)
    sys.stdout.flush()
    # An engine's threads need no orderly end here, and some versions hang in it.
    os._exit(0 if summary["passed"] else 1)


def measure_all() -> dict[str, Any]:
    """Both engines, one after the other; the row of this pair."""
    from ascend_sim import kernels, models

    target, draft = str(models.build("dense")), str(models.build("eagle"))
    speculative = {"method": "eagle", "model": draft, "num_speculative_tokens": SPECULATIVE_TOKENS}
    decode = measure(target, {})
    eagle = measure(target, {"speculative_config": speculative})
    left = [entry for entry in kernels.status() if not entry.fast and entry.reason.startswith("source")]
    return {"decode": decode, "eagle": eagle, "left_to_interpreter": [entry.target for entry in left]}


def measure(model: str, extra: dict[str, Any]) -> dict[str, Any]:
    """One engine: the same requests with the interpreter's kernels and with the fast ones."""
    from ascend_sim import kernels
    from ascend_sim.smoke.scenarios import BASE_ENGINE
    from vllm import LLM

    llm = LLM(**{**BASE_ENGINE, "model": model, **extra})
    generate(llm, 2)  # lazily built state belongs to no step
    kernels.install("interpreter")
    slow_steps, slow_kernels, slow_tokens = timed(llm, INTERPRETED_TOKENS)
    kernels.install("fast")
    generate(llm, 2)
    fast_steps, fast_kernels, fast_tokens = timed(llm, FAST_TOKENS)
    declined = {entry.target: entry.declined for entry in kernels.status() if entry.declined}
    pairs = [
        (a, b) for left, right in zip(slow_tokens, fast_tokens, strict=True) for a, b in zip(left, right, strict=False)
    ]
    llm.llm_engine.engine_core.shutdown()
    return {
        "ms_per_step_interpreter": statistics.median(wall for wall, _ in slow_steps) * 1e3,
        "ms_per_step_fast": statistics.median(wall for wall, _ in fast_steps) * 1e3,
        "cpu_ms_per_step_interpreter": statistics.median(cpu for _, cpu in slow_steps) * 1e3,
        "cpu_ms_per_step_fast": statistics.median(cpu for _, cpu in fast_steps) * 1e3,
        "tokens_equal": sum(a == b for a, b in pairs),
        "tokens_total": len(pairs),
        "declined": declined,
        "kernels": kernel_rows(slow_kernels, fast_kernels),
    }


def generate(llm: Any, tokens: int) -> list[list[int]]:
    """Greedy tokens of the fixed requests."""
    import random

    from vllm import SamplingParams

    draw = random.Random(SEED)
    prompts: list[Any] = [
        {"prompt_token_ids": [draw.randrange(10, 500) for _ in range(PROMPT_TOKENS)]} for _ in range(REQUESTS)
    ]
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, detokenize=False)
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]


def timed(llm: Any, tokens: int) -> tuple[list[tuple[float, float]], Times, list[list[int]]]:
    """((wall, CPU) seconds of each decode step, CPU seconds of each kernel launch by name, tokens); no prefill step.

    CPU seconds are this thread's: on a busy host they move far less than wall time does.
    """
    from ascend_sim.kernels import registry

    steps: list[tuple[float, float]] = []
    launches: Times = defaultdict(list)
    step, restore = llm.llm_engine.step, []

    def timed_step() -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return step()
        finally:
            steps.append((time.perf_counter() - wall, time.thread_time() - cpu))

    for name, kernel, attribute in launched_kernels(registry):
        restore.append((kernel, attribute))
        setattr(kernel, attribute, timed_launch(getattr(kernel, attribute), launches[name]))
    llm.llm_engine.step = timed_step
    try:
        produced = generate(llm, tokens)
    finally:
        del llm.llm_engine.step
        for kernel, attribute in restore:
            delattr(kernel, attribute)
    return steps[2:], launches, produced


def launched_kernels(registry: Any) -> list[tuple[str, Any, str]]:
    """(name, kernel object in vLLM's module, its launching method) of every kernel in the table."""
    found = []
    for entry in registry.status():
        kernel = (
            registry._find(entry.target)
            if entry.target not in registry._installed
            else registry._installed[entry.target]
        )
        if not isinstance(kernel, str) and all(kernel is not other for _, other, _ in found):
            found.append((entry.name, kernel, "_launch" if entry.fast else "run"))
    return found


def timed_launch(launch: Any, seconds: list[float]) -> Any:
    def timed(*args: Any, **keywords: Any) -> Any:
        started = time.thread_time()
        try:
            return launch(*args, **keywords)
        finally:
            seconds.append(time.thread_time() - started)

    return timed


def kernel_rows(slow: Times, fast: Times) -> list[dict[str, Any]]:
    """One row a kernel that both runs launched, the costliest first."""
    rows = []
    for name in slow.keys() & fast.keys():
        if slow[name] and fast[name]:
            before, after = statistics.median(slow[name]) * 1e6, statistics.median(fast[name]) * 1e6
            rows.append({"kernel": name, "interpreter_us": before, "fast_us": after, "ratio": before / after})
    return sorted(rows, key=lambda row: -float(row["interpreter_us"]))


def merge(path: Path, row: dict[str, Any], *, fresh: bool) -> dict[str, Any]:
    """Write the summary with this pair's row added; figures are the worst pair's."""
    rows = [] if fresh or not path.exists() else json.loads(path.read_text())["rows"]
    rows = [*(old for old in rows if old["pair"] != row["pair"]), row]
    figures: dict[str, float] = {"pairs": len(rows)}
    for engine in ("decode", "eagle"):
        made = [one[engine] for one in rows]
        for figure in ("ms_per_step_interpreter", "ms_per_step_fast"):
            figures[f"{engine}_{figure}"] = max(one[figure] for one in made)
            figures[f"{engine}_cpu_{figure}"] = max(one[f"cpu_{figure}"] for one in made)
        figures[f"{engine}_tokens_equal"] = sum(one["tokens_equal"] for one in made)
        figures[f"{engine}_tokens_total"] = sum(one["tokens_total"] for one in made)
        figures[f"{engine}_smallest_kernel_ratio"] = min(kernel["ratio"] for one in made for kernel in one["kernels"])
    equal = all(
        one[engine]["tokens_equal"] == one[engine]["tokens_total"] for one in rows for engine in ("decode", "eagle")
    )
    covered = not any(
        one["left_to_interpreter"] or one["decode"]["declined"] or one["eagle"]["declined"] for one in rows
    )
    summary = {
        "name": "bench-sim-kernels",
        "version": 1,
        "pair": row["pair"] if len(rows) == 1 else "worst of several",
        "host": {
            "cores": len(os.sched_getaffinity(0)),
            "machine": platform.machine(),
            "python": platform.python_version(),
        },
        "seed": SEED,
        "figures": figures,
        "rows": rows,
        "passed": equal and covered,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(".summary.json")
    partial.write_text(json.dumps(summary, indent=1) + "\n")
    partial.replace(path)
    return summary


def show(row: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for engine in ("decode", "eagle"):
        made = row[engine]
        title = (
            f"pair {row['pair']}, {engine}: {made['ms_per_step_interpreter']:.1f} ms a step in the interpreter, "
            f"{made['ms_per_step_fast']:.2f} ms fast (CPU time {made['cpu_ms_per_step_interpreter']:.1f} and "
            f"{made['cpu_ms_per_step_fast']:.2f} ms), tokens equal {made['tokens_equal']}/{made['tokens_total']}"
        )
        table = Table("kernel", "interpreter CPU us", "fast CPU us", "ratio", title=title)
        for kernel in made["kernels"]:
            times = (f"{kernel['interpreter_us']:.0f}", f"{kernel['fast_us']:.1f}", f"{kernel['ratio']:.0f}")
            table.add_row(kernel["kernel"], *times)
        console.print(table)


if __name__ == "__main__":
    sys.exit(main())
