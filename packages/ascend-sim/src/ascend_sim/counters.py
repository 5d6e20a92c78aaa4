"""Counts of host/device traffic by call site and by engine step; needs no torch.

A *site* is the first frame outside torch and outside the simulator that is no upload helper and does not hide itself.
A step's counts stay open until the next step begins, because the output of a step is read after the step has ended.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from types import CodeType

logger = logging.getLogger(__name__)

D2H = "d2h"
H2D = "h2d"
EVENT_WAIT = "event_wait"  # the host blocks on an event or a stream
STREAM_WAIT = "stream_wait"  # an order between streams; the host goes on
TOLIST = "tolist"
ITEM = "item"
KINDS = (D2H, H2D, EVENT_WAIT, STREAM_WAIT, TOLIST, ITEM)

ENV_DIR = "ASCEND_SIM_COUNTERS_DIR"
KEPT_STEPS = 4096  # a served engine runs for hours; averages use running sums, so old steps may go
WRITE_EVERY_STEPS = 64
WRITE_EVERY_S = 2.0

_OUTPUT_FILES = ("vllm/v1/worker/gpu/async_utils.py",)
# Thin helpers that every upload or output copy goes through: their caller is the site worth naming.
_HELPERS = frozenset({"async_copy_to_np", "async_tensor_h2d", "async_copy_to_gpu", "np_to_pinned_tensor"})
_HELPER_QUALNAMES = frozenset({"UvaBufferPool.copy_to_gpu"})
# pytest's name for a frame that stands for its caller: a stand-in for a tensor that passes `.to()` on is no site.
_HIDDEN = "__tracebackhide__"


class Site(NamedTuple):
    """One source line; `role` is "output" inside the engine's output copy, else "step"."""

    path: str
    function: str
    line: int = 0
    role: str = "step"

    def __str__(self) -> str:
        return f"{self.path}:{self.function}"

    @property
    def in_builder(self) -> bool:
        """Whether the line belongs to an attention metadata builder's build."""
        return "MetadataBuilder.build" in self.function


Key = tuple[str, Site]


@dataclass
class StepCounts:
    """What one engine step did; `counts` and `nbytes` are keyed by (kind, site)."""

    index: int
    num_reqs: int
    num_tokens: int
    ordinary_decode: bool
    counts: dict[Key, int] = field(default_factory=dict)
    nbytes: dict[Key, int] = field(default_factory=dict)

    def total(self, kind: str, role: str | None = None) -> int:
        """Count of one kind in the step, of one role or of all."""
        return sum(n for (k, site), n in self.counts.items() if k == kind and role in (None, site.role))


_PACKAGE_DIR = os.path.dirname(os.path.abspath(__file__)) + os.sep
_RUNTIME_DIR = os.path.join(_PACKAGE_DIR, "runtime") + os.sep
_SKIP, _EXEMPT, _NAMED = 0, 1, 2
# By id, with the code object kept alive: hashing a code object hashes its whole body.
_code_class: dict[int, tuple[CodeType, int, str]] = {}
_site_cache: dict[tuple[int, int], Site] = {}
_text_sites: dict[str, Site] = {}


def _relative(filename: str) -> str:
    for marker in ("site-packages/", "dist-packages/"):
        if marker in filename:
            return filename.rsplit(marker, 1)[1]
    return "/".join(filename.split("/")[-2:])


def _classify(code: CodeType) -> tuple[CodeType, int, str]:
    filename, relative = code.co_filename, _relative(code.co_filename)
    own = filename.startswith(_RUNTIME_DIR) or filename == __file__
    helper = code.co_name in _HELPERS or code.co_qualname in _HELPER_QUALNAMES or _HIDDEN in code.co_varnames
    if own or helper or relative.startswith("torch/"):
        kind = _SKIP
    elif filename.startswith(_PACKAGE_DIR) or relative.startswith("triton/"):
        # Reference operators and interpreted kernels stand for device work: what they do inside is no traffic.
        kind = _EXEMPT
    else:
        kind = _NAMED
    entry = (code, kind, relative)
    _code_class[id(code)] = entry
    return entry


def call_site(depth: int = 1) -> Site | None:
    """Site of the caller `depth` frames up, or None inside the simulator's own operators and kernels."""
    frame = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        entry = _code_class.get(id(code)) or _classify(code)
        if entry[1] == _EXEMPT:
            return None
        if entry[1] == _NAMED:
            key = (id(code), frame.f_lineno)
            site = _site_cache.get(key)
            if site is None:
                role = "output" if entry[2] in _OUTPUT_FILES else "step"
                site = _site_cache[key] = Site(entry[2], code.co_qualname, frame.f_lineno, role)
            return site
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _site_from_text(text: str) -> Site:
    site = _text_sites.get(text)
    if site is None:
        path, _, function = text.rpartition(":")
        role = "output" if path in _OUTPUT_FILES else "step"
        site = _text_sites[text] = Site(path or "unknown", function, 0, role)
    return site


class _State:
    def __init__(self) -> None:
        self.outside = StepCounts(-1, 0, 0, False)  # start-up and whatever happens before the first step
        self.current = self.outside
        self.recent: deque[StepCounts] = deque(maxlen=KEPT_STEPS)
        self.totals = StepCounts(-1, 0, 0, False)
        self.decode = StepCounts(-1, 0, 0, True)
        self.decode_steps = 0
        self.num_steps = 0
        self.unwritten = 0
        self.last_write = 0.0


_state = _State()
_lock = threading.Lock()
_writer: threading.Thread | None = None


def record(kind: str, site: Site | str, nbytes: int = 0) -> None:
    """Count one `kind` at `site` ("package/module.py:function"), `nbytes` moved by it."""
    if isinstance(site, str):
        site = _site_from_text(site)
    key = (kind, site)
    step = _state.current
    step.counts[key] = step.counts.get(key, 0) + 1
    if nbytes:
        step.nbytes[key] = step.nbytes.get(key, 0) + nbytes


def _add(into: StepCounts, step: StepCounts) -> None:
    # A copy first: the output thread may record while this runs.
    for target, source in ((into.counts, dict(step.counts)), (into.nbytes, dict(step.nbytes))):
        for key, n in source.items():
            target[key] = target.get(key, 0) + n


def _fold(state: _State) -> None:
    """Move the open step into the running sums."""
    step = state.current
    _add(state.totals, step)
    if step is not state.outside and step.ordinary_decode:
        _add(state.decode, step)
        state.decode_steps += 1


def begin_step(num_reqs: int, num_tokens: int, ordinary_decode: bool) -> None:
    """Open the counts of an engine step; `ordinary_decode` is one new token for every request and no draft."""
    state = _state
    with _lock:
        _fold(state)
        state.current = StepCounts(state.num_steps, num_reqs, num_tokens, ordinary_decode)
        state.recent.append(state.current)
        state.num_steps += 1
    if ENV_DIR in os.environ:
        _start_writer()


def end_step() -> None:
    """Mark the step's end; what is counted until the next step begins (its output) is still its own."""
    _state.unwritten += 1
    if ENV_DIR in os.environ and (
        _state.unwritten >= WRITE_EVERY_STEPS or time.monotonic() - _state.last_write >= WRITE_EVERY_S
    ):
        _write_to_dir()


def steps() -> list[StepCounts]:
    """The most recent steps, oldest first (at most KEPT_STEPS)."""
    return list(_state.recent)


def _merged(done: StepCounts, state: _State, include_current: bool) -> StepCounts:
    merged = StepCounts(-1, 0, 0, done.ordinary_decode, dict(done.counts), dict(done.nbytes))
    if include_current:
        _add(merged, state.current)
    return merged


def totals() -> dict[str, int]:
    """Count of every kind since the last reset, start-up included."""
    with _lock:
        merged = _merged(_state.totals, _state, True)
    return {kind: merged.total(kind) for kind in KINDS}


def reset() -> None:
    """Forget everything counted so far."""
    global _state
    with _lock:
        _state = _State()


def _decode(state: _State) -> tuple[StepCounts, int]:
    open_decode = state.current is not state.outside and state.current.ordinary_decode
    return _merged(state.decode, state, open_decode), state.decode_steps + int(open_decode)


def per_decode_step() -> dict[str, float]:
    """Averages over the ordinary decode steps; `decode_steps` is how many there were (all zero without any)."""
    with _lock:
        merged, n = _decode(_state)

    def mean(kind: str, role: str | None = None, builder: bool = False) -> float:
        if not n:
            return 0.0
        if builder:
            return sum(c for (k, s), c in merged.counts.items() if k == kind and s.in_builder) / n
        return merged.total(kind, role) / n

    return {
        "decode_steps": float(n),
        "d2h": mean(D2H, "step"),
        "event_waits": mean(EVENT_WAIT, "step"),
        "output_d2h": mean(D2H, "output"),
        "output_event_waits": mean(EVENT_WAIT, "output"),
        "h2d": mean(H2D),
        "h2d_qsl": mean(H2D, builder=True),
        "stream_waits": mean(STREAM_WAIT),
        "tolist": mean(TOLIST),
        "tolist_builder": mean(TOLIST, builder=True),
        "item": mean(ITEM),
    }


def _rows(step: StepCounts) -> list[dict[str, Any]]:
    return [
        {
            "kind": kind,
            "site": str(site),
            "line": site.line,
            "role": site.role,
            "count": n,
            "nbytes": step.nbytes.get((kind, site), 0),
        }
        for (kind, site), n in sorted(step.counts.items())
    ]


def to_json() -> dict[str, Any]:
    """Everything as JSON values: totals, averages and rows by call site over the decode steps and over all."""
    with _lock:
        state = _state
        everything = _merged(state.totals, state, True)
        decode, _ = _decode(state)
    return {
        "version": 1,
        "pid": os.getpid(),
        "steps": state.num_steps,
        "totals": {kind: everything.total(kind) for kind in KINDS},
        "per_decode_step": per_decode_step(),
        "decode_sites": _rows(decode),
        "sites": _rows(everything),
    }


def write(path: str | os.PathLike[str]) -> None:
    """Write `to_json()` to `path`, atomically."""
    import json  # here, not above: every process of the engine imports this module at its start

    target = os.fspath(path)
    scratch = f"{target}.{os.getpid()}.tmp"
    try:
        with open(scratch, "w", encoding="utf-8") as file:
            json.dump(to_json(), file, indent=1)
        os.replace(scratch, target)
    finally:
        if os.path.exists(scratch):
            os.unlink(scratch)


def _write_to_dir() -> None:
    folder = os.environ.get(ENV_DIR)
    if not folder or not _state.num_steps:
        return
    _state.unwritten, _state.last_write = 0, time.monotonic()
    try:
        os.makedirs(folder, exist_ok=True)
        write(os.path.join(folder, f"counters-{os.getpid()}.json"))
    except OSError as error:  # a full disk must not stop the engine
        logger.warning("counters are not written to %r: %s", folder, error)


def _write_periodically() -> None:
    while True:
        time.sleep(WRITE_EVERY_S)
        if _state.unwritten:
            _write_to_dir()


def _start_writer() -> None:
    """Start the writer once a process: the last steps before an idle time must reach the file too."""
    global _writer
    if _writer is not None:
        return
    _writer = threading.Thread(target=_write_periodically, name="ascend-sim-counters", daemon=True)
    _writer.start()
    atexit.register(_write_to_dir)


def _after_fork() -> None:
    global _state, _lock, _writer
    _state, _lock, _writer = _State(), threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
