import itertools

import pytest
import wrapt
from vllm_pairs import contract
from vllm_pairs.errors import HookRefused
from vllm_pairs.hooks import Hook, install, installed_hooks

SOURCE = """
class Base:
    def inherited(self, x):
        return ["base", x]
    @classmethod
    def make(cls, x):
        return [cls.__name__, x]
    @staticmethod
    def add(a, b=0):
        return [a + b]
class Runner(Base):
    def step(self, batch, *, dry=False):
        return [batch]
    def other(self):
        return ["other"]
    @staticmethod
    def twice(x):
        return [2 * x]
    @classmethod
    def build(cls, x):
        return [cls.__name__, x]
    @property
    def size(self):
        return 1
    class Inner:
        def deep(self):
            return ["deep"]
def plan(a, b=1):
    return [a, b]
"""


@pytest.fixture
def code(make_module):
    return make_module("hooked", SOURCE)


def tag(name, path="Runner.step", **extra):
    """A hook that puts its name before the result and remembers nothing."""
    return Hook(name=name, target=f"hooked:{path}", wrapper=lambda call, *a, **k: [name, *call(*a, **k)], **extra)


def entries(code):
    return {name: dict(vars(getattr(code, name))) for name in ("Base", "Runner")} | {"plan": code.plan}


@pytest.mark.parametrize("hot", [False, True])
def test_in_and_out_without_a_trace(code, hot):
    before = entries(code)
    installed = install([tag("a", hot=hot)])
    assert code.Runner().step(3, dry=True) == ["a", 3]
    assert code.Runner.step(code.Runner(), 3) == ["a", 3]
    assert isinstance(vars(code.Runner)["step"], wrapt.FunctionWrapper) is not hot
    installed.remove()
    installed.remove()
    assert entries(code) == before
    assert vars(code.Runner)["step"] is before["Runner"]["step"]


def test_the_skin_keeps_name_and_signature(code):
    with install([tag("a"), tag("b", "Runner.other", hot=True)]):
        assert contract.signature_text(code.Runner.step) == "(self, batch, *, dry=False)"
        assert code.Runner.other.__name__ == "other"


def test_twice_is_once_and_one_removal_takes_it_off(code):
    original = vars(code.Runner)["step"]
    hook = tag("a")
    first, second = install([hook]), install([hook, hook])
    assert code.Runner().step(1) == ["a", 1]
    assert installed_hooks() == (hook,)
    second.remove()
    assert vars(code.Runner)["step"] is original
    first.remove()


@pytest.mark.parametrize("removal", list(itertools.permutations("abc")))
@pytest.mark.parametrize("hot", [(), ("b",), ("a", "b", "c")])
def test_composes_in_declared_order_and_comes_off_in_any(code, removal, hot):
    original = vars(code.Runner)["step"]
    orders = {"c": 3, "a": 1, "b": 2}
    handles = {name: install([tag(name, order=order, hot=name in hot)]) for name, order in orders.items()}
    left = ["a", "b", "c"]
    assert code.Runner().step(0) == [*left, 0]
    for name in removal:
        handles[name].remove()
        left.remove(name)
        assert code.Runner().step(0) == [*left, 0]
    assert vars(code.Runner)["step"] is original


def test_equal_order_runs_in_order_of_installation(code):
    with install([tag("x"), tag("a")]):
        assert code.Runner().step(0) == ["x", "a", 0]


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize(
    ("path", "call", "plain"),
    [
        ("Runner.inherited", lambda m: m.Runner().inherited(1), ["base", 1]),
        ("Runner.make", lambda m: m.Runner.make(1), ["Runner", 1]),
        ("Runner.add", lambda m: m.Runner.add(1, b=2), [3]),
        ("Runner.twice", lambda m: m.Runner().twice(2), [4]),
        ("Runner.build", lambda m: m.Runner().build(2), ["Runner", 2]),
        ("Runner.Inner.deep", lambda m: m.Runner.Inner().deep(), ["deep"]),
        ("plan", lambda m: m.plan(1, b=2), [1, 2]),
    ],
)
def test_every_kind_of_function(code, path, call, plain, hot):
    before = entries(code)
    with install([tag("h", path, hot=hot)]):
        assert call(code) == ["h", *plain]
    assert call(code) == plain
    assert entries(code) == before


@pytest.mark.parametrize("base_first", [True, False])
def test_a_hook_on_the_base_fires_through_a_hook_on_the_inheriting_class(code, base_first):
    base, derived = tag("base", "Base.inherited"), tag("derived", "Runner.inherited")
    one, two = (base, derived) if base_first else (derived, base)
    first, second = install([one]), install([two])
    assert code.Runner().inherited(1) == ["derived", "base", "base", 1]
    assert code.Base().inherited(1) == ["base", "base", 1]
    first.remove()
    assert code.Runner().inherited(1) == [two.name, "base", 1]
    second.remove()
    assert "inherited" not in vars(code.Runner)


def test_the_contract_of_an_inherited_target_is_the_plain_function_under_a_base_hook(code):
    accepted = (contract.ast_sha256(code.Base.inherited),)
    with install([tag("base", "Base.inherited")]), install([tag("derived", "Runner.inherited", ast_sha256=accepted)]):
        assert code.Runner().inherited(1) == ["derived", "base", "base", 1]


@pytest.mark.parametrize(
    ("path", "extra", "difference", "found"),
    [
        ("Runner.step", {"signature": "(self, batch)"}, "signature", "(self, batch, *, dry=False)"),
        ("Runner.step", {"ast_sha256": ("0" * 64,)}, "ast", None),
        ("Runner.gone", {}, "missing", "no 'gone' there"),
        ("Gone.step", {}, "missing", "no 'Gone' there"),
        ("Runner.size", {}, "kind", "property"),
        ("Runner.Inner", {}, "kind", "type"),
        ("SOURCE_NOT_THERE", {}, "missing", None),
    ],
)
def test_refused_and_untouched(code, path, extra, difference, found):
    before = entries(code)
    good = tag("good", "Runner.other")
    with pytest.raises(HookRefused) as caught:
        install([good, tag("bad", path, pairs=("1.2.3",), **extra)])
    refused = caught.value
    assert (refused.hook, refused.target, refused.difference) == ("bad", f"hooked:{path}", difference)
    assert refused.verified == ("1.2.3",)
    if found is not None:
        assert refused.found == found
    for part in (
        "hooked:",
        difference,
        refused.expected,
        refused.found,
        refused.pair,
        "1.2.3",
        "Nothing was installed",
    ):
        assert part in str(refused)
    assert entries(code) == before
    assert code.Runner.other is before["Runner"]["other"]


def test_a_module_that_is_not_there():
    with pytest.raises(HookRefused) as caught:
        install([Hook(name="x", target="no_such_module_here:f", wrapper=lambda call: call())])
    assert caught.value.difference == "module"


def test_any_accepted_hash_will_do_and_a_changed_body_will_not(code, make_module):
    accepted = contract.ast_sha256(code.Runner.step)
    with install([tag("a", ast_sha256=("0" * 64, accepted), signature="(self, batch, *, dry=False)")]):
        pass
    # The planted fault: same name, same signature, another body.
    changed = make_module("hooked_changed", SOURCE.replace("return [batch]", "return [batch][:]"))
    hook = Hook(
        "a", "hooked_changed:Runner.step", lambda call, *a: call(*a), "(self, batch, *, dry=False)", (accepted,)
    )
    with pytest.raises(HookRefused) as caught:
        install([hook])
    assert (caught.value.difference, caught.value.expected) == ("ast", accepted)
    assert caught.value.found == contract.ast_sha256(changed.Runner.step)


def test_a_function_that_somebody_wrapped_fails_its_hash_contract(code):
    accepted = (contract.ast_sha256(code.Runner.step),)
    plain = vars(code.Runner)["step"]
    code.Runner.step = wrapt.FunctionWrapper(plain, lambda wrapped, i, a, k: wrapped(*a, **k))
    with pytest.raises(HookRefused, match="wrapped at run time"):
        install([tag("a", ast_sha256=accepted)])
    code.Runner.step = plain
    with install([tag("a", ast_sha256=accepted)]):
        pass


def test_another_hook_of_the_same_name_is_a_conflict(code):
    with install([tag("a")]):
        with pytest.raises(HookRefused) as caught:
            install([tag("a")])  # an equal description, another wrapper
        assert caught.value.difference == "conflict"
        assert code.Runner().step(1) == ["a", 1]
    before = entries(code)
    with pytest.raises(HookRefused):
        install([tag("a"), tag("a")])
    assert entries(code) == before


def test_a_failure_while_putting_in_takes_everything_out(code, monkeypatch):
    from vllm_pairs.dispatch import Dispatcher

    before = entries(code)
    put, calls = Dispatcher.add, []

    def failing(self, hook):
        calls.append(hook)
        if len(calls) == 2:
            raise OSError("planted")
        put(self, hook)

    monkeypatch.setattr(Dispatcher, "add", failing)
    with pytest.raises(OSError, match="planted"):
        install([tag("a"), tag("b", "Runner.other"), tag("c", "plan")])
    assert len(calls) == 2
    assert entries(code) == before


def test_somebody_wrapped_us_then_our_hooks_go_off_and_theirs_stays(code, caplog):
    installed = install([tag("a")])
    ours = vars(code.Runner)["step"]
    code.Runner.step = lambda self, *a, **k: ["theirs", *ours.__get__(self)(*a, **k)]
    theirs = vars(code.Runner)["step"]
    assert code.Runner().step(1) == ["theirs", "a", 1]
    installed.remove()
    assert "wrapped by others" in caplog.text
    assert code.Runner().step(1) == ["theirs", 1]
    with install([tag("b")]):
        assert code.Runner().step(1) == ["b", "theirs", 1]
    assert vars(code.Runner)["step"] is theirs


def test_context_manager_takes_off_after_an_error(code):
    original = vars(code.Runner)["step"]
    with pytest.raises(RuntimeError, match="planted"), install([tag("a")]):
        raise RuntimeError("planted")
    assert vars(code.Runner)["step"] is original


def test_a_wrapper_may_change_arguments_and_skip_the_call(code):
    double = Hook("double", "hooked:Runner.step", lambda call, self, batch, **k: call(self, batch * 2, **k), order=1)
    stop = Hook("stop", "hooked:Runner.step", lambda call, self, batch, **k: ["stopped", batch], order=2)
    with install([double]):
        assert code.Runner().step(2) == [4]
        with install([stop]):
            assert code.Runner().step(2) == ["stopped", 4]


@pytest.mark.parametrize("target", ["x", "a.b", "a:", ":f", "a:b c", "a:1", None])
def test_a_malformed_target_is_named(target):
    with pytest.raises(ValueError, match="must look like"):
        Hook(name="x", target=target, wrapper=print)


def test_a_hash_given_as_text_is_a_mistake():
    with pytest.raises(TypeError, match="must be a tuple"):
        Hook(name="x", target="a:b", wrapper=print, ast_sha256="0" * 64)


def test_a_wrapper_must_be_callable():
    with pytest.raises(TypeError, match="must be callable, got 1"):
        Hook(name="x", target="a:b", wrapper=1)
