"""`mrv2-metadata status DIR` and `mrv2-metadata table`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from mrv2_metadata import __version__
from mrv2_metadata.authority import RULES
from mrv2_metadata.stats import COUNTS, FORMAT


def truth_table() -> str:
    """The authority table as Markdown, as the README prints it."""
    lines = ["| rule | forced by | the hook | why |", "|---|---|---|---|"]
    lines += [f"| `{rule.name}` | {rule.fact} | {rule.action.value} | {rule.why} |" for rule in RULES]
    return "\n".join(lines)


def read_workers(folder: Path) -> list[dict[str, Any]]:
    """The counters of every worker that wrote to `folder`; ValueError where there is none or one is not ours."""
    if not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is not a folder; pass the `stats_dir` of the served engine")
    workers = []
    for path in sorted(folder.glob("mrv2-metadata-*.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(f"{path.name!r} cannot be read: {error}") from None
        if not _is_ours(data):
            raise ValueError(f"{path.name!r} is not a counter file of this version (format {FORMAT})")
        workers.append(data)
    if not workers:
        raise ValueError(f"{str(folder)!r} holds no mrv2-metadata-*.json; is `stats_dir` set and the engine running?")
    return workers


def _is_ours(data: object) -> bool:
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("pid"), int):
        return False
    counts = data.get("counts")
    timed = all(isinstance(data.get(name), dict) for name in ("length_update", "prepare"))
    return timed and isinstance(counts, dict) and all(isinstance(counts.get(name), int) for name in COUNTS)


def _status(folder: Path, as_json: bool) -> str:
    workers = read_workers(folder)
    if as_json:
        return json.dumps({"workers": workers}, indent=1)
    names = [*COUNTS, "length_update median us", "length_update p99 us", "prepare median us", "prepare p99 us"]
    columns = []
    for worker in workers:
        update, prepare = worker["length_update"], worker["prepare"]
        values = [worker["counts"][name] for name in COUNTS]
        values += [update.get("median_us"), update.get("p99_us"), prepare.get("median_us"), prepare.get("p99_us")]
        columns.append([f"pid {worker['pid']}", *(str(value) for value in values)])
    rows = [["", *names], *columns]
    widths = [max(len(cell) for cell in column) for column in rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in zip(*rows, strict=True)
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 0, or 2 with one line on stderr for bad input."""
    parser = argparse.ArgumentParser(prog="mrv2-metadata", description="What the decode metadata hook did.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    status = commands.add_parser("status", help="counters that the workers of an engine wrote")
    status.add_argument("folder", type=Path, help="the engine's stats_dir")
    status.add_argument("--json", action="store_true", help="print JSON")
    table = commands.add_parser("table", help="the authority truth table")
    table.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        if options.command == "status":
            text = _status(options.folder, options.json)
        elif options.json:
            rules = [{"rule": r.name, "fact": r.fact, "action": r.action.value, "why": r.why} for r in RULES]
            text = json.dumps({"rules": rules}, indent=1)
        else:
            text = truth_table()
    except ValueError as error:
        sys.stderr.write(f"mrv2-metadata: {error}\n")
        return 2
    sys.stdout.write(text + "\n")
    return 0
