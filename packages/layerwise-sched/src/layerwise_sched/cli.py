"""Command line: `layerwise-sched report | compare | simulate | export | seal`. Bad input ends with status 2."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Timelines, head-of-line evidence and policies for layer-wise KV loads.",
)
