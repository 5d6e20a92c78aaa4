"""A workload spec from JSON: every field named, typed and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from layerwise_sched.errors import WorkloadError
from layerwise_sched.model import DataPath
from layerwise_sched.simulation.workload import Spec

_TUPLES: Final = ("independent", "buckets", "straggler_layers", "no_save")
_OPTIONAL: Final = ("shared_buffers", "prefetch_layers", "buckets", "slot_us")
_FLOATS: Final = (
    "per_request", "load_us", "save_us", "attention_us", "rest_us", "host_us", "build_us", "spread", "straggler_us",
    "straggler_odds", "slot_us",
)  # fmt: skip


def spec_of(row: object, where: str) -> Spec:
    """The spec in a decoded JSON object. Raises WorkloadError naming the place, the field, the value and the fix."""
    if not isinstance(row, Mapping):
        raise WorkloadError(f"{where}: must be a JSON object with fields of a spec, got {row!r}")
    known = [field.name for field in fields(Spec)]
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name not in known:
            raise WorkloadError(f"{where}: there is no field {name!r}; known: {', '.join(known)}")
        values[name] = _value(name, value, where)
    try:
        return Spec(**values)
    except WorkloadError as error:
        raise WorkloadError(f"{where}: {error}") from None


def _value(name: str, value: object, where: str) -> Any:
    if value is None and name in _OPTIONAL:
        return None
    if name == "path":
        if value not in {path.value for path in DataPath}:
            raise WorkloadError(f"{where}: path must be one of {', '.join(DataPath)}, got {value!r}")
        return DataPath(str(value))
    if name == "names":
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise WorkloadError(f"{where}: names must be a list of request ids, got {value!r}")
        return tuple(value)
    if name == "saving_rank":
        if not isinstance(value, bool):
            raise WorkloadError(f"{where}: saving_rank must be true or false, got {value!r}")
        return value
    if name in _TUPLES:
        if not isinstance(value, list) or not all(_is_int(item) for item in value):
            raise WorkloadError(f"{where}: {name} must be a list of whole numbers, got {value!r}")
        return tuple(value)
    if name in _FLOATS:
        if not (_is_int(value) or isinstance(value, float)):
            raise WorkloadError(f"{where}: {name} must be a number, got {value!r}")
        return float(value)  # type: ignore[arg-type]
    if not _is_int(value):
        raise WorkloadError(f"{where}: {name} must be a whole number, got {value!r}")
    return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
