"""``cpu-smoke``: every scenario on the plain CPU engine and in the simulator, then a served round. Needs no torch in
this process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ascend_sim.smoke import serve
from ascend_sim.smoke.process import Child, ChildFailedError
from ascend_sim.smoke.results import Comparison, Result, compare, write_json

if TYPE_CHECKING:
    from pathlib import Path

    from ascend_sim.smoke.scenarios import Scenario

# The longest engine process of the recorded runs took a quarter of this; a hang must end, and say so.
ENGINE_TIMEOUT_S = 600.0
# Plugins of this kit, by distribution: config key and value.
PLUGINS: dict[str, tuple[str, dict[str, Any]]] = {
    "mrv2-metadata": ("mrv2_metadata", {"enabled": True}),
    "kv-plan-guard": ("kv_guard_config", {"enabled": True, "action": "raise"}),
    "layerwise-sched": ("layerwise_sched", {"policy": "ready"}),
}
Progress = Callable[[str, str], None]  # (event, what)


@dataclass(frozen=True)
class Row:
    """One scenario's outcome: both results and their comparison, or the error that kept it from one."""

    scenario: Scenario
    reference: Result | None
    result: Result | None
    comparison: Comparison | None
    error: str = ""

    @property
    def passed(self) -> bool:
        """Tokens equal, and the scenario really did what it is there for."""
        return not self.failure

    @property
    def failure(self) -> str:
        """Why this row fails, or an empty string."""
        if self.error:
            return self.error
        if self.comparison is None or self.result is None:
            return "not run"
        if self.comparison.first is not None:
            return f"tokens differ: {self.comparison.first}"
        if self.comparison.total != self.scenario.tokens_expected:
            return f"{self.comparison.total} tokens compared, {self.scenario.tokens_expected} expected"
        if self.scenario.must_preempt and not self.result.preemptions:
            return "no request was preempted, so preemption was not tested"
        if self.scenario.must_hit_prefix and not self.result.prefix_hits:
            return "no prefix cache hit, so the prefix cache was not tested"
        if self.scenario.speculative and not self.result.accepted:
            return "no draft token was accepted, so speculation was not tested"
        return ""


@dataclass(frozen=True)
class Outcome:
    """All rows, the served round and the time it took."""

    rows: list[Row]
    served: serve.ServeResult | None
    serve_error: str
    seconds: float
    plugins: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every row passed and every served request completed."""
        served = not self.serve_error and (
            self.served is None or (self.served.failed == 0 and self.served.completed > 0)
        )
        return bool(self.rows) and all(row.passed for row in self.rows) and served


def plugin_config() -> dict[str, Any]:
    """``additional_config`` that switches on every plugin of this kit that is installed here and verified on this pair.

    On another pair mrv2-metadata and layerwise-sched would stand aside and kv-plan-guard would refuse to start.
    """
    from importlib.metadata import entry_points

    from vllm_pairs import current_pair

    registered = {point.dist.name for point in entry_points(group="vllm.general_plugins") if point.dist is not None}
    pair = current_pair()
    return {key: value for name, (key, value) in PLUGINS.items() if name in registered and pair.checks_of(name)}


def run(
    scenarios: tuple[Scenario, ...],
    models: dict[str, Path],
    out: Path,
    *,
    with_serve: bool,
    progress: Progress,
    plugins: dict[str, Any] | None = None,
) -> Outcome:
    """Run `scenarios` with `models` (``target`` and, for speculation, ``draft``) and leave raw results and logs in
    `out`.
    """
    started = time.monotonic()
    raw = out / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for old in raw.glob("*.json"):
        old.unlink()
    config = plugin_config() if plugins is None else plugins
    errors = _run_engines(scenarios, models, raw, config, progress)
    rows = [_row(scenario, raw, errors) for scenario in scenarios]
    served, serve_error = None, ""
    if with_serve:
        progress("start", "serve")
        try:
            served = serve.run_round(models["target"], raw, additional_config=config or None)
        except (ChildFailedError, OSError, ValueError, KeyError) as error:
            # A result file that is missing or cut short must not cost the scenarios' results.
            serve_error = f"{type(error).__name__}: {error}" if not isinstance(error, ChildFailedError) else str(error)
        progress("done", "serve")
    return Outcome(rows, served, serve_error, time.monotonic() - started, config)


def _run_engines(
    scenarios: tuple[Scenario, ...], models: dict[str, Path], raw: Path, config: dict[str, Any], progress: Progress
) -> dict[str, str]:
    """Start the engine processes; returns errors by process name. The plain and the simulated engine share the
    machine's cores.
    """
    single = [scenario.name for scenario in scenarios if scenario.processes == 1]
    several = [scenario.name for scenario in scenarios if scenario.processes > 1]
    waves: list[list[tuple[str, str, list[str]]]] = [[("plain", "plain", [scenario.name for scenario in scenarios])]]
    if single:
        waves[0].append(("ascend", "ascend", single))
    waves += [[(f"ascend-{name}", "ascend", [name])] for name in several]
    errors: dict[str, str] = {}
    children: list[Child] = []
    try:
        for wave in waves:
            _run_wave(wave, models, raw, config, progress, errors, children)
    except BaseException:
        # Engines run in sessions of their own: an interrupt of this process alone would leave them behind.
        for child in children:
            child.stop()
        raise
    return errors


def _run_wave(
    wave: list[tuple[str, str, list[str]]],
    models: dict[str, Path],
    raw: Path,
    config: dict[str, Any],
    progress: Progress,
    errors: dict[str, str],
    children: list[Child],
) -> None:
    """Run the engine processes of one wave at the same time, each watched by a thread of its own."""
    threads = []
    for name, mode, names in wave:
        job = {
            "mode": mode,
            "scenarios": names,
            "folder": str(raw),
            "models": {key: str(path) for key, path in models.items()},
            "additional_config": config,
        }
        write_json(raw / f"job-{name}.json", job)
        arguments = (name, mode, raw, progress, errors, children)
        threads.append(threading.Thread(target=_run_engine, args=arguments, daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run_engine(
    name: str, mode: str, raw: Path, progress: Progress, errors: dict[str, str], children: list[Child]
) -> None:
    def on_line(line: str) -> None:
        if line.startswith("@smoke "):
            _, event, scenario = line.split()
            progress(event, f"{mode} {scenario}")

    environment = {**os.environ, "ASCEND_SIM": "1" if mode == "ascend" else "plain"}
    environment.setdefault("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "ascend_sim.smoke.engine", str(raw / f"job-{name}.json")]
    try:
        with Child(
            f"engine {name}", command, log=raw / f"engine-{name}.log", environment=environment, on_line=on_line
        ) as child:
            children.append(child)
            child.check(ENGINE_TIMEOUT_S)
    except ChildFailedError as error:
        errors[name] = str(error)


def _row(scenario: Scenario, raw: Path, errors: dict[str, str]) -> Row:
    reference = _read(raw / f"plain-{scenario.name}.json")
    result = _read(raw / f"ascend-{scenario.name}.json")
    for found, name in (
        (reference, "plain"),
        (result, "ascend" if scenario.processes == 1 else f"ascend-{scenario.name}"),
    ):
        if found is None:
            return Row(
                scenario,
                reference,
                result,
                None,
                errors.get(name) or f"engine {name} left no result for {scenario.name}",
            )
        if found.error:
            return Row(scenario, reference, result, None, f"engine {name}: {found.error.strip().splitlines()[-1]}")
    assert reference is not None
    assert result is not None
    return Row(scenario, reference, result, compare(reference.tokens, result.tokens))


def _read(path: Path) -> Result | None:
    return Result.read(path) if path.exists() else None
