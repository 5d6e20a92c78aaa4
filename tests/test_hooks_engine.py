"""Hooks and the shared bootstrap on the real classes of the installed pair, inside the simulator; no engine is started.

Runs with a pair's own Python. On a core-only pair the parts that need vllm-ascend have nothing to check and are
left out of the collection by the pair's own row, not by an import that may fail for another reason.
"""

import contextlib
import importlib
import os
from types import SimpleNamespace

import ascend_sim
import pytest
from vllm_pairs import Hook, HookRefused, bootstrap, current_pair, install, installed_hooks
from vllm_pairs.contract import ast_sha256, signature_text
from vllm_pairs.targets import resolve

# Importing torch and vLLM warns of their own deprecations, which are not ours to fix.
pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("default")]

PAIR = current_pair()
with_plugin = pytest.mark.skipif(PAIR.vllm_ascend is None, reason=f"pair {PAIR.id} has no vllm-ascend")
GATE = "vllm.v1.worker.worker_base:WorkerWrapperBase.init_device"
SEQ_LENS = "vllm_ascend.worker.v2.model_runner:NPUModelRunner._update_seq_lens_cpu"
SIGNATURE = "(self, scheduler_output, req_ids)"
KEY, ENV = "hooks_engine_test", "VLLM_HOOKS_ENGINE_TEST"
# One name, one signature, and a body that changed over the pairs: why a hook compares a hash.
SEQ_LENS_SHA256 = {
    "0.30.0": "f88e92ec73d7a32bfdf7674aad6c47b3fcce428bee29744a7412146cfc1f2c40",
    "0.29.0": "7c35d5c0cc3920e710318cfa9fe38432323cfdab3f5eed7b467d7346edee768b",
    "0.28.0": "7c35d5c0cc3920e710318cfa9fe38432323cfdab3f5eed7b467d7346edee768b",
    "0.27.1": "720023ca392dda1e8a4ad38b26777b02a7ca001629054e905808ceb7fd0248a4",
    "0.26.0": "d1485eccb9985b92f9390b0b8b89aac38c61eea9a6a3aa0e0711c8661be3fc95",
}
calls = []


@pytest.fixture(scope="module", autouse=True)
def simulator():
    ascend_sim.activate("ascend" if PAIR.vllm_ascend else "plain")
    if PAIR.vllm_ascend:
        importlib.import_module("vllm.config")  # as an engine does it: vLLM first
        importlib.import_module("vllm_ascend.ops")  # before the runner: the two import each other
    bootstrap(KEY, ENV, lambda config, vllm_config: calls.append(config))


@pytest.fixture(autouse=True)
def fresh_calls():
    calls.clear()


def ours():
    return [hook.name for hook in installed_hooks() if not hook.name.startswith("vllm_pairs.")]


def worker(monkeypatch, additional_config):
    """A real WorkerWrapperBase around a worker that only writes down that it was reached."""
    base = importlib.import_module("vllm.v1.worker.worker_base")
    monkeypatch.setattr(base, "set_current_vllm_config", lambda config: contextlib.nullcontext())
    wrapper = base.WorkerWrapperBase()
    wrapper.worker = SimpleNamespace(init_device=lambda: calls.append("device"), shutdown=lambda: None)
    wrapper.vllm_config = SimpleNamespace(additional_config=additional_config)
    return wrapper


def test_the_installed_pair_is_the_one_the_environment_was_built_for():
    assert PAIR.verified, PAIR.reason
    assert PAIR.id == os.environ.get("KIT_PAIR", PAIR.id)


def test_the_gate_calls_before_the_device(monkeypatch):
    worker(monkeypatch, {KEY: {"a": 1}}).init_device()
    assert calls == [{"a": 1}, "device"]


def test_without_a_key_the_gate_calls_nobody(monkeypatch):
    worker(monkeypatch, {}).init_device()
    assert calls == ["device"]


def test_the_gate_comes_off_without_a_trace():
    base = importlib.import_module("vllm.v1.worker.worker_base")
    gate = next(hook for hook in installed_hooks() if hook.name == "vllm_pairs.gate")
    skin = vars(base.WorkerWrapperBase)["init_device"]
    install([gate]).remove()
    plain = vars(base.WorkerWrapperBase)["init_device"]
    assert plain is not skin
    assert signature_text(plain) == "(self)"
    install([gate])


@with_plugin
def test_our_key_passes_ascends_config_class_and_a_foreign_one_does_not():
    module = importlib.import_module("vllm_ascend.ascend_config")
    plain = resolve("vllm_ascend.ascend_config:AscendConfig.__init__")
    assert plain.name == "__init__"
    if "__dataclass_fields__" not in vars(module.AscendConfig):
        # Up to 0.26 the class takes the whole config and judges no key.
        assert "vllm_config" in signature_text(module.AscendConfig.__init__)
        return
    with pytest.raises(Exception, match="foreign_key"):
        module.AscendConfig(**{"foreign_key": 1})
    with pytest.raises(Exception, match="foreign_key") as caught:
        module.AscendConfig(**{"foreign_key": 1, KEY: {}})
    assert KEY not in str(caught.value)
    assert KEY not in _complaint(module.AscendConfig, {KEY: {"a": 1}})


def _complaint(config_class, arguments):
    """What the class says against the arguments; required fields that are missing are its business, not ours."""
    try:
        config_class(**arguments)
    except Exception as error:
        return str(error)
    return ""


@with_plugin
def test_the_length_hook_has_the_contract_of_this_pair():
    function = resolve(SEQ_LENS).function
    assert signature_text(function) == SIGNATURE
    assert ast_sha256(function) == SEQ_LENS_SHA256[PAIR.id]


@with_plugin
def test_a_wrong_contract_is_refused_and_the_runner_class_is_untouched():
    runner = importlib.import_module("vllm_ascend.worker.v2.model_runner").NPUModelRunner
    before = dict(vars(runner))
    good = Hook("good", SEQ_LENS, lambda call, *a: call(*a), SIGNATURE, (SEQ_LENS_SHA256[PAIR.id],))
    for bad in (
        Hook("bad", SEQ_LENS, print, "(self, scheduler_output)"),
        Hook("bad", SEQ_LENS, print, SIGNATURE, ("0" * 64,)),
        Hook("bad", SEQ_LENS + "_gone", print),
    ):
        with pytest.raises(HookRefused) as caught:
            install([good, bad])
        assert PAIR.id in caught.value.pair
        assert bad.target in str(caught.value)
        assert dict(vars(runner)) == before
    assert ours() == []


@with_plugin
def test_two_hooks_on_the_runner_compose_and_come_off_in_any_order():
    runner = importlib.import_module("vllm_ascend.worker.v2.model_runner").NPUModelRunner
    original = vars(runner)["_update_seq_lens_cpu"]
    accepted = (SEQ_LENS_SHA256[PAIR.id],)
    metadata = Hook("metadata", SEQ_LENS, lambda call, *a: calls.append("metadata") or call(*a), SIGNATURE, accepted, 1)
    guard = Hook("guard", SEQ_LENS, lambda call, *a: calls.append("guard"), SIGNATURE, accepted, 2)
    second, first = install([guard]), install([metadata])
    install([metadata])
    runner._update_seq_lens_cpu(object.__new__(runner), None, [])
    assert calls == ["metadata", "guard"]
    first.remove()
    runner._update_seq_lens_cpu(object.__new__(runner), None, [])
    assert calls == ["metadata", "guard", "guard"]
    second.remove()
    assert vars(runner)["_update_seq_lens_cpu"] is original
    assert ours() == []


@with_plugin
def test_a_hook_on_an_inherited_runner_method_leaves_no_entry_behind():
    runner = importlib.import_module("vllm_ascend.worker.v2.model_runner").NPUModelRunner
    inherited = [name for base in runner.__mro__[1:] for name in vars(base) if name not in vars(runner)]
    name = next(name for name in inherited if name.startswith("add_"))
    target = f"{runner.__module__}:NPUModelRunner.{name}"
    with install([Hook("inherited", target, lambda call, *a, **k: calls.append(name))]):
        getattr(runner, name)(object.__new__(runner), None)
        assert calls == [name]
    assert name not in vars(runner)
