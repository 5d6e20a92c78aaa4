"""The shared bootstrap on stand-in modules with the shape of vLLM's and vllm-ascend's."""

import importlib
import itertools
import sys

import pytest
from vllm_pairs.bootstrap import Bootstrap
from vllm_pairs.errors import ConfigError, HookRefused
from vllm_pairs.hooks import install, installed_hooks

WORKER = """
class WorkerWrapperBase:
    def __init__(self, vllm_config, log):
        self.vllm_config, self.log = vllm_config, log
    def init_device(self):
        self.log.append("init_device")
"""
ASCEND = """
import dataclasses
@dataclasses.dataclass
class AscendConfig:
    refresh: bool = False
    def __post_init__(self):
        pass
def init_ascend_config(vllm_config):
    return AscendConfig(**vllm_config.additional_config)
"""
ENV = "VLLM_TEST_KEY"
NUMBERS = itertools.count()


class VllmConfig:
    def __init__(self, additional_config):
        self.additional_config = additional_config


@pytest.fixture
def stage(make_module, monkeypatch):
    """Both stand-in modules on the path, not imported; a bootstrap of its own; every hook off afterwards."""
    monkeypatch.delenv(ENV, raising=False)
    number = next(NUMBERS)  # an import hook outlives its test, so each test has module names of its own
    worker, ascend = f"stage_worker_{number}", f"stage_ascend_{number}"
    make_module(worker, WORKER, load=False)
    make_module(ascend, ASCEND, load=False)
    boot = Bootstrap(f"{worker}:WorkerWrapperBase.init_device", f"{ascend}:AscendConfig.__init__")
    boot.worker_name, boot.ascend_name = worker, ascend
    yield boot
    for hook in installed_hooks():
        install([hook]).remove()


def start(boot, additional_config):
    """What a worker process does; returns what happened in order."""
    log = boot.log = []
    worker = importlib.import_module(boot.worker_name)
    worker.WorkerWrapperBase(VllmConfig(additional_config), log).init_device()
    return log


def register(boot, key="our_key", env=ENV):
    boot.calls = getattr(boot, "calls", None) or (lambda config, vllm_config: boot.log.append((key, config)))
    boot.register(key, env, boot.calls)


def test_nothing_is_imported_and_nothing_wrapped_before_the_modules_are(stage):
    register(stage)
    assert stage.worker_name not in sys.modules
    assert stage.ascend_name not in sys.modules
    assert installed_hooks() == ()
    importlib.import_module(stage.worker_name)
    assert [hook.name for hook in installed_hooks()] == ["vllm_pairs.gate"]


@pytest.mark.parametrize("imported_first", [True, False])
def test_the_key_reaches_its_package_before_the_device(stage, imported_first):
    if imported_first:
        importlib.import_module(stage.worker_name)
    register(stage)
    assert start(stage, {"our_key": {"a": 1}, "theirs": 2}) == [("our_key", {"a": 1}), "init_device"]


def test_every_engine_of_a_process_passes_the_gate(stage):
    register(stage)
    assert start(stage, {}) == ["init_device"]
    assert start(stage, {"our_key": {}}) == [("our_key", {}), "init_device"]
    assert start(stage, None) == ["init_device"]


@pytest.mark.parametrize("additional", [{}, None, object(), {"theirs": {}}])
def test_without_a_key_nobody_is_called(stage, additional):
    register(stage)
    assert start(stage, additional) == ["init_device"]


def test_the_environment_variable_does_the_same(stage, monkeypatch):
    register(stage)
    monkeypatch.setenv(ENV, '{"a": 1}')
    assert start(stage, {}) == [("our_key", {"a": 1}), "init_device"]
    assert start(stage, {"our_key": {"a": 1}}) == [("our_key", {"a": 1}), "init_device"]


def test_two_different_settings_stop_the_worker(stage, monkeypatch):
    register(stage)
    monkeypatch.setenv(ENV, '{"a": 1}')
    with pytest.raises(ConfigError, match=rf"'our_key' is .*2.* and environment variable {ENV} is .*1"):
        start(stage, {"our_key": {"a": 2}})
    assert stage.log == []


@pytest.mark.parametrize("text", ["{a: 1}", "[1]", "1", "true", "nonsense"])
def test_an_unreadable_variable_stops_the_first_process(stage, monkeypatch, text):
    monkeypatch.setenv(ENV, text)
    with pytest.raises(ConfigError, match=ENV):
        register(stage)


@pytest.mark.parametrize("value", [True, [1], "text", 3])
def test_a_key_that_is_no_object_is_named(stage, value):
    register(stage)
    with pytest.raises(ConfigError, match="'our_key' must be a JSON object"):
        start(stage, {"our_key": value})


def test_what_a_package_raises_ends_the_start(stage):
    def refuse(config, vllm_config):
        raise RuntimeError("unverified pair")

    stage.register("our_key", ENV, refuse)
    with pytest.raises(RuntimeError, match="unverified pair"):
        start(stage, {"our_key": {}})
    assert stage.log == []


def test_registering_again_is_once_and_by_another_is_refused(stage):
    register(stage)
    register(stage)
    assert start(stage, {"our_key": {}}) == [("our_key", {}), "init_device"]
    with pytest.raises(ConfigError, match="registered already"):
        stage.register("our_key", ENV, print)


def test_our_keys_pass_ascends_config_and_foreign_ones_do_not(stage):
    register(stage)
    stage.register("second_key", "VLLM_TEST_SECOND", print)
    ascend = importlib.import_module(stage.ascend_name)
    given = VllmConfig({"our_key": {}, "second_key": {}, "refresh": True})
    assert ascend.init_ascend_config(given).refresh is True
    assert set(given.additional_config) == {"our_key", "second_key", "refresh"}
    with pytest.raises(TypeError, match="foreign"):
        ascend.init_ascend_config(VllmConfig({"our_key": {}, "foreign": 1}))
    with pytest.raises(TypeError, match="not_registered"):
        ascend.init_ascend_config(VllmConfig({"not_registered": {}}))


def test_without_the_bootstrap_our_key_is_refused_too(stage):
    """The control: the stand-in really forbids what it does not know."""
    ascend = importlib.import_module(stage.ascend_name)
    with pytest.raises(TypeError, match="our_key"):
        ascend.init_ascend_config(VllmConfig({"our_key": {}}))


def test_a_key_that_became_ascends_own_is_not_swallowed(stage):
    stage.register("refresh", ENV, print)
    ascend = importlib.import_module(stage.ascend_name)
    with pytest.raises(ConfigError, match="'refresh' is a field of vllm-ascend's own config"):
        ascend.init_ascend_config(VllmConfig({"refresh": True}))


def changed_worker(stage, make_module):
    make_module(stage.worker_name, WORKER.replace("init_device(self)", "init_device(self, device=None)"), load=False)


def test_an_unknown_gate_warns_while_nobody_asks(stage, make_module, caplog):
    changed_worker(stage, make_module)
    register(stage)
    assert start(stage, {}) == ["init_device"]
    assert "cannot work here" in caplog.text
    assert installed_hooks() == ()


def test_an_unknown_gate_is_an_error_for_who_asks_by_the_variable(stage, make_module, monkeypatch):
    changed_worker(stage, make_module)
    monkeypatch.setenv(ENV, "{}")
    register(stage)
    with pytest.raises(HookRefused, match="init_device"):
        importlib.import_module(stage.worker_name)


def test_an_unknown_gate_is_an_error_for_who_asks_by_the_key(stage, make_module):
    changed_worker(stage, make_module)
    register(stage)
    start(stage, {})
    ascend = importlib.import_module(stage.ascend_name)
    assert ascend.init_ascend_config(VllmConfig({})).refresh is False
    with pytest.raises(HookRefused, match="init_device"):
        ascend.init_ascend_config(VllmConfig({"our_key": {}}))
