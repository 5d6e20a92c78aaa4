"""With all packages installed and nothing asked for, a running worker is what it is without them."""

import json
import os
import site
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from ascend_sim import models

pytestmark = pytest.mark.engine

SCRIPT = Path(__file__).with_name("attributes_run.py")
OURS = ("vllm_pairs", "ascend_sim", "mrv2_metadata", "kv_plan_guard", "layerwise_sched", "serving_evidence")
# The one bootstrap that the packages share: the gate that looks for a key, and room for our keys in Ascend's config.
BOOTSTRAP = ("vllm.v1.worker.worker_base.WorkerWrapperBase.init_device", "vllm_ascend.ascend_config.AscendConfig.")


def run(folder: Path, name: str, *, packages: Path | None = None, config: str = "", **environment: str) -> dict:
    """Attributes in a worker; with `packages` the interpreter sees that folder alone in place of site-packages."""
    out = folder / f"{name}.json"
    base = {
        key: value for key, value in os.environ.items() if not key.startswith(("ASCEND_SIM", "VLLM_", "PYTHONPATH"))
    }
    base |= {
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    flags = []
    if packages is not None:
        flags, base["PYTHONPATH"] = ["-S"], str(packages)
    command = [sys.executable, *flags, str(SCRIPT), str(models.build("dense")), str(out), *([config] if config else [])]
    done = subprocess.run(command, env=base | environment, capture_output=True, text=True, timeout=400, check=False)
    assert out.exists(), done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(out.read_text())


def overlay(folder: Path) -> Path:
    """The environment's packages without ours: links to everything else in site-packages."""
    made = folder / "overlay"
    made.mkdir()
    for entry in Path(site.getsitepackages()[0]).iterdir():
        plain = entry.name.lower().replace("-", "_")
        if entry.suffix != ".pth" and not any(own in plain for own in OURS):
            (made / entry.name).symlink_to(entry)
    return made


def differences(without: dict, with_them: dict) -> list[str]:
    left, right = without["attributes"], with_them["attributes"]
    assert len(left) > 10_000, "too few attributes to mean anything"
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("off")


@pytest.fixture(scope="module")
def plain(folder):
    # vLLM's own CPU engine: vllm-ascend's platform needs an NPU, so that plugin is left out by vLLM's own switch.
    return {"VLLM_TARGET_DEVICE": "cpu", "VLLM_PLUGINS": "mrv2_metadata,kv_plan_guard,layerwise_sched,ascend_sim"}


@pytest.mark.slow
def test_installed_and_not_asked_for_changes_nothing_in_a_plain_worker(folder, plain):
    with_them = run(folder, "with", **plain)
    without = run(folder, "without", packages=overlay(folder), **plain)
    assert without["ours"] == []
    changed = differences(without, with_them)
    assert [name for name in changed if not name.startswith(BOOTSTRAP)] == []
    # Proof that the comparison sees a wrapper at all: where a package is loaded, its one gate is found.
    assert "mrv2_metadata" in with_them["ours"]
    assert [name for name in changed if name.startswith(BOOTSTRAP)] == [BOOTSTRAP[0]]


def test_in_the_simulated_worker_only_a_key_puts_in_hooks(folder):
    simulated = {"ASCEND_SIM": "1"}
    # vLLM's own switch leaves out the general plugins of ours and keeps all others.
    points = [*entry_points(group="vllm.general_plugins"), *entry_points(group="vllm.platform_plugins")]
    theirs = [point.name for point in points if point.value.partition(".")[0] not in set(OURS) - {"ascend_sim"}]
    without = run(folder, "sim-without", VLLM_PLUGINS=",".join(theirs), **simulated)
    with_them = run(folder, "sim-with", **simulated)
    changed = differences(without, with_them)
    assert [name for name in changed if not name.startswith(BOOTSTRAP)] == []
    assert "mrv2_metadata" in with_them["ours"]
    asked = run(folder, "sim-on", config='{"mrv2_metadata": {"enabled": true}}', **simulated)
    put_in = [name for name in differences(without, asked) if not name.startswith(BOOTSTRAP)]
    assert any("NPUModelRunner" in name for name in put_in), put_in
    guarded = run(folder, "sim-guarded", config='{"kv_guard_config": {"enabled": true}}', **simulated)
    put_in = [name for name in differences(without, guarded) if not name.startswith(BOOTSTRAP)]
    assert "vllm.v1.worker.gpu.model_runner.GPUModelRunner.execute_model" in put_in, put_in
    assert "vllm.v1.worker.gpu.async_utils.AsyncOutput.get_output" in put_in, put_in
