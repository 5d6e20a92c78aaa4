"""Command line: `serving-evidence init | power | run | analyze | verify | report`. Bad input ends with status 2."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from . import canonical
from .errors import EvidenceError
from .text import for_rich

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serving performance claims that carry their proof.",
)
Json = Annotated[bool, typer.Option("--json", help="Print canonical JSON instead of a table.")]


@app.command()
def analyze(
    dir_a: Annotated[Path, typer.Argument(help="Results of arm A (control), one file a server start.")],
    dir_b: Annotated[Path, typer.Argument(help="Results of arm B (treatment).")],
    metric: Annotated[str | None, typer.Option(help="Primary metric, e.g. output_throughput.")] = None,
    rule: Annotated[str, typer.Option(help="better, not-worse or same.")] = "better",
    margin: Annotated[float, typer.Option(help="Margin as a fraction: 0.01 is 1 %.")] = 0.0,
    level: Annotated[float, typer.Option(help="Level of the interval.")] = 0.95,
    resamples: Annotated[int, typer.Option(help="Bootstrap resamples.")] = 9_999,
    every_metric: Annotated[bool, typer.Option("--all", help="Every metric in common, not the usual ones.")] = False,
    as_json: Json = False,
) -> None:
    """Compare two folders of result files made by vllm bench, GuideLLM or AIPerf."""
    with _errors():
        from .analysis import Settings
        from .compare import compare_folders

        if rule not in ("better", "not-worse", "same"):
            raise EvidenceError(f"--rule is {rule!r}: use better, not-worse or same")
        if not 0 <= margin < 1:
            raise EvidenceError(f"--margin is {margin!r}: a fraction from 0 to below 1, 0.01 for 1 %")
        if rule == "same" and margin == 0:
            raise EvidenceError("--rule same needs a --margin above 0")
        with _progress() as progress:
            found = compare_folders(
                dir_a,
                dir_b,
                metric=metric,
                rule=rule,
                margin=margin,
                settings=Settings(level=level, resamples=resamples),
                every_metric=every_metric,
                progress=progress,
            )
        data = found.to_json()
        if as_json:
            _print_json(data)
            return
        _print_rows(data["rows"], f"{dir_b} against {dir_a}", data["warnings"])


@contextmanager
def _errors() -> Iterator[None]:
    """One clear line and status 2 for everything that is the input's fault."""
    try:
        yield
    except EvidenceError as problem:
        _fail(str(problem))
    except BrokenPipeError:
        raise typer.Exit(1) from None
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        _fail(f"{where}{problem.strerror or problem}")


def _fail(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"serving-evidence: {for_rich(message)}")
    raise typer.Exit(2)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A status line on a terminal's stderr; silent elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("working") as status:
        yield lambda what: status.update(for_rich(what, 100))


def _print_json(value: Any) -> None:
    sys.stdout.write(canonical.pretty(value))


def _print_rows(rows: list[dict[str, Any]], title: str, notes: list[str]) -> None:
    from .show import verdict_table

    console = Console()
    console.print(verdict_table(rows, title))
    for row in rows:
        if row["role"] in ("primary", "gate"):
            console.print(for_rich(row["verdict"]["sentence"]), highlight=False)
    for note in notes:
        console.print(f"note: {for_rich(note)}", highlight=False)
