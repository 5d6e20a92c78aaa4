"""Command line: `init | power | run | analyze | verify | report | ledger | site`. Bad input ends with status 2."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

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
STARTS_MISSING = 3  # exit status of `run --at-most` that stopped before the last start
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
                rule=cast('Literal["better", "not-worse", "same"]', rule),
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


@app.command()
def init(
    target: Annotated[Path, typer.Argument(help="Protocol file to write; must not exist.")],
    template: Annotated[str, typer.Option(help="Which protocol to start from; `--list` shows them.")] = "a-a",
    list_templates: Annotated[bool, typer.Option("--list", help="List the templates and write nothing.")] = False,
) -> None:
    """Write a protocol file to fill in."""
    with _errors():
        from .templates import names, read

        if list_templates:
            for name, what in names().items():
                typer.echo(f"{name:24} {what}")
            return
        text = read(template)
        if target.exists():
            raise EvidenceError(f"{target}: already exists; a protocol is never overwritten")
        target.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {target}; edit it, then `serving-evidence run {target} --out FOLDER --dry-run`")


@app.command()
def power(
    pilot: Annotated[list[Path] | None, typer.Argument(help="Two folders of pilot results (A and B).")] = None,
    packet: Annotated[Path | None, typer.Option(help="A packet as the pilot, e.g. the A/A run of this box.")] = None,
    metric: Annotated[str, typer.Option(help="Metric whose spread counts.")] = "output_throughput",
    sd: Annotated[float | None, typer.Option(help="Spread of the paired log-ratio, instead of pilot data.")] = None,
    effect: Annotated[float | None, typer.Option(help="Effect to find, as a fraction: 0.02 is 2 %.")] = None,
    margin: Annotated[float, typer.Option(help="Margin as a fraction.")] = 0.0,
    target: Annotated[float, typer.Option(help="Wanted power.")] = 0.8,
    level: Annotated[float, typer.Option(help="Level of the interval.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Plan the number of pairs: what each number could detect, and how many an effect needs."""
    with _errors():
        from .planning import plan_power

        found = plan_power(pilot or [], packet, metric, sd, effect, margin, target, level)
        if as_json:
            _print_json(found)
            return
        from .show import power_table

        console = Console()
        console.print(power_table(found))
        for note in found["notes"]:
            console.print(for_rich(note), highlight=False)


@app.command()
def run(
    protocol_file: Annotated[Path, typer.Argument(help="The protocol (TOML).")],
    out: Annotated[Path, typer.Option(help="Run folder; give the same one again to resume.")],
    calibration: Annotated[Path | None, typer.Option(help="Packet of an A/A run on this box.")] = None,
    deviation: Annotated[str | None, typer.Option(help="Record a deviation; it stays listed for ever.")] = None,
    at_most: Annotated[
        int | None, typer.Option("--at-most", min=1, help="Attempt at most so many starts now; run again to go on.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, start nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a protocol: a new server process per start, resumable, ending in a packet."""
    with _errors():
        from . import protocol
        from .planning import calibration_of

        declared = protocol.load(protocol_file)
        calibrated = calibration_of(calibration) if calibration else None
        if dry_run:
            _dry_run(declared, as_json)
            return
        from .packet import verify as verify_packet
        from .runner import Runner

        with Runner(out, declared, protocol_file.read_text(encoding="utf-8")) as runner, _bar() as bar:
            if deviation:
                runner.state.add_deviation(deviation)
            packet = runner.run(calibration=calibrated, at_most=at_most, on_progress=bar)
            done = sum(runner.state.done(slot) for slot in runner.slots)
        if packet is None:
            typer.echo(f"{done} of {len(runner.slots)} starts complete; give the same folder again to go on", err=True)
            raise typer.Exit(STARTS_MISSING)
        verified = verify_packet(packet)
        if as_json:
            _print_json({"packet": str(packet), "verdict": verified.verdict})
        else:
            _print_verified(verified, packet)


@app.command()
def verify(
    packet: Annotated[Path, typer.Argument(help="Packet folder, from anyone.")],
    as_json: Json = False,
) -> None:
    """Check hashes and recompute every number of a packet; status 2 when anything differs."""
    with _errors():
        from .packet import verify as verify_packet

        with _progress() as progress:
            verified = verify_packet(packet, progress)
        if as_json:
            _print_json({"files": verified.files, "protocol": verified.protocol.hash, "verdict": verified.verdict})
        else:
            _print_verified(verified, packet)


@app.command()
def report(
    packet: Annotated[Path, typer.Argument(help="Packet folder; it is verified first.")],
    out: Annotated[Path, typer.Option(help="HTML file to write: one page, no scripts, nothing loaded.")],
) -> None:
    """Write one self-contained page about a packet, every number recomputed from it."""
    with _errors():
        from .packet import verify as verify_packet
        from .report import page

        with _progress() as progress:
            text = page(verify_packet(packet, progress), packet.name)
        out.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {out}")


@app.command()
def ledger(
    packets: Annotated[Path, typer.Argument(help="Folder of packets with its ledger.jsonl.")],
    add: Annotated[str | None, typer.Option(help="Verify this packet of the folder and append it.")] = None,
    note: Annotated[str, typer.Option(help="A sentence about the added packet.")] = "",
    as_json: Json = False,
) -> None:
    """Check every packet of a ledger, or add one; status 2 when one is missing, changed or does not verify."""
    with _errors():
        from . import ledger as book

        if add is not None:
            entry = book.add(packets, add, note)
            typer.echo(f"added {entry.packet}: {entry.status}")
            return
        with _progress() as progress:
            found = book.check(packets, progress)
        if as_json:
            _print_json([entry.model_dump(mode="json") for entry, _ in found])
            return
        for entry, verified in found:
            typer.echo(f"{entry.added}  {entry.packet:24} {entry.status:15} {verified.files} files")
        typer.echo(f"{len(found)} packets hashed, every number recomputed")


@app.command()
def site(
    packets: Annotated[Path, typer.Argument(help="Folder of packets with its ledger.jsonl.")],
    out: Annotated[Path, typer.Option(help="Folder of Markdown pages to write or to check.")],
    published: Annotated[Path | None, typer.Option(help="Folder of published results (TOML).")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; status 2 when a page and a packet differ.")
    ] = False,
) -> None:
    """Write the claims of a reviewer site: a front page and one page a packet, every number recomputed."""
    with _errors():
        from .pages import site as pages

        with _progress() as progress:
            made = pages.pages(packets, published, progress)
        if check:
            wrong = pages.check(out, made)
            if wrong:
                raise EvidenceError(f"{out}: {wrong}; run `serving-evidence site` without --check")
            typer.echo(f"{len(made)} pages say what their packets say")
            return
        for name in pages.write(out, made):
            typer.echo(f"written {out / name}")


def _dry_run(declared: Any, as_json: bool) -> None:
    from .protocol import substitute
    from .runner import environment
    from .schedule import plan

    environment.check_cpus("server_cpus", declared.host.server_cpus)
    environment.check_cpus("client_cpus", declared.host.client_cpus)
    order = "".join(slot.arm for slot in plan(declared.design))
    places = {
        "host": "127.0.0.1",
        "port": "PORT",
        "base_url": "http://127.0.0.1:PORT",
        "result_dir": "START",
        "model": declared.model or "",
    }
    data = {
        "protocol": declared.hash,
        "order": order,
        "servers": {arm: substitute(spec.command, places) for arm, spec in declared.arms.items()},
        "clients": {scenario.name: substitute(scenario.command, places) for scenario in declared.scenarios},
        "warnings": declared.warnings(),
    }
    if as_json:
        _print_json(data)
        return
    typer.echo(f"protocol {declared.hash}\norder    {order}")
    for arm, command in data["servers"].items():
        typer.echo(f"server {arm} {' '.join(command)}")
    for name, command in data["clients"].items():
        typer.echo(f"client {name} {' '.join(command)}")
    for warning in data["warnings"]:
        typer.echo(f"note: {warning}")


def _print_verified(verified: Any, packet: Path) -> None:
    verdict = verified.verdict
    notes = [*verdict["invalid"], *verdict["outputs"], *verdict["warnings"]]
    if verdict["decision"]:
        notes.append(f"decision: {verdict['decision']['choice']}, {verdict['decision']['reason']}")
    notes.append(f"mechanism: {verdict['mechanism']['status']}, {verdict['mechanism']['reason']}")
    notes += [f"deviation: {item.text}" for item in verified.packet.deviations]
    _print_rows(verdict["rows"], f"{verified.protocol.name} ({packet})", notes)
    typer.echo(f"{verified.files} files hashed, every number recomputed")


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar over starts with the time left, on stderr."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=None)

        def update(done: int, total: int, what: str) -> None:
            progress.update(task, completed=done, total=total, description=for_rich(what, 60))

        yield update


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
