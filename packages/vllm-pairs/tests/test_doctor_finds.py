"""What a plugin release really met on another core, by its kind: each fails without the rule that finds it."""

import pytest

CORE = {
    "vllm/config.py": """
        def load(path, *, depth=0):
            return path


        def plan(tokens, *, budget=0, block=0):
            return load(tokens)


        def grow(tokens):
            return plan(tokens, budget=1, block=2)
    """,
    "vllm/engine.py": """
        from vllm.config import load


        def start():
            return load("x", depth=1)
    """,
    "vllm/runner.py": """
        class Speculator:
            def bind(self, tables, groups=None):
                return tables


        class Runner:
            def __init__(self, speculator):
                self.speculator = speculator

            def fill(self, tokens, scale=1, shift=0):
                return tokens

            def step(self, tokens):
                return self.fill(tokens, scale=2)

            def dummy(self, tokens):
                return self.fill(tokens, shift=3)

            def prepare(self):
                if isinstance(self.speculator, Speculator):
                    self.speculator.bind(1, groups=2)

            @classmethod
            def make(cls, size):
                return cls(size)

            def close(self, wait=False):
                return wait
    """,
    "vllm/other.py": """
        class OldRunner:
            def close(self, wait=False):
                return wait
    """,
    "vllm/worker.py": """
        from vllm.other import OldRunner


        class Worker:
            def __init__(self, new):
                if new:
                    from vllm.runner import Runner as NewRunner

                    self.runner: OldRunner = NewRunner(None)
                else:
                    self.runner = OldRunner()

            def stop(self):
                self.runner.close(wait=True)
    """,
}
VERSION_IS = {"vllm_ascend/utils.py": "def vllm_version_is(target):\n    ...\n"}


def found(trees, source, kind=None, **more):
    files = {"vllm_ascend/patch.py": source, **VERSION_IS, **more}
    report = trees.examine(CORE, files)
    return [one for one in report.findings if one.level != "note" and kind in (None, one.kind)]


def arguments(findings):
    return sorted(one.name for one in findings)


def test_a_package_that_two_imports_bind_is_known(trees):
    source = """
        import vllm.config
        import vllm.engine

        kept = vllm.config.gone
    """
    (one,) = found(trees, source)
    assert (one.symbol, one.line, one.confidence) == ("vllm.config:gone", 5, "high")


KEPT = """
    import vllm.config as config

    kept = config.{name}


    def ours(tokens):
        return kept(tokens)


    def install():
        config.{name} = ours
"""


def test_what_a_function_below_puts_there_is_not_there_when_the_module_reads_it(trees):
    (one,) = found(trees, KEPT.format(name="gone"))
    assert (one.kind, one.name, one.line) == ("missing-attribute", "gone", 4)
    assert found(trees, KEPT.format(name="load")) == []


def test_a_function_above_may_have_put_it_there(trees):
    source = """
        import vllm.config as config


        def install():
            config.gone = len


        install()
        kept = config.gone
    """
    assert found(trees, source) == []


USER = {"vllm_ascend/user.py": "from vllm.config import gone\n"}


def test_a_module_that_fails_replaces_nothing_below(trees):
    source = "import vllm.config as config\n\nkept = config.gone\nconfig.gone = len\n"
    said = {one.file: one.confidence for one in found(trees, source, **USER)}
    assert said == {"vllm_ascend/patch.py": "high", "vllm_ascend/user.py": "medium"}
    for whole in ("config.gone = len\n", "try:\n    config.gone\nexcept AttributeError:\n    config.gone = len\n"):
        assert found(trees, "import vllm.config as config\n\n" + whole, **USER) == []


def test_every_argument_that_a_call_is_refused_for(trees):
    calls = found(trees, "from vllm.config import plan\n\nplan(1, budget=2, width=3, height=4)\n")
    assert arguments(calls) == ["height", "width"]


def test_every_argument_that_an_override_refuses_with_its_own_call(trees):
    source = """
        from vllm.runner import Runner


        class Ours(Runner):
            def fill(self, tokens):
                return tokens
    """
    refused = {one.name: one.core_line for one in found(trees, source, "override-signature")}
    line = trees.line
    assert refused == {
        "scale": line(CORE, "vllm/runner.py", "scale=2"),
        "shift": line(CORE, "vllm/runner.py", "shift=3"),
    }


def test_every_argument_that_a_replacement_refuses(trees):
    source = """
        import vllm.config


        def ours(tokens):
            return tokens


        vllm.config.plan = ours
    """
    assert arguments(found(trees, source, "replacement-signature")) == ["block", "budget"]


SPREAD = """
    from vllm.config import plan
    from vllm_ascend.utils import vllm_version_is


    def ours(tokens, big):
        {body}
        return plan(tokens, **{spread})
"""
REFUSED = {
    "{'budget': 1, 'width': 2}": "pass",
    "dict(width=2)": "pass",
    "({} if vllm_version_is('0.29.0') else {'width': 2})": "pass",
    "words": "words = dict(budget=1)\n        words['width'] = 2",
    "words ": "words: dict = {'width': 2}\n        if big:\n            words['budget'] = 1",
}
TAKEN = {
    "{'budget': 1}": "pass",
    "{**big, 'budget': 1}": "pass",
    "({} if vllm_version_is('0.30.0') else {'width': 2})": "pass",
    "words": "words = dict(budget=1)\n        if big:\n            words['width'] = 2",
    "words ": "words = dict(width=1)\n        words.pop('width')",
    "words  ": "words = dict(width=1) if big else {}",
    "big": "big['width'] = 1",
}


@pytest.mark.parametrize("spread", REFUSED)
def test_a_keyword_that_a_known_dict_brings(trees, spread):
    (one,) = found(trees, SPREAD.format(body=REFUSED[spread], spread=spread.strip()), "call-argument")
    assert (one.name, one.confidence) == ("width", "high")


@pytest.mark.parametrize("spread", TAKEN)
def test_a_dict_whose_keys_are_not_known_or_fit(trees, spread):
    assert found(trees, SPREAD.format(body=TAKEN[spread], spread=spread.strip())) == []


def test_a_call_of_the_original_that_was_kept_before_it_was_replaced(trees):
    source = """
        import vllm.config

        kept = vllm.config.load


        def ours(path, *, depth=0, more=0):
            return kept(path, more=more)


        vllm.config.load = ours
    """
    (one,) = found(trees, source)
    assert (one.kind, one.name, one.line, one.confidence) == ("call-argument", "more", 8, "high")
    late = source.replace("return kept(", "return vllm.config.load(")
    assert found(trees, late) == []  # that is the replacement by then


def test_a_function_kept_from_a_class_is_that_one_whatever_objects_are_given(trees):
    source = """
        from vllm.runner import Runner

        kept = Runner.close


        def ours(self, wait=False, now=False):
            return kept(self, wait, now)


        def install(runner):
            runner.close = len


        Runner.close = ours
    """
    (one,) = found(trees, source)
    assert (one.kind, one.line, one.confidence) == ("call-argument", 8, "high")


@pytest.mark.parametrize(
    ("call", "number"),
    [("plan(1, width=2)", 1), ("plan(1, **words, width=2)", 0), ("plan(1, width=2) if asks else 1", 0)],
)
def test_code_that_looks_at_fields_chooses_only_what_it_spreads_or_does_on_a_condition(trees, call, number):
    source = f"""
        from dataclasses import fields

        from vllm.config import plan


        def ours(asks):
            words = {{one.name: 1 for one in fields(asks)}}
            return {call}
    """
    assert len(found(trees, source)) == number


EXACT = """
    from vllm.runner import Runner


    class Ours(Runner):
        @classmethod
        def make(cls, size, extra=0):
            return {call}.make(size, extra=extra)


    class Below(Ours):
        @classmethod
        def make(cls, size, extra=0):
            return cls(size)
"""


@pytest.mark.parametrize("call", ["Runner", "super()"])
def test_a_class_that_is_named_has_no_override_below(trees, call):
    (one,) = found(trees, EXACT.format(call=call))
    assert (one.kind, one.name, one.confidence) == ("call-argument", "extra", "high")


@pytest.mark.parametrize("module", ["sys.modules.get('vllm.engine')", "sys.modules['vllm.engine']"])
def test_a_name_that_another_module_imported_early_is_replaced_there(trees, module):
    source = f"""
        import sys


        def ours(path):
            return path


        engine = {module}
        engine.load = ours
    """
    (one,) = found(trees, source)
    assert (one.kind, one.name, one.core_file) == ("replacement-signature", "depth", "vllm/engine.py")


def test_an_attribute_is_what_an_isinstance_around_the_call_says(trees):
    source = """
        from vllm.runner import Runner, Speculator


        class Ours(Runner):
            pass


        class Drafts(Speculator):
            def bind(self, tables):
                return tables
    """
    (one,) = found(trees, source, "override-signature")
    assert (one.symbol, one.name) == ("vllm_ascend.patch:Drafts.bind", "groups")
    assert one.core_line == trees.line(CORE, "vllm/runner.py", "groups=2")


def test_a_receiver_that_is_not_what_its_annotation_says(trees):
    source = """
        from vllm.runner import Runner


        class Ours(Runner):
            def close(self):
                return None
    """
    (one,) = found(trees, source, "override-signature")
    assert (one.name, one.core_file, one.level) == ("wait", "vllm/worker.py", "warning")


def test_what_follows_from_an_import_that_fails_is_no_error_of_its_own(trees):
    source = "import vllm.gone.deep\n\nkept = vllm.gone.deep\n"
    levels = {one.kind: (one.level, one.confidence) for one in found(trees, source)}
    assert levels["missing-module"] == ("warning", "high")
    assert levels["missing-attribute"] == ("warning", "medium")
