"""What is recorded of host, server and code before each start; secrets stay out."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from ..errors import RunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PREFIXES = ("VLLM_", "ASCEND_", "HCCL_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "TRITON_", "CUDA_VISIBLE", "NPU_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
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
        "npu_smi": _npu_smi(),
    }


def before_start(environment: Mapping[str, str]) -> dict[str, Any]:
    """Facts of one start: the neighbours' load and the variables that steer the engine."""
    return {
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
