"""One process with one or more real engines, for the benchmarks and tests of mrv2-metadata.

``python _metadata_engine.py JOB.json``. The job: ``mode`` (plain or ascend), ``folder``, ``models`` and ``runs``; each
run names a smoke scenario, the hook's configuration (null: off) and engine arguments. One result file a run, written
as it ends; the plain mode leaves one reference a scenario. The check of the lengths here is the harness's own and
shares nothing with the hook's.
"""

from __future__ import annotations

import ast
import gc
import inspect
import json
import os
import sys
import textwrap
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from _metadata_bare import leave_to_upstream
from _metadata_faults import plant, without_output


@dataclass
class Lengths:
    """Host against device lengths as the attention builders are about to read them, step by step."""

    steps: int = 0
    rows: int = 0
    drift_rows: int = 0
    too_long_rows: int = 0
    first: str = ""
    builds: list[float] = field(default_factory=list)

    def watch(self, model_state: Any) -> None:
        build = model_state.prepare_attn

        def watched(input_batch: Any, *args: Any, **named: Any) -> Any:
            if not getattr(input_batch, "is_dummy", False) and getattr(input_batch, "attn_state", None) is not None:
                self._compare(input_batch)
            started = time.perf_counter()
            try:
                return build(input_batch, *args, **named)
            finally:
                self.builds.append(time.perf_counter() - started)

        model_state.prepare_attn = watched

    def _compare(self, input_batch: Any) -> None:
        n = input_batch.num_reqs
        host = input_batch.seq_lens_np[:n]
        device = input_batch.seq_lens[:n].numpy()  # the simulator's device memory is this process's
        wrong = host != device
        self.steps += 1
        self.rows += n
        self.drift_rows += int(wrong.sum())
        self.too_long_rows += int((host > device).sum())
        if wrong.any() and not self.first:
            self.first = f"step {self.steps}: host {host.tolist()} device {device.tolist()}"


class Loops:
    """Per-request Python loops that upstream's length update runs, counted by its own executed lines."""

    def __init__(self, function: Any) -> None:
        function = inspect.unwrap(function)
        lines, start = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        self.code = function.__code__
        self.heads = {node.lineno + start - 1 for node in ast.walk(tree) if isinstance(node, ast.For)}
        self.count = 0

    def __enter__(self) -> Loops:
        sys.settrace(self._call)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def _call(self, frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is not self.code:
            return None
        hits: dict[int, int] = {}

        def local(frame: Any, event: str, argument: Any) -> Any:
            if event == "line" and frame.f_lineno in self.heads:
                hits[frame.f_lineno] = hits.get(frame.f_lineno, 0) + 1
            elif event == "return":
                # A head that is reached again after an iteration was a loop that ran.
                self.count += sum(n > 1 for n in hits.values())
            return local

        return local


def run(spec: dict[str, Any], job: dict[str, Any], mode: str) -> dict[str, Any]:
    """One engine, one scenario; raises what the engine raises."""
    from ascend_sim.smoke import engine as smoke
    from ascend_sim.smoke.scenarios import by_name
    from vllm import LLM, SamplingParams

    scenario = replace(by_name([spec["scenario"]])[0], **spec.get("changes", {}))
    arguments = smoke.engine_arguments(scenario, mode, job)
    arguments.update(spec.get("engine", {}))
    arguments["model"] = job["models"][spec.get("model", "target")]
    if spec.get("drafts") == "random":
        os.environ.pop("ASCEND_SIM_ORACLE", None)  # the draft model's own, which are hardly ever right
    # By the environment and not by the key: one process holds engines with different configurations here.
    for variable in ("VLLM_MRV2_METADATA", *OTHERS.values()):
        os.environ.pop(variable, None)
    if spec.get("hook") is not None:
        os.environ["VLLM_MRV2_METADATA"] = json.dumps(spec["hook"])
        fresh_stats()
    _disable()  # what an earlier engine of this process has put in: off is absent, and a fault may lie in a hook
    others = enable_others() if spec.get("others") else []
    undo = plant(spec.get("mutation"))
    undo_alone = without_output() if spec.get("alone") else lambda: None
    llm, lengths = None, Lengths()
    try:
        llm = LLM(**arguments)
        prompts: list[Any] = [{"prompt_token_ids": ids} for ids in scenario.prompt_token_ids()]
        sampling = SamplingParams(max_tokens=scenario.new_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        if scenario.warm_first:
            llm.generate(prompts[:1], sampling, use_tqdm=False)
        loops, result = None, {}
        if mode == "ascend":
            from ascend_sim import counters

            runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
            lengths.watch(runner.model_state)
            loops = Loops(_upstream(type(runner)))
            counters.reset()
        if spec.get("loops") and loops is not None:
            with loops:
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
        else:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
        if mode == "ascend":
            result = {
                "per_decode_step": counters.per_decode_step(),
                "totals": counters.totals(),
                "own_orders": _own_orders(counters.to_json()["sites"]),
                "alone": bool(spec.get("alone")),
                "others": others,
                "attention_groups": sum(len(groups) for groups in runner.attn_groups),
                "steps": lengths.steps,
                "rows": lengths.rows,
                "drift_rows": lengths.drift_rows,
                "first_drift": lengths.first,
                "host_loops": loops.count if loops and spec.get("loops") else None,
                "hook": hook_stats(runner),
                "in_place": _in_place(),
            }
        metrics = {m.name: int(getattr(m, "value", 0) or 0) for m in llm.get_metrics() if m.name in METRICS}
        return {**result, "metrics": metrics, "tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    except Exception as error:
        error.add_note(f"{lengths.drift_rows} rows drifted before. {lengths.first}")
        raise
    finally:
        undo()
        undo_alone()
        os.environ.pop("ASCEND_SIM_ORACLE", None)
        if llm is not None:
            drop(llm)
        del llm
        gc.collect()


def _disable() -> None:
    from mrv2_metadata.adapters import install

    install.disable()


def _own_orders(sites: list[dict[str, Any]]) -> int:
    """How often this package has ordered a stream behind another one."""
    place = "adapters/order.py:after_main"
    return sum(row["count"] for row in sites if row["kind"] == "stream_wait" and row["site"].endswith(place))


# The kit's other plugins by entry point, each with the variable that its configuration can be given by.
OTHERS = {"kv_plan_guard": "VLLM_KV_PLAN_GUARD", "layerwise_sched": "VLLM_LAYERWISE_SCHED"}
OTHERS_CONFIG = {"kv_plan_guard": {"enabled": True}, "layerwise_sched": {"policy": "ready"}}


def enable_others() -> list[str]:
    """Switch on those of the kit's other plugins that are installed and verified on this pair, and name them.

    An enabled guard refuses to start on a pair that it was not verified with.
    """
    from importlib.metadata import entry_points

    from vllm_pairs import current_pair

    installed = {point.name for point in entry_points(group="vllm.general_plugins")} & set(OTHERS)
    found = sorted(name for name in installed if current_pair().checks_of(name.replace("_", "-")))
    for name in found:
        os.environ[OTHERS[name]] = json.dumps(OTHERS_CONFIG[name])
        next(iter(entry_points(group="vllm.general_plugins", name=name))).load()()
    return found


def try_unverified() -> None:
    """Let the hook go in on a pair without a row in the pair table: how the run is made that earns the row.

    Only with KIT_TRY_UNVERIFIED=1 in the environment; the hashes of what the hooks rely on are checked as ever.
    """
    if os.environ.get("KIT_TRY_UNVERIFIED") == "1":
        from mrv2_metadata.adapters import install

        install._unverified = lambda pair: None


def _below_the_simulator() -> None:
    """Let the hook on the output stand around the simulator's own check, which lazy copies put there."""
    from mrv2_metadata.adapters import contracts, install

    hooks_of = install.hooks_of

    def around(*args: Any) -> list[Any]:
        place = f"{contracts.OUTPUT}.get_output"
        return [replace(hook, ast_sha256=()) if hook.target == place else hook for hook in hooks_of(*args)]

    install.hooks_of = around


def drop(llm: Any) -> None:
    """Take an engine down; further ones of this process start in seconds."""
    llm.llm_engine.engine_core.shutdown()


def fresh_stats() -> None:
    """Counters of this run alone; a worker process otherwise has one engine in its life."""
    from mrv2_metadata.adapters import install
    from mrv2_metadata.stats import Stats

    shared = install.metadata()
    if shared is not None:
        shared.stats = Stats()


METRICS = ("vllm:num_preemptions", "vllm:prefix_cache_hits", "vllm:spec_decode_num_accepted_tokens")


def _upstream(runner_class: type) -> Any:
    """Upstream's own length update, below whatever stands in its place."""
    from vllm_ascend.worker.v2.model_runner import NPUModelRunner

    assert issubclass(runner_class, NPUModelRunner)
    return inspect.unwrap(vars(NPUModelRunner)["_update_seq_lens_cpu"])


def _in_place() -> dict[str, Any]:
    """The hooks of this process, and whether this package's targets are the functions that their modules define."""
    from mrv2_metadata.adapters.contracts import WRAPPED
    from vllm_pairs import installed_hooks
    from vllm_pairs.targets import resolve

    own = {}
    for target in WRAPPED:
        place = resolve(target)
        # An inherited target that is untouched has no entry of its own; one of its own is a function of its module.
        plain = place.raw is None or (
            not hasattr(place.raw, "__wrapped__")
            and place.raw.__code__.co_filename == sys.modules[place.holder.__module__].__file__
        )
        own[target] = plain
    return {"hooks": sorted(hook.name for hook in installed_hooks()), "plain": own}


def hook_stats(runner: Any) -> dict[str, Any] | None:
    state = runner.__dict__.get("_mrv2_metadata")
    if state is None or not state.config.enabled:
        return None
    return {**state.stats.to_json(), "declined": state.declined, "reasons": list(state.decision.reasons)}


def _run_plain(job: dict[str, Any]) -> None:
    """The references, in the form in which the simulator's drafts look for them."""
    from ascend_sim.smoke import engine as smoke
    from ascend_sim.smoke.scenarios import by_name

    folder, answered = Path(job["folder"]), {}
    for scenario in by_name(sorted({spec["scenario"] for spec in job["runs"] if "scenario" in spec})):
        question = scenario.reference_question()
        if question not in answered:
            answered[question] = smoke.run(scenario, "plain", job)
        replace(answered[question], scenario=scenario.name).write(folder)


def done_before(path: Path, fault: bool = False) -> bool:
    """Whether an earlier process of the same work folder left this result; an error is one where a fault is planted."""
    return path.exists() and (fault or "error" not in json.loads(path.read_text()))


def run_specs(job: dict[str, Any], mode: str) -> bool:
    """The job's runs one after the other, or in plain mode the references; whether each gave a result."""
    if mode == "plain":
        _run_plain(job)
        return True
    fine = True
    for spec in job["runs"]:
        path = Path(job["folder"]) / f"{mode}-{spec['name']}.json"
        if done_before(path, "mutation" in spec):
            continue
        try:
            result = leave_to_upstream(spec["probe"]) if "probe" in spec else run(spec, job, mode)
        except Exception as error:
            fine = False
            result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            sys.stderr.write(result["trace"])
        path.write_text(json.dumps({"name": spec["name"], **result}))
    return fine


def _reference_elsewhere() -> None:
    """Go on as a process of the default pair's environment where this pair has no plain engine to compare with.

    On the baseline the core's compiled operators do not load under the torch that the simulator needs, and the plain
    CPU attention has no others. Greedy float32 tokens of a model are the same on every pair's plain engine.
    """
    from vllm_pairs import current_pair, load_pairs

    if current_pair().status == "baseline":
        other = Path(sys.prefix).parent / load_pairs().default / "bin" / "python"
        if not other.exists():
            raise FileNotFoundError(f"the reference needs the default pair's environment, {other}: run it there first")
        os.execv(other, [str(other), *sys.argv])


def prepare(mode: str) -> str:
    """What every process of these benchmarks does first; returns the mode."""
    if mode == "plain":
        _reference_elsewhere()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from ascend_sim import activate

    mode = activate(mode)
    if mode == "ascend":
        from mrv2_metadata.plugin import load

        load()  # as the entry point does; a second call changes nothing
        try_unverified()
        if os.environ.get("ASCEND_SIM_LAZY_COPIES") == "1":
            _below_the_simulator()
    return mode


def leave(fine: bool) -> None:
    """End the process at once: the engine's threads hang in an orderly end on some versions."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if fine else 1)


def main(arguments: list[str]) -> None:
    job = json.loads(Path(arguments[0]).read_text())
    leave(run_specs(job, prepare(job["mode"])))


if __name__ == "__main__":
    main(sys.argv[1:])
