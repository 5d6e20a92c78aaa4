"""``ascend-sim doctor | run | serve | model | counters``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ascend_sim import SimulatorError, __version__, doctor, models
from ascend_sim.refusal import refuse
from ascend_sim.smoke.serve import SERVE_DEFAULTS, vllm_command

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console()
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Run the real vllm-ascend Model Runner V2 in the real vLLM engine on a plain CPU."""
    if version:
        console.print(__version__)
        raise typer.Exit(0)


@app.command(name="doctor")
def doctor_command(
    deep: Annotated[
        bool, typer.Option("--deep", help="Also load vLLM and say which fast kernels fit (half a minute).")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is stood in for, what is real, and which pair is installed; exit 1 where no engine can run."""
    report = doctor.examine(deep=deep)
    if as_json:
        console.print_json(json.dumps(report))
    else:
        for table in doctor.tables(report):
            console.print(table)
    raise typer.Exit(0 if report["can_run"] else 1)


@app.command(name="run")
def run_command(
    model: Annotated[str, typer.Option(help="Name of a tiny model, or a model directory.")] = "dense",
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; may be repeated.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, max=256, help="New tokens for each prompt.")] = 16,
    plain: Annotated[bool, typer.Option("--plain", help="vLLM's own CPU runner instead of the Ascend runner.")] = False,
    as_json: AsJson = False,
) -> None:
    """Generate greedily in this process and show the tokens and the copies and waits of a decode step."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    folder = _model(model, "plain" if plain else "simulator")
    from ascend_sim import generate

    try:
        result = generate.generate(
            folder, prompt or ["a b c", "hello world"], max_tokens, mode="plain" if plain else "ascend"
        )
    except SimulatorError as error:
        refuse(str(error))
    if as_json:
        console.print_json(json.dumps(result))
    else:
        _show_generation(result)
    # Threads of the engine would keep the process; there is nothing left to save.
    sys.stdout.flush()
    os._exit(0)


def _show_generation(result: dict[str, Any]) -> None:
    table = Table("prompt", "token ids", title=f"{result['runner']}, {result['attention']}", title_justify="left")
    for one in result["outputs"]:
        table.add_row(repr(one["prompt"]), " ".join(map(str, one["token_ids"])))
    console.print(table)
    if result["per_decode_step"]:
        console.print(counter_table(result["per_decode_step"], "per ordinary decode step"))


def counter_table(averages: dict[str, float], title: str) -> Table:
    """Averages of the counters as a table."""
    table = Table("counter", "average", title=title, title_justify="left")
    for name, value in averages.items():
        table.add_row(name, f"{value:.4g}")
    return table


@app.command(name="serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def serve_command(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Name of a tiny model, or a model directory.")] = "dense",
    own: Annotated[
        Path | None, typer.Option("--model", help="A model directory of your own (same as the argument).")
    ] = None,
    lazy_copies: Annotated[
        bool, typer.Option("--lazy-copies", help="Poison the target of a copy until a wait covers it.")
    ] = False,
    counters_dir: Annotated[
        Path | None, typer.Option(help="Folder where each worker leaves its counters as JSON.")
    ] = None,
) -> None:
    """Start a real ``vllm serve`` under the simulator; further arguments go to ``vllm serve`` as they are."""
    folder = _model(str(own) if own else model, "simulator")
    environment = {**os.environ, "ASCEND_SIM": "1"}
    environment.setdefault("HF_HUB_OFFLINE", "1")
    if lazy_copies:
        environment["ASCEND_SIM_LAZY_COPIES"] = "1"
    if counters_dir is not None:
        try:
            counters_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            refuse(f"--counters-dir {str(counters_dir)!r} cannot be made: {error.strerror}")
        environment["ASCEND_SIM_COUNTERS_DIR"] = str(counters_dir.resolve())
    if not doctor.can_run():
        refuse(f"no engine can run here, missing: {', '.join(doctor.missing())}; `vllm-pairs list` names the pairs")
    arguments = ["serve", str(folder), *_defaults(context.args, folder), *context.args]
    os.execvpe(sys.executable, vllm_command(*arguments), environment)


def _defaults(given: list[str], folder: Path) -> list[str]:
    """Arguments that the simulator needs, unless the user gave them."""
    # The tiny models' folders carry seed and digest behind the name.
    tiny = (folder / "ascend_sim.json").exists()
    name = folder.name.split("-")[0] if tiny else folder.resolve().name
    wanted = {**SERVE_DEFAULTS, "--served-model-name": name}
    names = {argument.split("=")[0].replace("_", "-") for argument in given}
    arguments = [] if {"--enforce-eager", "--no-enforce-eager"} & names else ["--enforce-eager"]
    for option, value in wanted.items():
        if option not in names:
            arguments += [option, value]
    return arguments


@app.command(name="model")
def model_command(
    name: Annotated[str | None, typer.Argument(help="Name of a tiny model; without it, the list.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to build it in (default: the user's cache).")] = None,
    as_json: AsJson = False,
) -> None:
    """Build a tiny random model with its tokenizer and print its folder; without a name, list the models."""
    if name is not None:
        try:
            console.print(str(models.build(name, out)), soft_wrap=True, highlight=False)
        except models.ModelError as error:
            refuse(str(error))
        return
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "description": one.description,
            "draft_for": one.draft_for,
            "plain": one.runs("plain"),
            "simulator": one.runs("simulator"),
            "refused": dict(one.refused),
        }
        for one in models.ARCHITECTURES.values()
    ]
    if as_json:
        console.print_json(json.dumps(rows))
        return
    table = Table("model", "what", "plain engine", "simulator", "reason")
    for row in rows:
        where = ["runs" if row[place] else "refused" for place in ("plain", "simulator")]
        if row["draft_for"]:
            where = ["draft", "draft"]
        table.add_row(row["name"], row["description"], *where, "; ".join(row["refused"].values()))
    console.print(table)


@app.command(name="counters")
def counters_command(
    folder: Annotated[Path, typer.Argument(help="Folder given as ASCEND_SIM_COUNTERS_DIR.")],
    as_json: AsJson = False,
) -> None:
    """Show what the workers of a served engine counted."""
    found = sorted(folder.glob("counters-*.json"))
    if not found:
        refuse(
            f"{str(folder)!r} holds no counters-*.json: was the engine started with ASCEND_SIM_COUNTERS_DIR={folder}?"
        )
    try:
        workers = [json.loads(path.read_text()) for path in found]
    except (OSError, ValueError) as error:
        refuse(f"counters in {str(folder)!r} cannot be read: {error}")
    if as_json:
        console.print_json(json.dumps(workers))
        return
    for path, worker in zip(found, workers, strict=True):
        console.print(counter_table(worker["per_decode_step"], f"{path.stem}: per ordinary decode step"))


def _model(model: str, place: models.Place) -> Path:
    try:
        return models.resolve(model, place)
    except models.ModelError as error:
        refuse(str(error))


def main() -> None:
    """Entry point of the command ``ascend-sim``."""
    app(prog_name="ascend-sim")


if __name__ == "__main__":
    main()
