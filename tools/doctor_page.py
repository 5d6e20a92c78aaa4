"""The page of the doctor's matrix, made from docs/figures/doctor.json by `docs_pages.py`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

# Why a warning on a verified pair stops nothing there, by the finding's id.
REASONS = Path(__file__).resolve().parent.parent / "docs" / "doctor-warnings.toml"
INTRO = """# Compatibility matrix

`vllm-pairs doctor` on every vllm-ascend release against every vLLM core release. It reads both source trees and runs
nothing. Made by `nox -s doctor`; no NPU has run any of this.
"""
TRUTH = """## Against execution

For these pairs `nox -s bench -- doctor_truth` imported every module of the plugin and constructed and stepped the Model
Runner V2 in the simulator, on a CPU, repaired each failure at its own site and went on. A failure is a distinct symbol,
argument and site of a real ImportError, ModuleNotFoundError, AttributeError or TypeError.

- *found*: failures that the doctor reports, by symbol and place; *as error* those that it calls an error.
- *early errors* are those that it says come at import or start-up. *real*: they happened. *false*: the place ran and
  nothing failed. *known*: the plugin's own working pair fails there too. *unclear*: something failed at the place that
  is not counted (see below). *not reached*: nothing that ran here came to the place, so nobody can say. Precision is
  real / (real + false).
- Left out of the failures, and counted in the file: what the plugin's own working pair shows too, packages and
  operators that only an NPU host has, the simulator's own faults, and what follows from a repair.
"""


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table; cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    """Text as code, whatever is in it."""
    return f"`{text.replace('`', ' ')}`"


def figure(value: float | None) -> str:
    """A figure as the page shows it."""
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def matrix(rows: list[dict[str, Any]]) -> str:
    """Errors and warnings by core and plugin."""
    plugins = list(dict.fromkeys(row["plugin"] for row in rows))
    lines = []
    for core in dict.fromkeys(row["core"] for row in rows):
        cells = {row["plugin"]: row for row in rows if row["core"] == core}
        texts = [f"{cells[plugin]['errors']} / {cells[plugin]['warnings']}" for plugin in plugins]
        own = [cells[plugin]["verified"] for plugin in plugins]
        lines.append([core, *(f"**{text}**" if mark else text for text, mark in zip(texts, own, strict=True))])
    note = "\nErrors / warnings at the default confidence; verified pairs in bold.\n"
    return table(["core", *(f"plugin {plugin}" for plugin in plugins)], lines) + note


def truth(rows: list[dict[str, Any]]) -> str:
    """What really failed, cell by cell, and by name every difference and every error without a verdict."""
    words = ("real", "false", "known", "unclear", "not reached")
    head = ["core", "plugin", "ran to", "failures", "found", "as error", *(f"early errors: {word}" for word in words)]
    ran = [row for row in rows if "real" in row]
    lines = []
    for row in ran:
        judged = [row["judged"][word] for word in words]
        lines.append([row[name] for name in ("core", "plugin", "ran", "real", "found", "found_as_error")] + judged)
    text = TRUTH + "\n" + table(head, lines)
    left = [f"{row['core']} + {row['plugin']}" for row in rows if "real" not in row and not row["own"]]
    if left:
        text += f"\nNot run: {', '.join(left)}.\n"
    differences = named(ran, ("missed", "false"))
    text += f"\nEvery failure that was missed and every error that was false: {differences or 'none.'}\n"
    if undecided := named(ran, ("unclear", "not reached")):
        text += f"\nEvery early error without a verdict: {undecided}\n"
    return text


def named(rows: list[dict[str, Any]], words: tuple[str, ...]) -> str:
    """What rows have under some words, each with its cells, as a list with space above; "" where there is nothing."""
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for word in words:
            for line in row[word]:
                cells.setdefault((word, line), []).append(f"{row['core']} + {row['plugin']}")
    lines = [f"- {word}: {code(line)} in {', '.join(where)}" for (word, line), where in cells.items()]
    return "\n\n" + "\n".join(lines) if lines else ""


def reasons() -> dict[str, str]:
    """The explanation of each finding that has one."""
    table = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return {name: row["why"] for row in table["warning"] for name in row["ids"]}


def verified(rows: list[dict[str, Any]]) -> str:
    """What the doctor says of the verified pairs, and why it stops nothing that was verified there."""
    why = reasons()
    parts = ["## Verified pairs\n"]
    for row in rows:
        if row["verified"]:
            parts.append(f"{row['core']} + {row['plugin']}: {row['errors']} errors, {row['warnings']} warnings.\n")
            parts += [
                f"- {code(one['id'])} {one['level']}, {one['severity']}: {code(one['file'] + ':' + str(one['line']))}: "
                f"{code(one['message'])}. {why.get(one['id'], 'Not explained yet.')}\n"
                for one in row["findings"]
            ]
    return "\n".join(parts).replace("\n\n- ", "\n- ").replace(".\n- ", ".\n\n- ")


def page(record: Path) -> str:
    """The whole page; says so where no run is recorded."""
    if not record.is_file():
        return f"{INTRO}\nNo run is recorded yet.\n"
    report = json.loads(record.read_text(encoding="utf-8"))
    figures = [[f"`{name}`", figure(value)] for name, value in report["figures"].items()]
    parts = [INTRO, table(["figure", "value"], figures), matrix(report["rows"]), truth(report["rows"])]
    return "\n".join([*parts, verified(report["rows"])])
