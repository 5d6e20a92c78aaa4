"""Names of the Ascend stack import, and refuse by name when they are used."""

import sys

import pytest
from ascend_sim.standins import absent, module
from ascend_sim.standins.absent import Absent, NotSimulatedError


@pytest.fixture
def fake(monkeypatch):
    for name in ("fakestack", "fakestack.sub"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield module("fakestack", {"real": 3})
    for name in ("fakestack", "fakestack.sub"):
        sys.modules.pop(name, None)


def test_names_exist_and_calls_are_refused_by_full_name(fake):
    import fakestack

    assert fakestack.real == 3
    assert isinstance(fakestack.npu_thing.deep, Absent)
    with pytest.raises(NotSimulatedError, match=r"fakestack\.npu_thing\.deep has no CPU reference"):
        fakestack.npu_thing.deep(1, key=2)


@pytest.mark.parametrize("use", [bool, list, lambda name: name(), lambda name: [*name]])
def test_every_use_is_refused(use):
    with pytest.raises(NotSimulatedError, match=r"stack\.name"):
        use(Absent("stack.name"))


def test_import_time_uses_work():
    name = Absent("stack.Type")

    class Derived(name):
        field: name | None = None

    assert Derived().field is None
    assert not isinstance(3, name)
    assert {name: 1}[Absent("stack.Type")] == 1
    assert name != Absent("stack.Other")
    # Reflection (copy, pickle, inspect) asks for dunder names and must learn that there are none.
    assert not hasattr(name, "__wrapped__")
    assert "absent stack.Type" in repr(name)


def test_a_submodule_hangs_below_its_parent(fake):
    module("fakestack.sub", {"answer": 42})
    from fakestack.sub import answer

    assert answer == 42
    assert sys.modules["fakestack"].sub is sys.modules["fakestack.sub"]


def test_refusal_is_a_not_implemented_error():
    assert issubclass(absent.NotSimulatedError, NotImplementedError)
