"""The packet of the layer-wise study: verdicts, pages, raw data, all written from results; nothing is typed by hand."""

from __future__ import annotations

import json
import shutil
import statistics
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerwise_cells import DECISIVE, POLICIES
from layerwise_sched.export.chrome import write_chrome
from layerwise_sched.timeline_file import read, seal
from layerwise_sched.verdict import FLOOR_PCT, MIN_REPEATS, Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

LIMITS = (
    "No NPU was used. Real threads and engines ran on a CPU; device events and, on the GVA path, the pool are "
    "stand-ins. An NPU-side completion other than the return of a backend call is not seen here."
)


def verdicts(cells: list[dict[str, Any]], real: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the summary: upstream's defaults, each real schedule, each simulated family, and all of it."""
    rows = [_defaults(cells)]
    for row in real:
        if "verdict" in row:
            found = row["verdict"]
            rows.append(
                {"scope": f"real threads, {row['schedule']}", "policy": row["policy"], "verdict": found["answer"],
                 "gain_pct": found["gain_pct"], "noise_pct": found["noise_pct"], "why": "; ".join(found["reasons"])}
            )  # fmt: skip
    families: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for cell in cells:
        if not cell["default"]:
            families.setdefault((cell["path"], cell["layout"], cell["regime"]), []).append(cell)
    for (path, layout, regime), members in families.items():
        answers = Counter(member["verdicts"]["ready"]["answer"] for member in members)
        gains = [member["verdicts"]["ready"]["gain_pct"] for member in members]
        rows.append(
            {"scope": f"simulated, {path}, {layout}, {regime}", "policy": "ready",
             "verdict": ", ".join(f"{answer} {count}" for answer, count in sorted(answers.items())),
             "gain_pct": round(statistics.median(gains), 3), "noise_pct": None,
             "why": f"{len(members)} cells; gains from {min(gains):+.2f} to {max(gains):+.2f} %"}
        )  # fmt: skip
    return [_overall(rows, real), *rows]


def _defaults(cells: list[dict[str, Any]]) -> dict[str, Any]:
    members = [cell for cell in cells if cell["default"]]
    events = sum(cell["policies"]["fifo"]["hol_events"] for cell in members)
    answer = Answer.KEEP_FIFO if members and not events else Answer.INCONCLUSIVE
    why = f"{events} head-of-line events in {len(members)} cells with upstream's defaults, on every path"
    return {"scope": "upstream's defaults, simulated", "policy": "ready", "verdict": answer.value, "gain_pct": 0.0,
            "noise_pct": None, "why": why}  # fmt: skip


def _overall(rows: Sequence[dict[str, Any]], real: list[dict[str, Any]]) -> dict[str, Any]:
    """ADOPT only where every decisive schedule on real threads says so; KEEP FIFO where none does."""
    decisive = [row for row in real if row["schedule"] in DECISIVE and row["policy"] == "ready" and "verdict" in row]
    answers = Counter(row["verdict"]["answer"] for row in decisive)
    adopt = answers[Answer.ADOPT.value]
    defaults = rows[0]["verdict"]
    if not decisive:
        answer, why = Answer.INCONCLUSIVE, "no decisive cell was run on real threads"
    elif adopt == len(decisive) and defaults != Answer.KEEP_FIFO.value:
        answer, why = Answer.ADOPT, f"every one of {adopt} decisive schedules gains beyond its noise"
    elif defaults == Answer.KEEP_FIFO.value and not answers[Answer.INCONCLUSIVE.value]:
        why = (
            f"no event with upstream's defaults, on any path; of {len(decisive)} decisive schedules on real threads, "
            f"all with knobs set by hand, {adopt} gain beyond their noise"
        )
        answer = Answer.KEEP_FIFO
    else:
        why = f"decisive schedules on real threads: {', '.join(f'{name} {n}' for name, n in sorted(answers.items()))}"
        answer = Answer.INCONCLUSIVE
    return {"scope": "all", "policy": "ready", "verdict": answer.value, "gain_pct": None, "noise_pct": None, "why": why}


def write_packet(
    folder: Path, cells: list[dict[str, Any]], real: list[dict[str, Any]], engine: list[dict[str, Any]],
    found: dict[str, Any],
) -> None:  # fmt: skip
    """Write the generated pages, tables and raw timelines into `folder`; what people wrote there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "timelines"
    shutil.rmtree(raw, ignore_errors=True)
    for row in real:
        if row["schedule"] in DECISIVE[:3]:
            _raw(row, raw)
        row.pop("timeline")
    for name, value in (("cells", cells), ("real", real), ("engine", engine), ("summary", found)):
        text = json.dumps(value, separators=(",", ":")) if name == "cells" else json.dumps(value, indent=1)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    (folder / "index.md").write_text(_index(cells, real, engine, found), encoding="utf-8")
    (folder / "cells.md").write_text(_cells(cells), encoding="utf-8")


def _raw(row: dict[str, Any], folder: Path) -> None:
    """The first repeat's timeline: sealed, and as a trace that viewers open."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{row['schedule']}.{row['policy']}"
    recording = read(Path(row["timeline"]))
    write_chrome(recording.run(), folder / f"{name}.json.gz")
    seal(recording, folder).rename(folder / f"{name}.timeline")
    (folder / f"{name}.timeline" / "timeline.jsonl").unlink()  # the same rows as the Parquet files, ten times the size


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value).replace("|", "/").replace(">", "→")


def _index(cells: list[dict[str, Any]], real: list[dict[str, Any]], engine: list[dict[str, Any]], found: Any) -> str:
    overall, *rows = found["rows"]
    parts = [
        "# The layer-wise receive queue: the study",
        "<!-- Made by `nox -s layerwise-study` from its results; edit nothing here. -->",
        f"**Verdict: {overall['verdict']}.** {overall['why'][0].upper()}{overall['why'][1:]}.",
        f"**Limits.** {LIMITS}",
        "**The rule, written before the runs.** A policy is worth its place where head-of-line events occur under "
        f"FIFO in every repeat, the smallest gain of at least {MIN_REPEATS} paired repeats exceeds both the spread of "
        f"FIFO's own medians and {FLOOR_PCT:g} %, and neither p99 nor the tasks in flight grow beyond that. No event, "
        f"or no gain beyond noise: KEEP FIFO. Otherwise INCONCLUSIVE. [Every column is explained](fields.md); "
        f"[every simulated cell](cells.md).",
        _table(("figure", "value"), found["figures"].items()),
        "## Decisive cells on real threads",
        f"Upstream's own send and receive threads and submit, wait and save methods, pair {found['pair'] or '-'}, "
        f"{max((len(row['repeats']) for row in real), default=0)} repeats, policies in turn within each repeat. "
        "Medians over repeats, waits as p50 / p95 / p99 in us. Raw timelines of the first repeat lie in `timelines/`.",
        _real(real) if real else "None were run.\n",
        "## Waits on real threads",
        _waits(real) if real else "None were run.\n",
        "## Phases on real threads",
        "Milliseconds of a step, all of its tasks added up, so that tasks that are queued together count each; and the "
        "compute thread's own stalls.",
        _phases(real) if real else "None were run.\n",
        "## The simulator on the same steps",
        "Each recorded run was replayed under its own policy. *Same order*: steps whose loads ran in the same order; "
        "*replay off*: medians of step time apart, per cent, over the repeats and of the worst one. *Predicted from "
        "FIFO*: FIFO's recordings replayed under this policy against this policy's own real runs. *Schedule*: nothing "
        "measured goes in, only the schedule's own times; what is missing there is the threads' work and wake-ups.",
        _replays(real) if real else "None were run.\n",
        "## Allocation against depth",
        "`layerwise_num_shared_buffers` decides how many slots there are (memory, and which saves a load waits for); "
        "`layerwise_prefetch_layers` how many tasks are in flight. Medians over the GVA cells, FIFO, simulated.",
        _effects(cells),
        "## The paths apart, simulated",
        _paths(cells),
        "## Engine cells",
        _engine(engine) if engine else "None were run.\n",
        _engine_waits(engine),
        "## Verdicts by scope",
        _table(("scope", "policy", "verdict", "gain %", "noise %", "why"), [
            (row["scope"], row["policy"], row["verdict"], row["gain_pct"], row["noise_pct"], row["why"]) for row in rows
        ]),
    ]  # fmt: skip
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def _real(real: list[dict[str, Any]]) -> str:
    head = ("schedule", "policy", "median ms", "p99 ms", "events", "event ms", "head → ready", "passes", "in flight",
            "block ranges", "gain %",
            "noise %", "verdict", "data errors", "leases", "unfinished")  # fmt: skip
    rows = []
    for row in real:
        judged = row.get("verdict", {})
        pairs = ", ".join(pair.partition(":")[0] for pair in row["hol_pairs"]) or row["impossible"] or "-"
        rows.append(
            (row["schedule"], row["policy"], row["median_ms"], row["p99_ms"], row["hol_events"], row["hol_ms"], pairs,
             row["passes"], row["in_flight"], row["block_ranges"],
             judged.get("gain_pct"), judged.get("noise_pct"), judged.get("answer"),
             row["data_errors"], row["open_leases"], row["unfinished"])
        )  # fmt: skip
    return _table(head, rows)


def _waits(real: list[dict[str, Any]]) -> str:
    names = list(real[0]["waits_us"])
    rows = [
        (
            row["schedule"],
            row["policy"],
            *(" / ".join(f"{value:.0f}" for value in row["waits_us"][name]) for name in names),
        )
        for row in real
    ]
    return _table(("schedule", "policy", *names), rows)


def _phases(real: list[dict[str, Any]]) -> str:
    names = list(real[0]["phases_ms"])
    return _table(
        ("schedule", "policy", *names),
        [(row["schedule"], row["policy"], *(row["phases_ms"][name] for name in names)) for row in real],
    )


def _replays(real: list[dict[str, Any]]) -> str:
    rows = [
        (row["schedule"], row["policy"], *(row["replay"][name] for name in (
            "steps", "same_order", "median_off_pct", "worst_off_pct", "predicted_off_pct", "schedule_off_pct")))
        for row in real
    ]  # fmt: skip
    head = ("schedule", "policy", "steps", "same order", "replay off %", "worst repeat %", "predicted from FIFO off %",
            "schedule off %")  # fmt: skip
    return _table(head, rows)


def _effects(cells: list[dict[str, Any]]) -> str:
    rows = []
    plain = [cell for cell in cells if cell["path"] == "gva" and cell["layout"] == "one spec, independent [0]"]
    for reuse in dict.fromkeys(cell["reuse"] for cell in plain):
        for prefetch in dict.fromkeys(cell["prefetch"] for cell in plain):
            members = [cell for cell in plain if (cell["reuse"], cell["prefetch"]) == (reuse, prefetch)]
            if not members:
                continue
            arms = [cell["policies"]["fifo"] for cell in members]
            rows.append(
                (reuse, prefetch, members[0]["slots"], members[0]["depth"], max(arm["in_flight"] for arm in arms),
                 statistics.median(arm["median_ms"] for arm in arms),
                 statistics.median(arm["waits_us"]["save_cpu"][1] for arm in arms),
                 statistics.median(arm["waits_us"]["queue"][1] for arm in arms))
            )  # fmt: skip
    head = ("buffers", "depth", "slots", "P", "in flight", "median ms", "save wait p95 us", "queue p95 us")
    return _table(head, rows)


def _paths(cells: list[dict[str, Any]]) -> str:
    rows = []
    for path in dict.fromkeys(cell["path"] for cell in cells):
        members = [cell for cell in cells if cell["path"] == path]
        events = [cell for cell in members if cell["policies"]["fifo"]["hol_events"]]
        gains = [cell["verdicts"]["ready"]["gain_pct"] for cell in events]
        answers = Counter(cell["verdicts"]["ready"]["answer"] for cell in members)
        rows.append(
            (path, len(members), len(events), statistics.median(gains) if gains else None, max(gains, default=None),
             *(answers[answer.value] for answer in Answer))
        )  # fmt: skip
    head = ("path", "cells", "with events", "median gain % there", "best", *(answer.value for answer in Answer))
    return _table(head, rows)


def _engine_waits(engine: list[dict[str, Any]]) -> str:
    rows = [row for row in engine if row.get("waits_us")]
    if not rows:
        return ""
    names = list(rows[0]["waits_us"])
    return "Waits of the recorded engines, p50 / p95 / p99 in us.\n\n" + _table(
        ("engine", *names),
        [(row["engine"], *(" / ".join(f"{value:.0f}" for value in row["waits_us"][name]) for name in names))
         for row in rows],
    )  # fmt: skip


def _engine(engine: list[dict[str, Any]]) -> str:
    columns = list(
        dict.fromkeys(name for row in engine for name, value in row.items() if not isinstance(value, dict | list))
    )
    return _table(columns, [[row.get(column) for column in columns] for row in engine])


def _cells(cells: list[dict[str, Any]]) -> str:
    head = ("path", "reuse", "depth", "layout", "batch", "regime", *(f"{policy} ms" for policy in POLICIES), "FIFO p99",
            "events", "event ms", "event p95 us", "queue p95 us", "save wait p95 us", "gate wait p95 us", "in flight",
            "gain ready %", "verdict ready", "gain gate %")  # fmt: skip
    rows = []
    for cell in cells:
        fifo = cell["policies"]["fifo"]
        waits = fifo["waits_us"]
        rows.append(
            (cell["path"], cell["reuse"], cell["prefetch"], cell["layout"], cell["batch"], cell["regime"],
             *(cell["policies"][policy]["median_ms"] for policy in POLICIES), fifo["p99_ms"], fifo["hol_events"],
             fifo["hol_ms"], waits["hol"][1], waits["queue"][1], waits["save_cpu"][1],
             waits["gate_condition"][1] + waits["gate_npu"][1], fifo["in_flight"],
             cell["verdicts"]["ready"]["gain_pct"], cell["verdicts"]["ready"]["answer"],
             cell["verdicts"]["gate"]["gain_pct"])
        )  # fmt: skip
    title = "# Every simulated cell\n\n<!-- Made by `nox -s layerwise-study`; edit nothing here. -->\n\n"
    return title + "12 layers; what each column means is on the [field page](fields.md).\n\n" + _table(head, rows)
