"""What the four benchmarks of serving-evidence share: the summary file and the test doubles of the package's tests."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "packages" / "evidence" / "tests"
sys.path.insert(0, str(TESTS))


def write_summary(
    out: Path, name: str, seed: int, figures: dict[str, float], rows: list[dict[str, Any]], passed: bool
) -> int:
    """Write out/summary.json in one step and print the figures; returns the exit status."""
    host = {"cores": len(os.sched_getaffinity(0)), "machine": platform.machine(), "python": platform.python_version()}
    summary = {
        "name": name,
        "version": 1,
        "pair": None,
        "host": host,
        "seed": seed,
        "figures": figures,
        "rows": rows,
        "passed": passed,
    }
    out.mkdir(parents=True, exist_ok=True)
    partial = out / ".summary.json"
    partial.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    partial.replace(out / "summary.json")
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if passed else 1
