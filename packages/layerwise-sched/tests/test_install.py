"""Enabling: what is declined with one warning, what strict refuses, and that neither puts anything in place."""

import json
import logging
from types import SimpleNamespace as Holder

import pytest
import vllm_pairs
from layerwise_sched import plugin
from layerwise_sched.adapters import contracts, install
from layerwise_sched.config import Config
from layerwise_sched.errors import ConfigError, UnsupportedError

LAYERWISE = Holder(kv_connector_extra_config={"use_layerwise": True})
DECLINED = {
    "no KV connector": {"kv_transfer_config": None},
    "not layer-wise": {"kv_transfer_config": Holder(kv_connector_extra_config={"backend": "memcache"})},
    "was not verified with this package": {"kv_transfer_config": LAYERWISE},  # nothing is installed here
}


def engine(**changes):
    return Holder(**{"kv_transfer_config": LAYERWISE, "additional_config": {}, **changes})


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = vllm_pairs.installed_hooks()
    yield
    assert vllm_pairs.installed_hooks() == before


@pytest.mark.parametrize("reason", DECLINED)
def test_what_cannot_be_served_is_declined_with_one_warning(reason, caplog):
    caplog.set_level(logging.WARNING)
    assert install.enable(Config(policy="ready"), engine(**DECLINED[reason])) is False
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert reason in caplog.text
    assert "Upstream's own path runs." in caplog.text


@pytest.mark.parametrize("reason", DECLINED)
def test_and_refused_under_strict(reason):
    with pytest.raises(UnsupportedError, match=reason):
        install.enable(Config(policy="ready", strict=True), engine(**DECLINED[reason]))


def test_a_connector_of_connectors_is_looked_into():
    inner = {"kv_connector": "AscendStoreConnector", "kv_connector_extra_config": {"use_layerwise": True}}
    several = Holder(kv_connector_extra_config={"connectors": [{"kv_connector": "Other"}, inner]})
    assert install._not_layerwise(engine(kv_transfer_config=several)) is None
    del inner["kv_connector_extra_config"]
    assert "not layer-wise" in install._not_layerwise(engine(kv_transfer_config=several))


def test_a_worker_reads_its_engines_key_and_else_the_environment(monkeypatch):
    monkeypatch.delenv("VLLM_LAYERWISE_SCHED", raising=False)
    assert install.config_of(engine()) is None
    assert install.config_of(engine(additional_config={"layerwise_sched": {"policy": "ready"}})).policy == "ready"
    monkeypatch.setenv("VLLM_LAYERWISE_SCHED", json.dumps({"timeline": "folder"}))
    assert install.config_of(engine()).timeline == "folder"


def test_a_misspelt_switch_ends_the_workers_start():
    with pytest.raises(ConfigError, match="no key 'polcy'"):
        plugin.on_worker({"polcy": "ready"}, engine())


def test_fifo_without_a_timeline_asks_for_nothing(monkeypatch):
    monkeypatch.setattr(install, "enable", lambda *_: pytest.fail("something was put in"))
    plugin.on_worker({"policy": "fifo", "strict": True}, engine())


def test_every_hook_has_a_contract_and_a_name_of_its_own():
    class NoHooks:
        """The wrappers are not called here."""

        def __getattr__(self, name):
            return lambda *args: None

    hooks = install.hooks_of(NoHooks())
    assert {hook.target for hook in hooks} == set(contracts.WRAPPED)
    assert len({hook.name for hook in hooks}) == len(hooks)
    assert all(hook.ast_sha256 for hook in hooks)
    assert not set(contracts.WRAPPED) & (set(contracts.RELIED_ON) | set(contracts.OPTIONAL))
