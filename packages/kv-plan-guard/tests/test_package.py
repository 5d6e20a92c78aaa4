"""What a user gets from `pip install kv-plan-guard` alone."""

import importlib.metadata
import subprocess
import sys

import kv_plan_guard


def test_version_is_the_distributions() -> None:
    assert importlib.metadata.version("kv-plan-guard") == kv_plan_guard.__version__


def test_import_loads_no_engine() -> None:
    heavy = {"torch", "torch_npu", "triton", "vllm", "vllm_ascend"}
    code = "import sys, kv_plan_guard; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "kv_plan_guard" in loaded
    assert not loaded & heavy
