"""``python -m ascend_sim.smoke``: what the nox sessions ``cpu-smoke`` and ``npu-smoke`` call."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ascend_sim.refusal import errors, refuse
from ascend_sim.smoke import cpu, npu_command, report, summary
from ascend_sim.smoke.scenarios import QUICK, SCENARIOS, Scenario, by_name

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
# A table in a log file needs its columns as much as one in a terminal.
console = Console() if sys.stdout.isatty() else Console(width=132)
NEEDED_BYTES = 64 << 20


def prepare_out(out: Path) -> None:
    """Make `out` and check that it can hold the results, before anything long starts."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".write-probe"
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        refuse(f"--out {str(out)!r} cannot be written: {reason}")
    free = shutil.disk_usage(out).free
    if free < NEEDED_BYTES:
        refuse(f"--out {str(out)!r} has {free >> 20} MiB free, {NEEDED_BYTES >> 20} MiB are needed: free some space")


def find_models(model: Path | None, scenarios: tuple[Scenario, ...]) -> tuple[dict[str, Path], tuple[Scenario, ...]]:
    """Model directories, and the scenarios that they allow: a user's own model has no draft to speculate with."""
    from ascend_sim import models

    if model is None:
        try:
            return {"target": models.build("dense"), "draft": models.build("eagle")}, scenarios
        except (OSError, models.ModelError) as error:
            refuse(str(error))
    if not (model / "config.json").is_file():
        refuse(f"--model {str(model)!r} is no model directory: no config.json in it")
    kept = tuple(one for one in scenarios if not one.speculative)
    for dropped in scenarios:
        if dropped.speculative:
            console.print(f"{dropped.name}: left out, speculation needs a draft made for the model", style="yellow")
    return {"target": model.resolve()}, kept


def check_pair(wanted: str | None) -> str:
    """Id of the pair installed here; refuses where it is not the wanted one or nothing that can run."""
    from vllm_pairs import current_pair

    try:
        installed = current_pair()
    except Exception as error:
        refuse(str(error))
    if wanted is not None and installed.id != wanted:
        refuse(f"--pair {wanted!r}: this environment holds {installed.id!r}; run `nox -s cpu-smoke -- --pair {wanted}`")
    return installed.id


@app.command(name="cpu")
def cpu_command(
    pair: Annotated[str | None, typer.Option(help="Pair that must be installed here.")] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Only batch (without and with plugins), preemption and prefix cache, and no served round."
        ),
    ] = False,
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be repeated.")] = None,
    model: Annotated[Path | None, typer.Option(help="A small model directory of your own.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for summary.json, report.html and raw results.")] = Path(
        "out/cpu-smoke"
    ),
    no_serve: Annotated[bool, typer.Option("--no-serve", help="Leave the served round out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
) -> None:
    """Run the scenarios on the plain CPU engine and in the simulator; exit 1 with the first difference where tokens
    differ.
    """
    try:
        chosen = by_name(scenario or (list(QUICK) if quick else [one.name for one in SCENARIOS]))
    except ValueError as error:
        refuse(str(error))
    installed = check_pair(pair)
    prepare_out(out)
    models, chosen = find_models(model, chosen)
    with_serve = not (quick or no_serve or scenario)
    # Ended from outside, the engine processes must go too: they are in sessions of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    outcome = _run_with_progress(chosen, models, out, with_serve, quiet=as_json)
    made = summary.summary(outcome, installed)
    try:
        summary.write(made, out)
        report.write(made, out)
    except OSError as error:
        refuse(f"results could not be written: {error}")
    _show(made, out, as_json)
    raise typer.Exit(0 if made["passed"] else 1)


def _run_with_progress(
    scenarios: tuple[Scenario, ...], models: dict[str, Path], out: Path, with_serve: bool, *, quiet: bool
) -> cpu.Outcome:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=quiet) as bar:
        task = bar.add_task("starting engines", total=2 * len(scenarios) + with_serve)
        running: list[str] = []

        def progress(event: str, what: str) -> None:
            if event == "start":
                running.append(what)
            elif what in running:
                running.remove(what)
                bar.advance(task)
            bar.update(task, description=", ".join(running) or "finishing")

        return cpu.run(scenarios, models, out, with_serve=with_serve, progress=progress)


def _show(made: dict[str, Any], out: Path, as_json: bool) -> None:
    if as_json:
        console.print_json(json.dumps(made))
        return
    for one in made["rows"] if made["pair"] == "all" else [made]:
        console.print(summary.table(one))
        for row in one["rows"]:
            if row["failure"]:
                errors.print(
                    f"{row['scenario']}: {row['failure']}", style="red", markup=False, highlight=False, soft_wrap=True
                )
        if one.get("serve_error"):
            errors.print(one["serve_error"], style="red", markup=False, highlight=False, soft_wrap=True)
    figures = made["figures"]
    console.print(
        f"tokens equal {figures['tokens_equal']}/{figures['tokens_total']}, {figures['seconds']:.0f} s, "
        f"details in {out / 'summary.json'} and {out / 'report.html'}",
        highlight=False,
    )


@app.command(name="merge")
def merge_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders that each hold a summary.json.")],
    out: Annotated[Path, typer.Option(help="Folder for the merged summary.json and report.html.")] = Path(
        "out/cpu-smoke"
    ),
) -> None:
    """Merge the summaries of several pairs into one: each figure the worst pair's, every pair in rows."""
    try:
        made = summary.merge([summary.read(folder / "summary.json") for folder in folders])
    except (OSError, ValueError) as error:
        refuse(str(error))
    prepare_out(out)
    try:
        summary.write(made, out)
        report.write(made, out)
    except OSError as error:
        refuse(f"results could not be written: {error}")
    _show(made, out, as_json=False)
    raise typer.Exit(0 if made["passed"] else 1)


app.command(name="npu")(npu_command.npu_command)


if __name__ == "__main__":
    app(prog_name="ascend-sim-smoke")
