"""The command ``python -m ascend_sim.smoke npu``."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ascend_sim.refusal import refuse
from ascend_sim.smoke import npu, npu_host, npu_report
from ascend_sim.smoke.npu_plan import MODES, Outcome, Plan
from ascend_sim.smoke.scenarios import SCENARIOS, by_name

console = Console() if sys.stdout.isatty() else Console(width=140)
OWN = frozenset({"raw", "traces", "summary.json", "environment.json", "manifest-sha256.txt", "job.json"})


def npu_command(
    model: Annotated[Path | None, typer.Option(help="Model directory; may be left out with --simulated.")] = None,
    tensor_parallel_size: Annotated[int, typer.Option(min=1, help="NPUs that share the model.")] = 1,
    modes: Annotated[str, typer.Option(help="Comma list of eager and graph.")] = "eager,graph",
    graph_mode: Annotated[str, typer.Option(help="cudagraph_mode of the mode graph.")] = "FULL_DECODE_ONLY",
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be repeated.")] = None,
    draft: Annotated[Path | None, typer.Option(help="EAGLE draft of the model, for the speculative scenarios.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the packet (default out/npu-smoke, simulated out/npu-smoke-simulated)."),
    ] = None,
    profile_steps: Annotated[int, typer.Option(min=1, max=128, help="Decode steps to profile.")] = 8,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="Longest time of one unit.")] = 1800.0,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Run the flow in the simulator on the CPU; no NPU result.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the tables.")] = False,
) -> None:
    """On an Ascend host: each hook off and on, eager and graph apart, and a profile of decode steps."""
    if not simulated and not npu_host.has_npu():
        sys.stderr.write(npu_host.NO_NPU + "\n")
        raise typer.Exit(2)
    plan = Plan(
        model=_model_directory("--model", model, simulated),
        out=out or Path("out/npu-smoke-simulated" if simulated else "out/npu-smoke"),
        scenarios=_scenarios(scenario),
        modes=_modes(modes),
        simulated=simulated,
        profile_steps=profile_steps,
        tensor_parallel_size=tensor_parallel_size,
        draft=_model_directory("--draft", draft, False) if draft else None,
        graph_mode=graph_mode,
        timeout_s=timeout_s,
        devices=npu_host.visible_devices(),
        plugins=npu.plugins_here(),
    )
    _check_devices(plan)
    pair = _pair()
    _prepare(plan.out)
    host = npu_host.record(simulated=simulated)
    # Ended from outside, the engine processes must go too: they are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    outcome = _run_with_progress(plan, quiet=as_json)
    made = npu_report.summary(plan, outcome, pair, host)
    try:
        npu_report.write(plan, made, pair, host)
    except OSError as error:
        refuse(f"results could not be written: {error}")
    _show(made, plan.out, as_json)
    raise typer.Exit(0 if made["passed"] else 1)


def _modes(text: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [one for one in chosen if one not in MODES]
    if unknown or not chosen:
        refuse(f"--modes {text!r}: {unknown[0] if unknown else text!r} is no mode; use eager, graph or eager,graph")
    return chosen


def _scenarios(names: list[str] | None) -> tuple[Any, ...]:
    try:
        return by_name(names or [one.name for one in SCENARIOS])
    except ValueError as error:
        refuse(str(error))


def _model_directory(option: str, path: Path | None, simulated: bool) -> Path:
    if path is None and simulated:
        from ascend_sim import models

        try:
            return models.build("dense")
        except (OSError, models.ModelError) as error:
            refuse(str(error))
    if path is None:
        refuse(f"{option} is missing: give the folder of a model that fits the NPU")
    if not (path / "config.json").is_file():
        refuse(f"{option} {str(path)!r} is no model directory: no config.json in it")
    return path.resolve()


def _check_devices(plan: Plan) -> None:
    if not plan.simulated and plan.devices and plan.tensor_parallel_size > plan.devices:
        refuse(f"--tensor-parallel-size {plan.tensor_parallel_size}: {plan.devices} NPUs are visible here")


def _pair() -> dict[str, Any]:
    """The installed pair; one that is not in the table is recorded as such, and its hooks will say what they do."""
    from vllm_pairs import current_pair

    found = current_pair()
    if found.id == "none":
        refuse(found.reason)
    return {
        "id": found.id,
        "status": found.status,
        "vllm": found.vllm,
        "vllm_ascend": found.vllm_ascend,
        "vllm_commit": found.vllm_commit,
        "vllm_ascend_commit": found.vllm_ascend_commit,
        "reason": found.reason,
    }


def _prepare(out: Path) -> None:
    # Late: that module registers this one's command.
    from ascend_sim.smoke.__main__ import prepare_out

    if out.is_dir() and (foreign := sorted({path.name for path in out.iterdir()} - OWN)):
        refuse(f"--out {str(out)!r} holds {foreign[0]!r}, which is not this command's: name a folder of its own")
    prepare_out(out)
    npu.clear(out)


def _run_with_progress(plan: Plan, *, quiet: bool) -> Outcome:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runnable = sum(not plan.left_out(one) for one in plan.scenarios)
    total = len(plan.modes) * len(plan.arms) * (runnable + 1)
    with Progress(*columns, console=Console(stderr=True), disable=quiet) as bar:
        task = bar.add_task("starting", total=total)

        def progress(event: str, what: str) -> None:
            bar.update(task, description=what if event == "start" else None, advance=event == "done")

        return npu.run(plan, progress)


def _show(made: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        console.print_json(json.dumps(made))
        return
    for table in (npu_report.stage_table(made), npu_report.support_table(made), npu_report.profile_table(made)):
        console.print(table)
    numbers = made["figures"]
    console.print(
        f"{made['device']}: {numbers['rows_equal']} of {numbers['rows_compared']} compared rows equal, "
        f"tokens {numbers['tokens_equal']}/{numbers['tokens_total']}, {numbers['seconds']:.0f} s; folder {out}",
        highlight=False,
    )
