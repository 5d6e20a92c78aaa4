"""Synthetic modules that stand for code to be hooked; vLLM is not needed here."""

import importlib
import sys
from textwrap import dedent

import pytest
from vllm_pairs.hooks import installed_hooks


@pytest.fixture
def make_module(tmp_path, monkeypatch):
    """Write a module with real source (a hash needs it) and import it; it is forgotten after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def make(name, source, *, load=True):
        (tmp_path / f"{name}.py").write_text(dedent(source), encoding="utf-8")
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name) if load else None

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def nothing_left_installed():
    """A test that leaves a hook in place would change the next one."""
    yield
    assert installed_hooks() == ()
