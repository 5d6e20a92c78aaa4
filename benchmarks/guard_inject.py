"""The fault matrix of kv-plan-guard in live engines, and its mutation test: a guard without one check fails it.

Cells that have a result in the output folder are not run again, so a stopped run goes on where it was. The mutation
part runs, for each verdict code that is the only one found in some caught cell, that cell once more with the check
switched off: it must no longer be caught.
"""

# env: engine

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from _guard_common import checkpoints, write_summary
from kv_plan_guard import inject


def alone(wanted: list[inject.Cell], summary: dict[str, Any]) -> dict[str, inject.Cell]:
    """For each code that stands alone in a caught cell, the first such cell."""
    found: dict[str, inject.Cell] = {}
    for cell, row in zip(wanted, summary["rows"], strict=True):
        if row["state"] == "caught" and len(row["found"]) == 1:
            found.setdefault(row["found"][0], cell)
    return found


def mutation(wanted: list[inject.Cell], summary: dict[str, Any], out: Path, models: dict[str, str]) -> list[dict]:
    """Each cell again with its one check switched off: whether the matrix would notice."""
    rows = []
    for code, cell in sorted(alone(wanted, summary).items()):
        folder = out / f"without-{code}"
        inject.run([cell], folder, models, without=[code], progress=lambda name: print(f"mutation {name}", flush=True))
        row = inject.verdict(cell, folder)
        rows.append({"without": code, "cell": cell.name, "state": row["state"], "fails": row["state"] == "missed"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/guard_inject"))
    parser.add_argument("--engine", action="append", choices=inject.ENGINES, help="sim, core; default both")
    parser.add_argument("--architecture", action="append", choices=list(inject.ARCHITECTURES))
    parser.add_argument("--kind", action="append")
    parser.add_argument("--show", action="store_true", help="only print what is there")
    parser.add_argument("--no-mutation", action="store_true")
    options = parser.parse_args()
    models = checkpoints()
    wanted = inject.cells(options.engine or inject.ENGINES, options.kind)
    if options.architecture:
        wanted = [cell for cell in wanted if cell.architecture in options.architecture]
    folder = options.out / "cells"
    if not options.show:
        inject.run(wanted, folder, models, progress=lambda name: print(name, flush=True))
    summary = inject.summarize(wanted, folder)
    print(inject.table(wanted, summary))
    mutated = [] if options.no_mutation or options.show else mutation(wanted, summary, options.out, models)
    for row in mutated:
        print(f"without {row['without']}: {row['cell']} is {row['state']}")
    notices = all(row["fails"] for row in mutated)
    figures = {name: summary[name] for name in ("kinds", "cells", "caught", "not_applicable")}
    figures |= {"mutations": len(mutated), "mutations_noticed": sum(row["fails"] for row in mutated)}
    passed = summary["passed"] and notices
    if not options.show:
        write_summary(
            options.out, "guard_inject", 5, {"figures": figures, "rows": summary["rows"] + mutated, "passed": passed}
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
