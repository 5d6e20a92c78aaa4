"""The command `vllm-pairs`: list the pairs, check the installed one, print a target's contract."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from vllm_pairs import contract
from vllm_pairs.errors import PairsError
from vllm_pairs.pairs import PLUGIN_DISTRIBUTION, Pair, current_pair, load_pairs
from vllm_pairs.targets import TargetProblem, check_form, resolve

if TYPE_CHECKING:
    from typing import NoReturn

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Verified pairs of vLLM core and vllm-ascend plugin."
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_COLOURS = {"verified": "green", "baseline": "cyan", "core-only": "cyan", "does-not-start": "red"}


def _stop(error: Exception | str) -> NoReturn:
    print(f"vllm-pairs: {error}", file=sys.stderr)
    raise typer.Exit(2)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _as_dict(pair: Pair) -> dict[str, Any]:
    return {**dataclasses.asdict(pair), "verified": pair.verified}


@app.command("list")
def list_pairs(as_json: Json = False) -> None:
    """Every pair of the table, and what each package tested on it."""
    table = load_pairs()
    if as_json:
        _print_json({"version": 1, "default": table.default, "pairs": [_as_dict(pair) for pair in table.pairs]})
        return
    packages = list(dict.fromkeys(check.package for pair in table.pairs for check in pair.checks))
    shown = Table("pair", "vLLM", PLUGIN_DISTRIBUTION, "torch (CPU)", "status", *packages)
    for pair in table.pairs:
        colour = _COLOURS.get(pair.status, "dim")
        tested = ["; ".join(check.what for check in pair.checks_of(package)) or "-" for package in packages]
        name = f"{pair.id} (default)" if pair.id == table.default else pair.id
        core, plugin = _part(pair.vllm, pair.vllm_commit), _part(pair.vllm_ascend, pair.vllm_ascend_commit)
        status = f"[{colour}]{pair.status}[/]"
        shown.add_row(name, core, plugin, pair.cpu.torch if pair.cpu else "-", status, *tested)
    Console().print(shown)


def _part(version: str | None, commit: str | None) -> str:
    return version or (commit[:10] if commit else "-")


@app.command()
def check(as_json: Json = False) -> None:
    """The installed pair: exit status 0 when it is verified, 1 when it is not."""
    pair = current_pair()
    if as_json:
        _print_json(_as_dict(pair))
    else:
        name = f"vLLM {pair.vllm or 'absent'}, vllm-ascend {pair.vllm_ascend or 'absent'}"
        print(f"pair {pair.id}: {'verified' if pair.verified else 'NOT verified'} ({pair.status}); {name}")
        if pair.reason:
            print(f"  reason: {pair.reason}")
        for one in pair.checks:
            print(f"  tested: {one.package}: {one.what} ({one.command})")
        for text in pair.substitutes:
            print(f"  on a CPU: {text}")
    if not pair.verified:
        raise typer.Exit(1)


@app.command("hash")
def hash_target(
    target: Annotated[str, typer.Argument(help='"module:Class.method" or "module:function"; its module is imported.')],
    as_json: Json = False,
) -> None:
    """The signature and the normalised-AST hash of a function, as a hook's contract wants them."""
    try:
        check_form(target)
        function = resolve(target).function
        found = {
            "target": target,
            "signature": contract.signature_text(function),
            "ast_sha256": contract.ast_sha256(function),
            "wrapped_by": contract.runtime_wrapper(function),
        }
    except TargetProblem as problem:
        _stop(f"{target} ({problem.difference}): expected {problem.expected}, found {problem.found}")
    except (PairsError, ValueError) as error:
        _stop(error)
    if as_json:
        _print_json(found)
        return
    for name, value in found.items():
        if value is not None:
            print(f"{name}: {value}")


@app.command("doctor")
def run_doctor(
    core: Annotated[str, typer.Option(help="Core: a source tree, a wheel, or an installed distribution.")] = "",
    plugin: Annotated[str, typer.Option(help="Plugin: the same. Both default to what is installed.")] = "",
    core_version: Annotated[str | None, typer.Option(help="The core's release, where its tree tells none.")] = None,
    plugin_version: Annotated[str | None, typer.Option(help="The plugin's release, where its tree tells none.")] = None,
    since: Annotated[
        list[str] | None, typer.Option(help="An older core; give several to learn since when each finding is there.")
    ] = None,
    confidence: Annotated[str, typer.Option(help="Least confidence shown: high, medium or low.")] = "medium",
    suppressions: Annotated[Path | None, typer.Option(help="TOML file of [[suppress]] id, reason, expires.")] = None,
    hooks: Annotated[
        list[str] | None, typer.Option(help="Folder of a package with hooks; default: those installed.")
    ] = None,
    explain: Annotated[str, typer.Option(help="Explain a rule (VPD201) or one finding (VPD201-1a2b3c4d).")] = "",
    output: Annotated[str, typer.Option("--format", help="table, json or sarif.")] = "table",
    as_json: Json = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")] = False,
) -> None:
    """What of a plugin a core breaks, read off both source trees; exit status 1 with errors, 2 for bad input."""
    from vllm_pairs.doctor.command import Request, run
    from vllm_pairs.doctor.findings import DoctorError
    from vllm_pairs.doctor.nodes import uncollected

    request = Request(
        core=core,
        plugin=plugin,
        core_version=core_version,
        plugin_version=plugin_version,
        confidence=confidence,
        since=tuple(since or ()),
        suppressions=suppressions,
        hooks=tuple(hooks or ()),
        explain=explain,
        output="json" if as_json else output,
        use_cache=not no_cache,
    )
    try:
        with uncollected():  # from the first tree read to the report: a search through them is a sixth of the time
            status = run(request)
    except DoctorError as error:
        _stop(error)
    raise typer.Exit(status)


def main() -> None:
    """Entry point."""
    app()


if __name__ == "__main__":
    main()
