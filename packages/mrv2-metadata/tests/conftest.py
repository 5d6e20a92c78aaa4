"""The helpers beside the tests are importable from them, wherever the tests were copied to."""

import sys
from pathlib import Path
from types import ModuleType
from types import SimpleNamespace as Holder

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def ascend_config(monkeypatch):
    """vllm-ascend's parsed configuration, with dynamic EPLB off."""
    module = ModuleType("vllm_ascend.ascend_config")
    module.get_ascend_config = lambda: Holder(eplb_config=Holder(config={"dynamic_eplb": False}))
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", module)
