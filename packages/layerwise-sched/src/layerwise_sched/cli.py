"""Command line: `layerwise-sched report | compare | simulate | export | seal`. Bad input ends with status 2."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layerwise_sched import __version__
from layerwise_sched.errors import LayerwiseError, WorkloadError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layerwise_sched.runs import Run
    from layerwise_sched.simulation import Workload

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Timelines, head-of-line evidence and policies for layer-wise KV loads.",
)
Folder = Annotated[Path, typer.Argument(help="The `timeline` folder of a run, or one worker's folder in it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Policies = Annotated[str, typer.Option(help="Policies, separated by commas; the first is the one to compare with.")]
Out = Annotated[Path, typer.Option(help="File or folder to write; must not exist.")]


@app.command()
def report(
    folder: Folder,
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained page; must not exist.")] = None,
    cut_off: Annotated[bool, typer.Option(help="The run was cut off: tasks not served are not lost.")] = False,
    as_json: Json = False,
) -> None:
    """Where the time went, and whether a later task could have run: one report a worker."""
    with _errors():
        from layerwise_sched.summary import summarise

        found: dict[str, dict[str, Any]] = {}
        runs: dict[str, Run] = {}
        for recording in _read(folder):
            name = recording.source.name
            runs[name] = recording.run()
            found[name] = summarise(runs[name], finished=not cut_off)
        if html is not None:
            from layerwise_sched.page import page

            if len(runs) > 1:
                raise LayerwiseError(f"--html draws one worker; {str(folder)!r} holds {', '.join(runs)}: name one")
            name, run = next(iter(runs.items()))
            _write(html, page(run, found[name], name))
        if as_json:
            _print_json({"workers": found})
            return
        from layerwise_sched.show import run_tables

        for name, summary in found.items():
            _print(f"[bold]{_safe(name)}[/bold]", *run_tables(summary))


@app.command()
def compare(folder: Folder, policies: Policies = "fifo,ready,gate", as_json: Json = False) -> None:
    """What if: the recorded steps, replayed in the simulator under other policies."""
    with _errors():
        from layerwise_sched.simulation import workload_of
        from layerwise_sched.whatif import compare_rows, what_if

        found: dict[str, Any] = {}
        for recording in _read(folder):
            run = recording.run()
            replayed = workload_of(run)
            rows = compare_rows(what_if(replayed.workload, _names(policies)))
            recorded = sorted(step.end - step.begin for step in run.steps)
            found[recording.source.name] = {
                "rows": rows,
                "recorded_median_ms": recorded[(len(recorded) - 1) // 2] / 1e6 if recorded else None,
                "steps": len(replayed.workload.steps),
                "skipped_steps": replayed.skipped,
                "stream_times_stood_in_for": replayed.guessed,
            }
        if as_json:
            _print_json({"workers": found})
            return
        from layerwise_sched.show import compare_table

        for name, worker in found.items():
            note = (
                f"{worker['steps']} steps replayed, {worker['skipped_steps']} left out, "
                f"{worker['stream_times_stood_in_for']} stream times not observed; "
                f"recorded median {worker['recorded_median_ms']:.2f} ms"
            )
            _print(f"[bold]{_safe(name)}[/bold]", compare_table(worker["rows"]), note)


@app.command()
def simulate(
    spec: Annotated[
        Path | None, typer.Argument(help="Workload spec as JSON (fields of `Spec`); none: defaults.")
    ] = None,
    policies: Policies = "fifo,ready,gate",
    seed: Annotated[int, typer.Option(help="Seed of the generated times.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Also draw the first policy's run; must not exist.")] = None,
    as_json: Json = False,
) -> None:
    """A generated workload under several policies."""
    with _errors():
        from layerwise_sched.show import compare_table
        from layerwise_sched.summary import summarise
        from layerwise_sched.whatif import compare_rows, what_if

        workload = _workload(spec, seed)
        simulated = what_if(workload, _names(policies))
        rows = compare_rows(simulated)
        if html is not None:
            from layerwise_sched.page import page

            run = next(iter(simulated.values())).run()
            _write(html, page(run, summarise(run), f"simulated, {rows[0]['policy']}"))
        if as_json:
            _print_json({"seed": seed, "rows": rows})
            return
        reason = rows[0]["impossible"]
        _print(compare_table(rows), f"head-of-line blocking is impossible here: {_safe(reason)}" if reason else "")


@app.command()
def export(
    folder: Folder,
    out: Out,
    kind: Annotated[str, typer.Option("--format", help="perfetto-json, insight or perfetto.")] = "perfetto-json",
) -> None:
    """Write a trace that a viewer opens: Chrome Trace JSON (gzipped, or as MindStudio Insight wants it) or protobuf.

    perfetto-json: OUT is a .json.gz for ui.perfetto.dev. insight: OUT is a folder, `chrome_tracing.json` is written
    into it (Insight goes by that very name). perfetto: OUT is a .pftrace, with the extra `layerwise-sched[perfetto]`.
    """
    with _errors():
        if kind not in ("perfetto-json", "insight", "perfetto"):
            raise LayerwiseError(f"--format is {kind!r}: use perfetto-json, insight or perfetto")
        recordings = _read(folder)
        if len(recordings) > 1:
            names = ", ".join(recording.source.name for recording in recordings)
            raise LayerwiseError(f"{str(folder)!r} holds {names}: name one")
        run, pid = recordings[0].run(), recordings[0].pid
        _absent(out)
        if kind == "perfetto":
            from layerwise_sched.export.perfetto import write_perfetto

            written = write_perfetto(run, out, pid)
        else:
            from layerwise_sched.export.chrome import write_chrome

            if kind == "insight":
                out.mkdir(parents=True)
            elif out.suffix != ".gz":
                raise LayerwiseError(f"--out is {str(out)!r}: a name ending in .json.gz for perfetto-json")
            written = write_chrome(run, out / "chrome_tracing.json" if kind == "insight" else out, pid)
        typer.echo(f"wrote {written}")


@app.command()
def seal(
    folder: Folder, out: Annotated[Path | None, typer.Option(help="Where to; the same folder if none.")] = None
) -> None:
    """Make Parquet and JSONL of what the workers spooled."""
    with _errors():
        from layerwise_sched.timeline_file import SEALED
        from layerwise_sched.timeline_file import seal as seal_one

        target = out or (folder.parent if folder.suffix else folder)
        for recording in _read(folder):
            if recording.source.suffix != SEALED:
                typer.echo(f"wrote {seal_one(recording, target)}")


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Timelines, head-of-line evidence and policies for layer-wise KV loads."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def _read(folder: Path) -> list[Any]:
    from layerwise_sched.timeline_file import find_timelines, read

    return [read(path) for path in find_timelines(folder)]


def _workload(path: Path | None, seed: int) -> Workload:
    from layerwise_sched.simulation import Spec, generate
    from layerwise_sched.simulation.spec_file import spec_of

    if path is None:
        return generate(Spec(), seed)
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}") from None
    return generate(spec_of(row, str(path)), seed)


def _names(policies: str) -> list[str]:
    from layerwise_sched.policy import policy_names

    names = [name.strip() for name in policies.split(",") if name.strip()]
    known = policy_names()
    for name in names:
        if name not in known:
            raise LayerwiseError(f"--policies names {name!r}; known: {', '.join(known)}")
    if not names:
        raise LayerwiseError(f"--policies is {policies!r}: give at least one of {', '.join(known)}")
    return list(dict.fromkeys(names))


def _absent(path: Path) -> None:
    if path.exists():
        raise LayerwiseError(f"{str(path)!r} exists already; nothing is overwritten")
    if not path.parent.is_dir():
        raise LayerwiseError(f"{str(path.parent)!r} is not a folder")


def _write(path: Path, text: str) -> None:
    _absent(path)
    path.write_text(text, encoding="utf-8")


def _safe(text: object) -> str:
    from layerwise_sched.text import for_rich

    return for_rich(text)


def _print(*things: Any) -> None:
    from rich.console import Console

    console = Console()
    for thing in things:
        if thing != "":
            console.print(thing, highlight=False)


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1))


@contextmanager
def _errors() -> Iterator[None]:
    """Bad input is one line on stderr and status 2."""
    try:
        yield
    except (LayerwiseError, OSError) as error:
        from layerwise_sched.text import plain

        sys.stderr.write(f"layerwise-sched: {plain(error, 2_000)}\n")
        raise typer.Exit(2) from None
