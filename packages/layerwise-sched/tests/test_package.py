"""What a user gets from `pip install layerwise-sched` alone."""

import importlib.metadata
import subprocess
import sys

import layerwise_sched


def test_version_is_the_distributions() -> None:
    assert importlib.metadata.version("layerwise-sched") == layerwise_sched.__version__


def test_import_loads_no_engine() -> None:
    heavy = {"torch", "torch_npu", "triton", "vllm", "vllm_ascend"}
    code = "import sys, layerwise_sched; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "layerwise_sched" in loaded
    assert not loaded & heavy
