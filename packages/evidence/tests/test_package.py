"""What a user gets from `pip install serving-evidence` alone."""

import importlib.metadata
import subprocess
import sys

import serving_evidence


def test_version_is_the_distributions() -> None:
    assert importlib.metadata.version("serving-evidence") == serving_evidence.__version__


def test_import_loads_no_engine() -> None:
    heavy = {"torch", "torch_npu", "triton", "vllm", "vllm_ascend"}
    code = "import sys, serving_evidence; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "serving_evidence" in loaded
    assert not loaded & heavy
