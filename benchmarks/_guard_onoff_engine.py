"""One wave for guard_onoff: ``python _guard_onoff_engine.py JOB.json``: 48 requests in rounds of eight, all eight
enqueued before the first step, and what each step executed.

A wave leaves every output token id, one line per step with the normalised execution plan, and, apart from it, the
physical request slots. Blocks are renamed by first appearance in the wave, so that two waves are compared by structure
and not by which free block came first.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [folder for folder in sys.path if folder != HERE]
sys.path.append(HERE)

from _guard_engine import (  # noqa: E402
    FIRST_TOKEN,
    LAST_TOKEN,
    guard_of,
    guard_result,
    make_engine,
    runner_of,
    start,
    take_down,
)  # fmt: skip


class Recorder:
    """What the runner executes, read from its own tensors behind `prepare_attn`; the same in every wave."""

    def __init__(self, runner: Any) -> None:
        self.plans: list[Any] = []
        self.slots: list[list[int]] = []
        self.names: dict[int, int] = {}
        self.sizes = list(runner.kernel_block_sizes)
        prepare = runner.prepare_attn

        def prepare_attn(batch: Any) -> Any:
            tables, slots = prepare(batch)
            self._record(batch, tables, slots)
            return tables, slots

        runner.prepare_attn = prepare_attn

    def _record(self, batch: Any, tables: Any, slots: Any) -> None:
        rows = []
        lens = batch.seq_lens[: batch.num_reqs].tolist()
        for row, name in enumerate(batch.req_ids):
            start, end = (int(value) for value in batch.query_start_loc_np[row : row + 2])
            groups = []
            for gid, size in enumerate(self.sizes):
                columns = -(-lens[row] // size)
                blocks = [self._rename(block) for block in tables[gid][row, :columns].tolist()]
                where = [(self._rename(slot // size), slot % size) for slot in slots[gid, start:end].tolist()]
                groups.append([blocks, where])
            rows.append([name, end - start, lens[row], groups])
        self.plans.append(rows)
        self.slots.append([int(index) for index in batch.idx_mapping_np])

    def _rename(self, block: int) -> int:
        return block if block <= 0 else self.names.setdefault(block, len(self.names) + 1)


def prompts(job: dict[str, Any]) -> list[list[int]]:
    draw = random.Random(job["seed"])
    lengths = (7, 30, 61, 90, 128, 150, 200, 215)
    return [
        [draw.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(lengths[(i * 5 + i // 8) % len(lengths)])]
        for i in range(job["requests"])
    ]


def wave(job: dict[str, Any], spec: dict[str, Any], mode: str) -> dict[str, Any]:
    from vllm import SamplingParams

    llm = make_engine(spec, job, mode)
    try:
        runner = runner_of(llm)
        recorder = Recorder(runner)
        sampling = SamplingParams(max_tokens=job["new_tokens"], temperature=0.0, ignore_eos=True, detokenize=False)
        asked, ids = prompts(job), {}
        engine = llm.llm_engine
        warm = None
        if mode == "ascend":
            from ascend_sim import counters

            counters.reset()
        for first in range(0, len(asked), 8):
            order = list(range(first, min(first + 8, len(asked))))
            if spec.get("permuted"):
                random.Random(first).shuffle(order)
            for number in order:
                engine.add_request(f"q{number}", {"prompt_token_ids": asked[number]}, sampling)
            while engine.has_unfinished_requests():
                for output in engine.step():
                    if output.finished:
                        ids[output.request_id] = list(output.outputs[0].token_ids)
            warm = _allocated(runner) if warm is None else warm
        return {
            "traffic": counters.totals() if mode == "ascend" else None,
            "allocated": [warm, _allocated(runner)],
            "ids": [ids[f"q{number}"] for number in range(len(asked))],
            "plans": [[[_short(name), *rest] for name, *rest in rows] for rows in recorder.plans],
            "slots": recorder.slots,
            "guard": guard_result(runner),
        }
    finally:
        take_down(llm)
        del llm
        gc.collect()


def _allocated(runner: Any) -> int:
    """Pairs of a device and a pinned buffer that the guard has made so far."""
    guard = guard_of(runner)
    return guard.figures()["pinned_allocations"] if guard is not None else 0


def _short(req_id: str) -> str:
    """The request's own name: vLLM may append a random part to it."""
    return req_id.split("-")[0]


def main(arguments: list[str]) -> int:
    job = json.loads(Path(arguments[0]).read_text())
    mode = start(job)
    for spec in job["waves"]:
        path = Path(job["folder"]) / f"{spec['name']}.json"
        if not path.exists():
            scratch = path.with_suffix(".part")
            scratch.write_text(json.dumps(wave(job, spec, mode)))
            scratch.replace(path)
        sys.stdout.write(f"@wave {spec['name']}\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
