"""Runs of two pipeline stages with MTP drafts, for the two reproductions that need them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _show import ROOT

SCRIPT = ROOT / "benchmarks" / "_metadata_pipeline.py"


def results(*runs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Results by name of the run; `plain` is the reference without drafts and without a pipeline."""
    from ascend_sim import models

    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for mode in ("plain", "ascend"):
            job = {"mode": mode, "folder": name, "model": str(models.build("mimo")), "runs": list(runs)}
            (folder / f"job-{mode}.json").write_text(json.dumps(job))
            command = [sys.executable, str(SCRIPT), str(folder / f"job-{mode}.json")]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
            wanted = ["plain"] if mode == "plain" else [run["name"] for run in runs]
            for one in wanted:
                path = folder / f"{one}.json"
                if not path.exists():
                    sys.stderr.write((done.stdout + done.stderr)[-3_000:])
                    raise SystemExit(f"the run {one!r} left no result")
                found[one] = json.loads(path.read_text())
    return found


def equal(found: dict[str, dict[str, Any]], name: str) -> str:
    """How many requests have the reference's tokens."""
    if "tokens" not in found[name]:
        return found[name]["error"]
    pairs = list(zip(found[name]["tokens"], found["plain"]["tokens"], strict=True))
    return f"{sum(a == b for a, b in pairs)} of {len(pairs)} requests with the reference's tokens"
