"""From the raw results of npu-smoke's engine processes to rows and profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ascend_sim.smoke import npu_profile
from ascend_sim.smoke.npu_plan import OFF, Plan, Profile, Row
from ascend_sim.smoke.results import Comparison, Result, compare, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from ascend_sim.smoke.scenarios import Scenario

# What lets a plugin see its key: there with every plugin installed, and in no step of the engine.
BOOTSTRAP = "vllm_pairs."


def compare_mode(plan: Plan, mode: str, units: dict[str, dict[str, dict[str, Any]]]) -> list[Row]:
    """Rows of a mode: each scenario of each arm against the same scenario with the hooks off."""
    rows = []
    for scenario in plan.scenarios:
        for arm in plan.arms:
            if why := plan.left_out(scenario):
                rows.append(Row(mode, scenario.name, arm, "left out", why))
            else:
                rows.append(_row(plan, mode, scenario, arm, units[OFF].get(scenario.name), units[arm][scenario.name]))
    return rows


def _row(plan: Plan, mode: str, scenario: Scenario, arm: str, off: dict[str, Any] | None, found: dict[str, Any]) -> Row:
    def row(status: str, why: str = "", comparison: Comparison | None = None) -> Row:
        return Row(mode, scenario.name, arm, status, why, result, comparison, hooks)

    hooks = tuple(name for name in found["stages"].get("hooks", ()) if not name.startswith(BOOTSTRAP))
    result = Result(**found["result"]) if found["status"] == "ran" else None
    if result is None:
        return row(found["status"], found["reason"])
    if why := _not_tested(scenario, result):
        return row("failed", why)
    if hooks and not plan.arms[arm]:
        return row("failed", f"off, and yet these hooks are in place: {', '.join(hooks)}")
    if arm == OFF:
        return row("ran")
    own = arm.removeprefix("on-").replace("-", "_") + "."
    if plan.arms[arm] and not any(name.startswith(own) for name in hooks):
        return row("declined", "the hook is not in place: " + _why_declined(plan, mode, arm))
    if off is None or off["status"] != "ran":
        return row("failed", "no result with the hooks off to compare with")
    comparison = compare(off["result"]["tokens"], result.tokens)
    if comparison.first is None and comparison.total == scenario.tokens_expected:
        return row("equal", comparison=comparison)
    why = str(comparison.first or f"{comparison.total} tokens compared, {scenario.tokens_expected} expected")
    return row("differs", why, comparison)


def _not_tested(scenario: Scenario, result: Result) -> str:
    if scenario.must_preempt and not result.preemptions:
        return "no request was preempted, so preemption was not tested"
    if scenario.must_hit_prefix and not result.prefix_hits:
        return "no prefix cache hit, so the prefix cache was not tested"
    if scenario.speculative and not result.drafted:
        return "no token was drafted, so speculation was not tested"
    return ""


def _why_declined(plan: Plan, mode: str, arm: str) -> str:
    """The plugin's own warning, from the engine's log."""
    name = arm.removeprefix("on-")
    for log in sorted((plan.out / "raw" / mode).glob(f"{arm}-*.log")):
        for line in log.read_text(errors="replace").splitlines():
            if f"{name} is not in place" in line or f"{name} declines" in line:
                return line[line.index(name) :][:300]
    return "its log does not say why"


def profile_of(plan: Plan, mode: str, arm: str, found: dict[str, Any] | None) -> Profile:
    """The recorded decode steps of one arm; a profile with a step too few or without traces is a failed one."""
    if found is None or found["status"] != "ran":
        return Profile(
            mode, arm, found["status"] if found else "refused", reason=found["reason"] if found else "not run"
        )
    recorded = found["profile"]
    if "ranks" not in recorded:
        return from_traces(mode, arm, recorded, plan.out / "traces" / mode / arm)
    rank = recorded["ranks"][0]
    counts = {"d2h": rank["d2h"], "wait_event": rank["stream_wait"], "host_wait": rank["event_wait"]}
    if rank["ordinary_decode"] == recorded["steps"]:
        return Profile(mode, arm, "recorded", rank["steps"], recorded["source"], counts)
    why = f"{rank['ordinary_decode']} ordinary decode steps counted, {recorded['steps']} wanted"
    return Profile(mode, arm, "failed", rank["steps"], recorded["source"], counts, reason=why)


def from_traces(mode: str, arm: str, recorded: dict[str, Any], folder: Path) -> Profile:
    """Counts of the exported traces under `folder`; of several ranks, the first is shown and all must be readable."""
    source, steps = recorded["source"], recorded["steps"]
    paths = npu_profile.traces(folder)
    try:
        if not paths:
            raise npu_profile.ProfileError("the profiler exported no trace_view.json")
        read = [npu_profile.read(path) for path in paths]
    except npu_profile.ProfileError as error:
        return Profile(mode, arm, "failed", 0, source, reason=str(error))
    write_json(folder / "counts.json", [{"by_kind": one.by_kind, "unmatched": one.unmatched} for one in read])
    first = read[0]
    counts = {
        "d2h": first.by_kind[npu_profile.D2H],
        "wait_event": first.by_kind[npu_profile.WAIT_EVENT],
        "host_wait": first.by_kind[npu_profile.HOST_EVENT_WAIT] + first.by_kind[npu_profile.HOST_STREAM_WAIT],
        **{f"trace_{kind}": n for kind, n in first.by_kind.items()},
    }
    if first.profiler_steps == steps:
        return Profile(mode, arm, "recorded", steps, source, counts, first.unmatched)
    why = f"the trace has {first.profiler_steps} ProfilerStep spans, {steps} steps were recorded"
    return Profile(mode, arm, "failed", first.profiler_steps, source, counts, first.unmatched, why)
