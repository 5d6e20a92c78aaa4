"""`python -m serving_evidence`: the same as the command `serving-evidence`."""

from .cli import app

app(prog_name="serving-evidence")
