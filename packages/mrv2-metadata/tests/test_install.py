"""Enabling: what is refused, what is declined with one warning, and that neither puts anything in place."""

import logging
from types import SimpleNamespace as Holder

import pytest
import vllm_pairs
from mrv2_metadata import plugin
from mrv2_metadata.adapters import contracts, install
from mrv2_metadata.adapters.hooks import Metadata
from mrv2_metadata.config import Config
from mrv2_metadata.errors import ConfigError, UnsupportedError


def engine(**changes):
    config = Holder(
        speculative_config=None,
        scheduler_config=Holder(async_scheduling=True),
        model_config=Holder(runner_type="generate", is_diffusion=False),
        parallel_config=Holder(
            pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_eplb=False
        ),
        kv_transfer_config=None,
        additional_config={},
    )
    for name, value in changes.items():
        setattr(config, name, value)
    return config


PIPELINE = Holder(
    pipeline_parallel_size=2, decode_context_parallel_size=1, prefill_context_parallel_size=1, enable_eplb=False
)
DECLINED = {
    "diffusion": {"model_config": Holder(runner_type="generate", is_diffusion=True)},
    "pooling": {"model_config": Holder(runner_type="pooling", is_diffusion=False)},
    "dcp": {
        "parallel_config": Holder(**{**vars(PIPELINE), "pipeline_parallel_size": 1, "decode_context_parallel_size": 2})
    },
    "pcp": {
        "parallel_config": Holder(**{**vars(PIPELINE), "pipeline_parallel_size": 1, "prefill_context_parallel_size": 2})
    },
    "dynamic_eplb": {"additional_config": {"eplb_config": {"dynamic_eplb": True}}},
    "scheduling_unknown": {"scheduler_config": Holder()},
}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = vllm_pairs.installed_hooks()
    yield
    assert vllm_pairs.installed_hooks() == before


@pytest.mark.parametrize("strict", [False, True])
def test_speculation_in_a_synchronous_pipeline_is_refused_by_name(strict):
    config = engine(
        speculative_config=Holder(method="mtp", num_speculative_tokens=1),
        scheduler_config=Holder(async_scheduling=False),
        parallel_config=PIPELINE,
    )
    with pytest.raises(
        UnsupportedError, match=r"pp_speculation_sync.*pipeline parallel with speculation and synchronous"
    ):
        install.enable(Config(enabled=True, strict=strict), config)


@pytest.mark.parametrize("feature", DECLINED)
def test_an_unsupported_feature_is_declined_with_one_warning(feature, caplog):
    caplog.set_level(logging.WARNING)
    assert install.enable(Config(enabled=True), engine(**DECLINED[feature])) is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert feature in caplog.text
    assert "Upstream's own path runs." in caplog.text


@pytest.mark.parametrize("feature", DECLINED)
def test_and_refused_under_strict(feature):
    with pytest.raises(UnsupportedError, match=feature):
        install.enable(Config(enabled=True, strict=True), engine(**DECLINED[feature]))


def test_a_pair_that_is_not_verified_is_declined_or_refused(caplog):
    # No vLLM is installed beside the light packages, so whatever is found here is not a verified pair.
    caplog.set_level(logging.WARNING)
    assert install.enable(Config(enabled=True), engine()) is False
    assert caplog.text.count("was not verified with this package") == 1
    with pytest.raises(UnsupportedError, match="was not verified with this package"):
        install.enable(Config(enabled=True, strict=True), engine())


def test_a_changed_function_is_named(monkeypatch):
    # A function that exists here, in the place of one of vLLM's.
    target = "mrv2_metadata.seq_lens:update"
    monkeypatch.setattr(install, "RELIED_ON", {target: ("0" * 64,)})
    assert install.changed_reliance().startswith(f"{target}: expected {'0' * 64}, found ")
    monkeypatch.setattr(install, "RELIED_ON", {"mrv2_metadata.seq_lens:gone": ("0" * 64,)})
    assert "gone" in install.changed_reliance()


def test_every_hook_that_replaces_or_wraps_has_a_contract():
    hooks = install.hooks_of(Metadata(), verify=True, pairs=())
    assert {hook.target for hook in hooks} == set(contracts.WRAPPED)
    assert all(hook.ast_sha256 for hook in hooks)
    plain = install.hooks_of(Metadata(), verify=False, pairs=())
    assert {hook.target for hook in hooks} - {hook.target for hook in plain} == {
        f"{contracts.OUTPUT}.__init__", f"{contracts.OUTPUT}.get_output",
    }  # fmt: skip


def test_hashes_are_whole_and_named_once():
    for accepted in (*contracts.WRAPPED.values(), *contracts.RELIED_ON.values()):
        assert len(set(accepted)) == len(accepted) > 0
        assert all(len(text) == 64 and set(text) <= set("0123456789abcdef") for text in accepted)


def test_the_key_switched_off_does_nothing():
    plugin.on_worker({"enabled": False}, engine())
    plugin.on_worker({}, engine())


def test_a_bad_key_stops_the_worker():
    with pytest.raises(ConfigError, match="no key 'enable'"):
        plugin.on_worker({"enable": True}, engine())


def test_an_engine_that_did_not_ask_is_left_alone():
    shared = Metadata()
    asking, other = type("VllmConfig", (), {})(), type("VllmConfig", (), {})()
    shared.admit(asking, Config(enabled=True, verify="every"))
    assert shared._config_of(asking).verify == "every"
    assert shared._config_of(other).enabled is False
    del asking
    shared.admit(other, Config(enabled=True))
    assert len(shared._engines) == 1, "an engine that is gone leaves nothing"
