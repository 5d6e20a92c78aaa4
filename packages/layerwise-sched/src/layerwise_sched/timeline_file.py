"""Timelines as files: read a spool or a sealed folder, and seal one into Parquet and JSONL.

A sealed folder `layerwise-<pid>.timeline/` holds `events.parquet`, `tasks.parquet`, `timeline.jsonl` (the same, one
object a line, for those who have no Parquet reader) and `meta.json`. What is read may come from others: every value is
checked, and nothing is executed.
"""

from __future__ import annotations

import array
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from layerwise_sched.errors import TimelineError
from layerwise_sched.model import DataPath, LayerPlan, Task, owner_chains
from layerwise_sched.rows import WIDTHS, expand
from layerwise_sched.runs import Run, assemble
from layerwise_sched.spool import FORMAT as SPOOL_FORMAT
from layerwise_sched.spool import HEADER, SUFFIX, plan_row, task_row
from layerwise_sched.timeline import Code, Record

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import polars as pl

SEALED: Final = ".timeline"
FORMAT: Final = 1
"""Of a sealed folder."""
_TASK_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "cid": (int,), "step": (int,), "layer": (int,), "path": (str,), "source": (int, type(None)),
    "gate": (int, type(None)), "chain": (int,), "groups": (list,), "requests": (list,), "has_io": (bool,),
    "final": (bool,), "key_major": (bool,), "slot_waiter": (bool,),
}  # fmt: skip


@dataclass(slots=True)
class Recording:
    """A timeline file's content. source: where it came from. pid: of the worker. offset_ns: to wall-clock time."""

    source: Path
    pid: int
    offset_ns: int
    records: list[Record]
    tasks: list[Task]
    plan: LayerPlan | None
    policies: list[str]
    dropped: int
    facts: dict[str, Any]

    def run(self) -> Run:
        """It, assembled."""
        return assemble(self.records, self.tasks, self.plan, self.policies, self.dropped)


def find_timelines(path: Path) -> list[Path]:
    """The timeline folders in `path` (or itself, if it is one), sorted; a sealed one in place of its own spool."""
    if path.suffix in (SUFFIX, SEALED) and path.is_dir():
        return [path]
    if not path.is_dir():
        raise TimelineError(f"{str(path)!r} is not a folder; give the `timeline` folder of a run, or a file in it")
    sealed = {found.stem: found for found in path.glob(f"*{SEALED}") if found.is_dir()}
    spools = {found.stem: found for found in path.glob(f"*{SUFFIX}") if found.is_dir()}
    found = [*sealed.values(), *(spool for stem, spool in spools.items() if stem not in sealed)]
    if not found:
        raise TimelineError(f"{str(path)!r} holds no *{SUFFIX} and no *{SEALED} folder")
    return sorted(found)


def read(path: Path) -> Recording:
    """One timeline folder, sealed or not. Raises TimelineError with the file and the reason."""
    meta = _json(path / "meta.json")
    try:
        known = FORMAT if path.suffix == SEALED else SPOOL_FORMAT
        if meta["format"] != known:
            raise TimelineError(f"{path / 'meta.json'}: format is {meta['format']!r}, this version reads {known}")
        rings = [str(name) for name in meta["rings"]]
        plan = None if meta["plan"] is None else _plan(meta["plan"])
        recording = Recording(
            path, int(meta["pid"]), int(meta["offset_ns"]), [], [], plan,
            [str(name) for name in meta["policies"]], int(meta["dropped"]), dict(meta["facts"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise TimelineError(f"{path / 'meta.json'}: {error!r}") from None
    if path.suffix == SEALED:
        _read_parquet(path, recording)
    else:
        recording.records = _read_rows(path / "rows.bin", rings)
        recording.tasks = list(_read_tasks(path / "tasks.jsonl"))
    return recording


def seal(recording: Recording, folder: Path) -> Path:
    """Write a sealed folder under `folder`; it must not exist. Complete or absent: written aside and renamed."""
    target = folder / (recording.source.stem + SEALED)
    if target.exists():
        raise TimelineError(f"{str(target)!r} exists already; a sealed timeline is never overwritten")
    partial = folder / (recording.source.stem + ".partial")
    partial.mkdir(parents=True, exist_ok=False)
    records = sorted(recording.records, key=lambda row: row.t)
    threads = sorted({row.thread for row in records})
    _events(records).write_parquet(partial / "events.parquet")
    tasks = [task_row(task) for task in recording.tasks]
    _tasks(tasks).write_parquet(partial / "tasks.parquet")
    with (partial / "timeline.jsonl").open("w", encoding="utf-8") as lines:
        for task in tasks:
            lines.write(json.dumps({"kind": "task", **task}) + "\n")
        for row in records:
            name = Code(row.code).name.lower()
            lines.write(
                json.dumps(
                    {"kind": "event", "t_ns": row.t, "event": name, "subject": row.subject, "value": row.value,
                     "thread": row.thread}
                ) + "\n"
            )  # fmt: skip
    meta = {
        "format": FORMAT, "pid": recording.pid, "offset_ns": recording.offset_ns, "rings": threads,
        "dropped": recording.dropped, "policies": recording.policies, "facts": recording.facts,
        "plan": None if recording.plan is None else plan_row(recording.plan),
    }  # fmt: skip
    (partial / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
    partial.rename(target)
    return target


def _events(records: list[Record]) -> pl.DataFrame:
    import polars as pl

    columns: dict[str, tuple[list[Any], type[pl.DataType]]] = {
        "t_ns": ([row.t for row in records], pl.Int64),
        "code": ([int(row.code) for row in records], pl.Int16),
        "event": ([Code(row.code).name.lower() for row in records], pl.String),
        "subject": ([row.subject for row in records], pl.Int64),
        "value": ([row.value for row in records], pl.Int64),
        "thread": ([row.thread for row in records], pl.String),
    }
    return pl.DataFrame([pl.Series(name, values, dtype) for name, (values, dtype) in columns.items()])


def _tasks(tasks: list[dict[str, Any]]) -> pl.DataFrame:
    import polars as pl

    types: dict[str, pl.DataType | type[pl.DataType]] = {
        "cid": pl.Int64, "step": pl.Int64, "layer": pl.Int32, "path": pl.String, "source": pl.Int32, "gate": pl.Int64,
        "chain": pl.Int32, "groups": pl.List(pl.Int32), "requests": pl.List(pl.String), "has_io": pl.Boolean,
        "final": pl.Boolean, "key_major": pl.Boolean, "slot_waiter": pl.Boolean,
    }  # fmt: skip
    columns = [
        pl.Series(name, [_plain(task[name]) for task in tasks], dtype, strict=True) for name, dtype in types.items()
    ]
    return pl.DataFrame(columns)


def _plain(value: object) -> object:
    """Tuples as lists, enumeration members as what they stand for: what a column holds."""
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, str) else value


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TimelineError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise TimelineError(f"{path}: must be a JSON object, got {type(value).__name__}")
    return value


def _plan(row: dict[str, Any]) -> LayerPlan:
    sources = {int(layer): int(source) for layer, source in row["prefetch_layer_map"]}
    layers = int(row["num_layers"])
    shared = row["shared_buffers"]
    plan = LayerPlan(
        layers, int(row["prefetch_layers"]), sources, owner_chains(sources, layers),
        None if shared is None else int(shared), DataPath(row["path"]),
    )  # fmt: skip
    if plan.prefetch_layers < 1:
        raise ValueError(f"prefetch_layers must be >= 1, got {plan.prefetch_layers!r}")
    return plan


def _read_rows(path: Path, rings: list[str]) -> list[Record]:
    cells = array.array("q")
    data = path.read_bytes() if path.is_file() else b""
    cells.frombytes(data[: len(data) - len(data) % 8])
    if sys.byteorder == "big":
        cells.byteswap()
    records: list[Record] = []
    at = 0
    while at + HEADER <= len(cells):
        ring, count = cells[at], cells[at + 1]
        if not 0 <= ring < len(rings) or count < 0:
            raise TimelineError(
                f"{path}: chunk at integer {at} names ring {ring} of {len(rings)} with {count} integers"
            )
        at += HEADER
        end = at + count
        if end > len(cells):
            break  # the process was killed while it wrote
        while at < end:
            width = WIDTHS.get(cells[at])
            if width is None:
                raise TimelineError(f"{path}: a row has the unknown code {cells[at]!r}")
            if at + width > end:
                raise TimelineError(f"{path}: the row at integer {at} does not end in its chunk")
            records.extend(Record(*event, rings[ring]) for event in expand(cells[at : at + width]))
            at += width
    return records


def _record(cells: Iterable[int], thread: str, path: Path) -> Record:
    t, code, subject, value = cells
    if not 0 <= code < len(Code):
        raise TimelineError(f"{path}: a row has the unknown code {code!r}")
    return Record(t, code, subject, value, thread)


def _read_tasks(path: Path) -> Iterable[Task]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return  # cut off when the process was killed
            raise TimelineError(f"{path}, line {number}: {error}") from None
        yield make_task(row, f"{path}, line {number}")


def make_task(row: object, where: str) -> Task:
    """A task from a decoded JSON object or Parquet row; raises TimelineError naming the field."""
    if not isinstance(row, dict) or set(row) != set(_TASK_TYPES):
        raise TimelineError(f"{where}: a task has the fields {', '.join(_TASK_TYPES)}, got {row!r}")
    for name, types in _TASK_TYPES.items():
        value = row[name]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise TimelineError(
                f"{where}: {name} is {value!r}, expected {' or '.join(kind.__name__ for kind in types)}"
            )
    if row["path"] not in {path.value for path in DataPath}:
        raise TimelineError(f"{where}: path is {row['path']!r}, expected {', '.join(DataPath)}")
    values = {**row, "path": DataPath(row["path"])}
    values["groups"] = tuple(int(group) for group in row["groups"])
    values["requests"] = tuple(str(request) for request in row["requests"])
    return Task(**values)


def _read_parquet(path: Path, recording: Recording) -> None:
    import polars as pl

    try:
        events = pl.read_parquet(path / "events.parquet")
        tasks = pl.read_parquet(path / "tasks.parquet")
        rows = events.select("t_ns", "code", "subject", "value", "thread").rows()
    except (OSError, pl.exceptions.PolarsError) as error:
        raise TimelineError(f"{path}: cannot be read: {error}") from None
    recording.records = [_record(row[:4], str(row[4]), path / "events.parquet") for row in rows]
    recording.tasks = [make_task(row, f"{path / 'tasks.parquet'}") for row in tasks.to_dicts()]
