"""Tables for people: rich in a terminal; every text that came from outside is escaped first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from .text import for_rich
from .verdict import show, show_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable

_STYLE = {"REPRODUCED": "green", "NOT_REPRODUCED": "red", "INCONCLUSIVE": "yellow", "INVALID": "bold red"}


def verdict_table(rows: Iterable[dict[str, Any]], title: str) -> Table:
    """One metric a row, in 80 columns, from the JSON form of the rows (the same for `analyze`, `verify`, `report`)."""
    table = Table(title=for_rich(title), title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("metric", overflow="fold")
    table.add_column("A, B", justify="right", no_wrap=True)
    table.add_column("B better by", justify="right", no_wrap=True)
    table.add_column("pairs", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        verdict = row["verdict"]
        scale = verdict["scale"]
        bounds = show_bounds(verdict["low"], verdict["high"], scale) if verdict["pairs"] >= 2 else "no interval"
        bounds = bounds.replace(" to ", " to\n")
        adjusted = f"\nHolm {row['holm_p']:.3f}" if row["holm_p"] is not None else ""
        table.add_row(
            f"{for_rich(verdict['metric'], 80)}\n[dim]{for_rich(verdict['scenario'], 80)}, {row['role']}[/]",
            f"A {row['mean_a']:.4g}\nB {row['mean_b']:.4g}",
            f"{show(verdict['estimate'], scale)}\n{bounds}",
            f"{verdict['positive_pairs']}/{verdict['pairs']} +\np {row['sign_flip_p']:.3f}{adjusted}",
            f"[{_STYLE[verdict['status']]}]{verdict['status']}[/]",
        )
    return table


def power_table(found: dict[str, Any]) -> Table:
    """Detectable effects by number of pairs."""
    table = Table(title=f"spread of a pair {found['sd'] * 100:.3f} %", title_justify="left", header_style="bold")
    for name in ("pairs", "detectable at 80 %", "detectable at 90 %", "smallest exact p"):
        table.add_column(name, justify="right")
    for row in found["rows"]:
        table.add_row(str(row["pairs"]), f"{row['at_80']:.2%}", f"{row['at_90']:.2%}", f"{row['smallest_p']:.4f}")
    return table
