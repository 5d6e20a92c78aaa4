"""What a user gets from `pip install mrv2-metadata` alone."""

import importlib.metadata
import subprocess
import sys

import mrv2_metadata
from mrv2_metadata.cli import truth_table


def test_version_is_the_distributions() -> None:
    assert importlib.metadata.version("mrv2-metadata") == mrv2_metadata.__version__


def test_import_loads_no_engine() -> None:
    heavy = {"torch", "torch_npu", "triton", "vllm", "vllm_ascend"}
    code = "import sys, mrv2_metadata; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "mrv2_metadata" in loaded
    assert not loaded & heavy


def test_the_readme_prints_the_truth_table_of_the_code() -> None:
    metadata = importlib.metadata.metadata("mrv2-metadata")
    assert truth_table() in (metadata.get_payload() or metadata["Description"])
