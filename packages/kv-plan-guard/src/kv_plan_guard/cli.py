"""`kv-plan-guard replay | explain | inject | bench`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from kv_plan_guard import __version__, replay
from kv_plan_guard.errors import GuardError
from kv_plan_guard.explain import explain
from kv_plan_guard.violation import Code


def _replay(options: argparse.Namespace) -> int:
    """0: the file's findings were found again; 1: they were not."""
    done = replay.run(replay.read(options.file))
    if options.json:
        body = {
            "reproduced": done.reproduced,
            "recorded": list(done.recorded),
            "violations": [violation.to_json() for violation in done.violations],
        }
        sys.stdout.write(json.dumps(body, indent=1) + "\n")
    else:
        sys.stdout.write(done.text + "\n")
        sys.stdout.write("reproduced\n" if done.reproduced else "NOT reproduced: the file says otherwise\n")
        if not done.reproduced:
            sys.stdout.writelines(f"  recorded: {line}\n" for line in done.recorded)
    return 0 if done.reproduced else 1


def _explain(options: argparse.Namespace) -> int:
    codes = list(Code) if options.code is None else [_code(options.code)]
    found = [explain(code) for code in codes]
    if options.json:
        sys.stdout.write(json.dumps([asdict(entry) for entry in found], indent=1) + "\n")
        return 0
    for entry in found:
        sys.stdout.write(f"{entry.code.value}: {entry.meaning}\n")
        sys.stdout.write(f"  look:   {entry.look}\n")
        sys.stdout.write(f"  public: {entry.cases}\n")
    return 0


def _code(text: str) -> Code:
    try:
        return Code(text.upper())
    except ValueError:
        raise GuardError(f"no verdict code {text!r}; known: {', '.join(Code)}") from None


def _bench(options: argparse.Namespace) -> int:
    from kv_plan_guard import bench

    costs = bench.measure_all(options.samples)
    if options.json:
        sys.stdout.write(json.dumps([asdict(cost) | {"ratio": cost.ratio} for cost in costs], indent=1) + "\n")
    else:
        sys.stdout.write(bench.table(costs) + "\n")
    return 0


def _inject(arguments: list[str]) -> int:
    """The fault catalogue runs in processes with an engine; the matrix itself needs none."""
    from kv_plan_guard import inject

    return inject.main(arguments)


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 2 with one line on stderr for bad input."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(prog="kv-plan-guard", description="A sanitizer for KV address plans.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("replay", help="reproduce a finding from its replay file")
    command.add_argument("file", type=Path)
    command.add_argument("--json", action="store_true", help="print JSON")
    command = commands.add_parser("explain", help="what a verdict code means and where to look")
    command.add_argument("code", nargs="?", help="such as SLOT; all without")
    command.add_argument("--json", action="store_true", help="print JSON")
    command = commands.add_parser("bench", help="what the guard costs on this machine")
    command.add_argument("--samples", type=int, default=40, help="hot samples per scenario (default 40)")
    command.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("inject", help="the fault catalogue against a live simulated engine", add_help=False)
    try:
        if arguments[:1] == ["inject"]:
            return _inject(arguments[1:])
        options = parser.parse_args(arguments)
        if options.command == "bench" and not 1 <= options.samples <= 100_000:
            raise GuardError(f"--samples must be from 1 to 100000, got {options.samples}")
        return {"replay": _replay, "explain": _explain, "bench": _bench}[options.command](options)
    except GuardError as error:
        sys.stderr.write(f"kv-plan-guard: {error}\n")
        return 2
