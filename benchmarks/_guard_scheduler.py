"""One process that lets the real Scheduler and KVCacheManager work under the guard, without a model.

``python _guard_scheduler.py JOB.json``. The job: ``folder``, ``seed``, ``steps``, ``segment``. Expectation: the
scheduler's own SchedulerOutput, by the adapter's reader. Observation: block tables and slots by the release's own
`BlockTables` (core or vllm-ascend) with its own append, gather and slot kernels; positions and lengths by a request
state that follows the sampled output, as the runner's device state does, and, behind a load that failed in its step,
the scheduler. Nothing is read out of the guard. Everything is drawn from the seed. A result is one file; one that is
there is not run again.
"""

from __future__ import annotations

import inspect
import json
import os
import random
import resource
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
sys.path[:] = [folder for folder in sys.path if folder != HERE]
sys.path.append(HERE)  # behind all others: a sibling may have the name of a library

from _guard_tables import (  # noqa: E402  # found on the path that was just set
    BLOCK,
    LONGEST,
    Tables,
    engine_config,
    kv_cache_config,
    make_scheduler,
    planted,
)

VOCABULARY = 400
#: name -> groups, pool, and what the scheduler is asked to do
SEGMENTS: dict[str, dict[str, Any]] = {
    "full": {"groups": ["full"], "pool": 200},
    "full-async": {"groups": ["full"], "pool": 200, "async": True},
    "preemption": {"groups": ["full"], "pool": 26},
    "preemption-async": {"groups": ["full"], "pool": 26, "async": True},
    "sliding": {"groups": ["full", "sliding"], "pool": 70},
    "sliding-async": {"groups": ["full", "sliding"], "pool": 120, "async": True},
    "chunked-local": {"groups": ["full", "chunked_local"], "pool": 120},
    "mamba": {"groups": ["full", "mamba"], "pool": 160},
    "ascend": {"groups": ["full", "sliding"], "pool": 120, "tables": "ascend"},
    "drafts": {"groups": ["full"], "pool": 36, "drafts": 3},
    "drafts-async": {"groups": ["full"], "pool": 36, "drafts": 3, "async": True},
    "loads": {"groups": ["full"], "pool": 40, "loads": True},
    "loads-inside": {"groups": ["full"], "pool": 40, "loads": True, "inside": True},
    "loads-async": {"groups": ["full"], "pool": 40, "loads": True, "async": True},
    "interpreted": {"groups": ["full", "sliding"], "pool": 120, "kernels": "interpreter"},
}


class Run:
    """A scheduler under a random load, a stand-in for the device, and the guard between them."""

    def __init__(self, segment: dict[str, Any], seed: int) -> None:
        from kv_plan_guard import Config, GroupLayout, Guard, Layout
        from kv_plan_guard.adapters.scheduler import SchedulerReader
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        self.segment, self.seed = segment, seed
        self.draw = random.Random(seed)
        self.config = engine_config(segment)
        caches = kv_cache_config(segment)
        self.asynchronous = bool(segment.get("async"))
        self.scheduler = make_scheduler(self.config, caches, self.asynchronous)
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(BLOCK, sha256)
        self.tables = Tables(segment, caches, self.draw)
        width = int(self.tables.tables.input_block_tables[0].shape[1])
        extra = {"sliding": {"window": 40}, "chunked_local": {"window": 48}, "mamba": {"mamba_mode": "align"}}
        groups = tuple(
            GroupLayout(
                kind,
                BLOCK,
                segment["pool"],
                row_width=width,
                slot_dtype="int32" if segment.get("tables") == "ascend" else "int64",
                slots="unused" if kind == "mamba" else "used",
                **extra.get(kind, {}),
            )
            for kind in segment["groups"]
        )
        loads = bool(segment.get("loads"))
        layout = Layout(
            groups,
            max_model_len=LONGEST,
            steps_in_flight=int(self.asynchronous),
            num_speculative_tokens=segment.get("drafts", 0),
            connector="RandomConnector" if loads else None,
            connector_checks=("LIFETIME", "CONN") if loads else (),
        )
        self.guard = Guard(Config(enabled=True, action="log", replay_dir=str(segment["replay"])), layout)
        self.reader = SchedulerReader(False)
        self.shared = [[self.draw.randrange(VOCABULARY) for _ in range(96)] for _ in range(4)]
        self.counts = dict.fromkeys(
            (
                "steps",
                "empty",
                "tokens",
                "made",
                "aborted",
                "preempted",
                "drafted",
                "rejected",
                "loaded",
                "failed",
                "failed_inside",
                "planted",
                "missed",
            ),
            0,
        )
        self.prefix_tokens = 0
        self.waiting: deque[tuple[Any, Any]] = deque()
        self.step = 0
        self.drafts: dict[str, list[int]] = {}

    def add(self) -> None:
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self.counts["made"] += 1
        prompt = list(self.draw.choice(self.shared)) if self.draw.random() < 0.5 else []
        prompt = prompt[: self.draw.randrange(1, 97)]
        prompt += [self.draw.randrange(VOCABULARY) for _ in range(self.draw.randrange(1, 120))]
        arguments = {
            "request_id": f"r{self.counts['made']}",
            "prompt_token_ids": prompt,
            "sampling_params": SamplingParams(max_tokens=self.draw.randrange(1, 60), ignore_eos=True),
            "pooling_params": None,
            "block_hasher": self.hasher,
        }
        known = inspect.signature(Request.__init__).parameters
        self.scheduler.add_request(Request(**{name: value for name, value in arguments.items() if name in known}))

    def work(self, steps: int) -> None:
        """Until `steps` non-empty steps were audited."""
        from vllm.v1.request import RequestStatus

        scheduler, draw = self.scheduler, self.draw
        seats = self.segment.get("seats", 4) + 2
        idle = 0
        while self.counts["steps"] < steps:
            while len(scheduler.requests) < seats:
                self.add()
            if draw.random() < 0.02 and scheduler.running:
                victim = draw.choice(scheduler.running).request_id
                scheduler.finish_requests(victim, RequestStatus.FINISHED_ABORTED)
                self.counts["aborted"] += 1
            output = scheduler.schedule()
            self.waiting.append((output, self.dispatch(output)))
            if len(self.waiting) > int(self.asynchronous):
                scheduler.update_from_output(*self.waiting.popleft())
            if self.drafts and not self.asynchronous:
                self.propose()
            idle = 0 if output.num_scheduled_tokens else idle + 1
            if idle > 1000:
                raise RuntimeError(f"seed {self.seed}: the scheduler schedules nothing any more")

    def dispatch(self, output: Any) -> Any:
        """What worker and guard do with one decision; returns the model's output."""
        self.step += 1
        counts = self.counts
        connector = self.connector_facts(output)
        self.guard.observe(self.reader.facts(self.step, output, connector))
        self.tables.follow(output)
        counts["preempted"] += len(output.preempted_req_ids or ())
        self.prefix_tokens += sum(request.num_computed_tokens for request in output.scheduled_new_reqs)
        if output.num_scheduled_tokens:
            counts["steps"] += 1
            counts["tokens"] += output.total_num_scheduled_tokens
            for plan in self.tables.plans(self.step, output):
                self.audit(plan)
        else:
            counts["empty"] += 1
        return self.sample(output)

    def audit(self, plan: Any) -> None:
        """Audit; with `fault_every` also a copy of the plan with one used entry changed, which must be found."""
        assert self.guard.audit(plan).ok or not self.segment.get("fault_every"), "the plan itself was found bad"
        every = self.segment.get("fault_every")
        if every and self.step % every == 0:
            wrong = planted(plan, self.guard.layout.groups[plan.group], self.draw)
            if wrong is not None:
                self.counts["planted"] += 1
                self.counts["missed"] += self.guard.audit(wrong).ok

    def sample(self, output: Any) -> Any:
        """A token for each request that is through its prompt; drafts accepted or rejected at random."""
        from kv_plan_guard import OutputFacts
        from vllm.v1.outputs import ModelRunnerOutput

        names, tokens, sampled, rejected = list(output.num_scheduled_tokens), [], [], []
        self.drafts = {}
        for name in names:
            request = self.scheduler.requests.get(name)
            count = output.num_scheduled_tokens[name]
            drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
            end = self.tables.computed[name] + count - drafts
            # Requests aborted meanwhile are sampled too, as a device would.
            through = request is None or end >= request.num_tokens - self.in_flight(request)
            accepted = self.draw.randint(0, drafts) if drafts else 0
            given = 1 + accepted if through else 0
            lost = drafts - accepted
            self.tables.computed[name] += count - lost
            self.counts["drafted"] += drafts
            self.counts["rejected"] += lost
            tokens.append([self.draw.randrange(VOCABULARY) for _ in range(given)])
            sampled.append(given)
            rejected.append(lost)
            if through and self.segment.get("drafts"):
                self.drafts[name] = [self.draw.randrange(VOCABULARY) for _ in range(self.segment["drafts"])]
        if names:
            self.guard.settle(OutputFacts(self.step, names, sampled, rejected))
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self.report_loads(output, result)
        return result

    def in_flight(self, request: Any) -> int:
        """Tokens that the scheduler's request already counts and no step has brought: none, it appends on output."""
        return 0

    def propose(self) -> None:
        from vllm.v1.outputs import DraftTokenIds

        live = {name: ids for name, ids in self.drafts.items() if name in self.scheduler.requests}
        self.scheduler.update_draft_token_ids(DraftTokenIds(list(live), list(live.values())))

    def connector_facts(self, output: Any) -> Any:
        if not self.segment.get("loads"):
            return None
        from _guard_connector import facts_of

        return facts_of(output.kv_connector_metadata)

    def report_loads(self, output: Any, result: Any) -> None:
        """Loads end some steps later, some of them with blocks that could not be read."""
        if not self.segment.get("loads"):
            return
        from _guard_connector import WORKER

        ended = WORKER.step(output.kv_connector_metadata, self.draw)
        result.kv_connector_output = ended
        if ended is not None:
            self.counts["loaded"] += len(ended.finished_recving or ())
            self.counts["failed"] += len(ended.invalid_block_ids)
            self.counts["failed_inside"] = WORKER.failed_inside


def mode_of(name: str) -> str:
    """Which simulator a segment needs: one process activates one."""
    return "ascend" if SEGMENTS[name].get("tables") == "ascend" else "plain"


def main() -> int:
    """Run one job, or the jobs of a list (all of one mode) until `seconds` are over."""
    job = json.loads(Path(sys.argv[1]).read_text())
    jobs = job.get("jobs", [job])
    begin = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import ascend_sim

    ascend_sim.activate(*([] if mode_of(jobs[0]["segment"]) == "ascend" else ["plain"]))
    import torch

    torch.set_num_threads(1)
    # What the CPU worker does before it builds a runner: host memory stands for device memory.
    import vllm.v1.worker.cpu.shm
    import vllm.v1.worker.gpu.block_table  # noqa: F401

    for one in jobs:
        if time.monotonic() - begin > job.get("seconds", float("inf")):
            break
        result = run_job(one)
        if result is not None:
            shown = {
                key: value for key, value in result.items() if key not in ("coverage", "violations", "fast_kernels")
            }
            sys.stdout.write("@" + json.dumps(shown) + "\n")
            sys.stdout.flush()
    os._exit(0)


def run_job(job: dict[str, Any]) -> dict[str, Any] | None:
    """One segment; its result, also written to its file, or None where it has one."""
    from ascend_sim import kernels

    folder = Path(job["folder"])
    name, seed, steps = job["segment"], int(job["seed"]), int(job["steps"])
    target = folder / f"{name}-{seed}.json"
    if target.exists():
        return None
    segment = {
        **SEGMENTS[name],
        "replay": folder / "replay",
        "fault_every": job.get("fault_every"),
        "stale": job.get("stale"),
    }
    if segment.get("loads"):
        import _guard_connector

        _guard_connector.WORKER.__init__()
    interpreted = segment.get("kernels") == "interpreter"
    fast = kernels.install("slot_mapping=interpreter,gather_block_tables=interpreter" if interpreted else "")
    run = Run(segment, seed)
    begin, cpu = time.monotonic(), time.process_time()
    run.work(min(steps, 2000))
    early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bytes_early = run.guard.nbytes()
    run.work(steps)
    used = time.process_time() - cpu
    stats = run.guard.stats
    result = {
        "name": name,
        "seed": seed,
        "fast_kernels": sorted(entry.name for entry in fast if entry.fast),
        **run.counts,
        "prefix_tokens": run.prefix_tokens,
        "audits": stats.audits,
        "slow_audits": stats.slow_audits,
        "false_alarms": stats.bad_audits,
        "violations": {code.value: number for code, number in stats.violations.items()},
        "mirror_bytes": run.guard.nbytes(),
        "mirror_bytes_early": bytes_early,
        "pool_blocks": segment["pool"] * len(segment["groups"]),
        "live_blocks": sum(int(group.count.sum()) for group in run.guard.mirror.groups),
        "rss_growth_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early,
        "seconds": round(time.monotonic() - begin, 1),
        "cpu_seconds": round(used, 1),
        "cpu_us_per_step": round(used / max(1, run.counts["steps"]) * 1e6, 1),
        "coverage": run.guard.finish(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f".{target.name}"
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(target)
    return result


if __name__ == "__main__":
    sys.exit(main())
