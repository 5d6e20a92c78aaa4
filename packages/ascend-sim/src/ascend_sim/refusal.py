"""How the command lines say no: one clear line on stderr, exit status 2."""

from __future__ import annotations

from typing import NoReturn

import typer
from rich.console import Console

errors = Console(stderr=True)


def refuse(message: str) -> NoReturn:
    """Print `message` as one line, whatever the terminal's width, and end the command with status 2."""
    errors.print(f"error: {message}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(2)
