"""One process that lets real engines work under the guard, for guard_clean: random requests, no fault, many steps.

``python _guard_clean_engine.py JOB.json``. The job: ``mode``, ``folder``, ``models``, ``segments``. A segment has a
name, a seed, engine arguments and a number of steps; it leaves one file, and one that is there is not run again, so a
stopped run goes on where it was. What is asked is drawn from the seed alone: prompts of many lengths, some with a
common prefix, some requests aborted. The guard logs and counts; the result says what it counted.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [folder for folder in sys.path if folder != HERE]
sys.path.append(HERE)  # behind all others: a sibling may have the name of a library

from _guard_engine import (  # noqa: E402
    FIRST_TOKEN,
    LAST_TOKEN,
    guard_result,
    hooks,
    make_engine,
    runner_of,
    start,
    take_down,
)

LONGEST = 300
ABORTED = 0.03
OTHERS = ("VLLM_MRV2_METADATA",)  # plugins that a segment may switch on for its engine
WAITING = 3  # requests kept waiting above those that fit
# What vllm-ascend up to 0.29.0rc1 says of the tiny hybrid model: no engine starts, so there is nothing to judge.
REFUSED = "Cannot align ssm_page_size and attn_page_size"
REFUSING_PAIRS = ("0.26.0", "0.27.1", "0.28.0", "0.29.0")


class Workload:
    """Keeps an engine busy with random requests; everything is drawn from the seed."""

    def __init__(self, engine: Any, seed: int, max_num_seqs: int) -> None:
        self.engine = engine
        self.draw = random.Random(seed)
        self.room = max_num_seqs + WAITING
        self.made = self.finished = self.aborted = self.tokens = 0
        self.live: dict[str, None] = {}
        self.shared = [self._token() for _ in range(256)]

    def _token(self) -> int:
        return self.draw.randrange(FIRST_TOKEN, LAST_TOKEN)

    def add(self) -> None:
        from vllm import SamplingParams

        length = self.draw.choice((5, 20, 60, 130, 200, LONGEST))
        common = self.draw.choice((0, 0, 128, 256))
        ids = self.shared[: min(common, length - 1)]
        ids = ids + [self._token() for _ in range(length - len(ids))]
        sampling = SamplingParams(
            max_tokens=self.draw.randint(2, 80), temperature=0.0, ignore_eos=True, detokenize=False
        )
        name = f"r{self.made}"
        self.engine.add_request(name, {"prompt_token_ids": ids}, sampling)
        self.made += 1
        self.live[name] = None

    def step(self) -> None:
        while len(self.live) < self.room and self.draw.random() < 0.7:
            self.add()
        if self.live and self.draw.random() < ABORTED:
            name = self.draw.choice(list(self.live))
            self.engine.abort_request([name])
            del self.live[name]
            self.aborted += 1
        for output in self.engine.step():
            if output.finished:
                self.live.pop(output.request_id, None)
                self.finished += 1
                self.tokens += len(output.outputs[0].token_ids)


def run(segment: dict[str, Any], job: dict[str, Any], mode: str) -> dict[str, Any]:
    from vllm_pairs import current_pair

    for name in OTHERS:
        os.environ.pop(name, None)
    os.environ.update(segment.get("environment", {}))
    llm = make_engine(segment, job, mode)
    try:
        runner = runner_of(llm)
        load = Workload(llm.llm_engine, segment["seed"], segment.get("engine", {}).get("max_num_seqs", 8))
        started = time.perf_counter()
        guard = runner.__dict__["_kv_plan_guard"]
        while guard.step < segment["steps"]:
            load.step()
        found = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
        counted = guard_result(runner)
        assert counted is not None
        return {
            "pair": current_pair().id,
            "steps": counted["counts"]["steps"],
            "audits": counted["counts"]["audits"],
            "rows": counted["counts"]["rows"],
            "tokens": counted["counts"]["tokens"],
            "bad_audits": counted["counts"]["bad_audits"],
            "signatures": counted["signatures"],
            "coverage": counted["coverage"],
            "hooks": hooks(),
            "notes": counted["notes"],
            "figures": counted["figures"],
            "requests": load.made,
            "finished": load.finished,
            "aborted": load.aborted,
            "preemptions": int(found.get("vllm:num_preemptions", 0) or 0),
            "prefix_hits": int(found.get("vllm:prefix_cache_hits", 0) or 0),
            "drafted": int(found.get("vllm:spec_decode_num_draft_tokens", 0) or 0),
            "accepted": int(found.get("vllm:spec_decode_num_accepted_tokens", 0) or 0),
            "mirror_bytes": guard.guard.nbytes(),
            "seconds": time.perf_counter() - started,
        }
    finally:
        take_down(llm)
        del llm
        gc.collect()


def main(arguments: list[str]) -> int:
    job = json.loads(Path(arguments[0]).read_text())
    mode = start(job)
    from vllm_pairs import current_pair

    begin = time.monotonic()
    for segment in job["segments"]:
        if time.monotonic() - begin > job["seconds"]:
            break
        path = Path(job["folder"]) / f"{segment['name']}.json"
        if path.exists():
            continue
        try:
            result = run(segment, job, mode)
        except Exception as error:
            # A segment that breaks is counted like an alarm, unless it is the plugin that refuses its model.
            pair = current_pair().id
            refused = REFUSED in str(error) and pair in REFUSING_PAIRS
            what = f"{type(error).__name__}: {error}"[:4000]
            result = {"pair": pair, "error": what, "steps": 0, "bad_audits": int(not refused)}
            sys.stderr.write(result["error"] + "\n")
        scratch = path.with_suffix(".part")
        scratch.write_text(json.dumps({**segment, **result}))
        scratch.replace(path)
        sys.stdout.write(f"@segment {segment['name']} {result['steps']} steps\n")
        sys.stdout.flush()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
