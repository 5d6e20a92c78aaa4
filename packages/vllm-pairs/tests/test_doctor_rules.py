"""One small pair for each rule: what it finds, and the nearest thing that is right."""

import pytest

CORE = {
    "vllm/config.py": """
        class ModelConfig:
            def __init__(self, name):
                self.name = name

            @property
            def heads(self) -> int:
                return 1


        class VllmConfig:
            model_config: ModelConfig
    """,
    "vllm/platforms.py": """
        from vllm.config import VllmConfig


        class Platform:
            @classmethod
            def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
                cls.log(vllm_config, level=1)

            @classmethod
            def log(cls, vllm_config, level=0):
                pass
    """,
    "vllm/backend.py": """
        from abc import ABC, abstractmethod
        from typing import TYPE_CHECKING

        if TYPE_CHECKING:
            from vllm.config import VllmConfig


        class Backend(ABC):
            @abstractmethod
            def name(self):
                ...

            @property
            def size(self) -> int:
                return 1

            def plan(self, tokens):
                return self.build(0, tokens=tokens)

            def build(self, first, tokens):
                return tokens
    """,
    "vllm/envs.py": """
        environment_variables = {"VLLM_PORT": lambda: 1}


        def __getattr__(name):
            if name in environment_variables:
                return environment_variables[name]()
            raise AttributeError(name)
    """,
}
PLATFORM = "vllm_ascend/platform.py"


def findings(trees, source, level=None, core=None):
    report = trees.examine(core or CORE, {PLATFORM: source, **PLUGIN})
    return [finding for finding in report.findings if level is None or finding.level == level]


PLUGIN = {
    "vllm_ascend/__init__.py": "def register():\n    return 'vllm_ascend.platform.NPUPlatform'\n",
    "vllm_ascend/utils.py": "def vllm_version_is(target):\n    ...\n",
}
IMPORTED = "from vllm_ascend.utils import vllm_version_is\n"


@pytest.mark.parametrize(
    ("source", "kind", "symbol"),
    [
        ("import vllm.gone\n", "missing-module", "vllm.gone"),
        ("from vllm.gone.deep import x\n", "missing-module", "vllm.gone"),
        ("from vllm.config import Gone\n", "missing-name", "vllm.config:Gone"),
        ("import vllm.config as c\nc.Gone\n", "missing-attribute", "vllm.config:Gone"),
        ("from vllm.backend import VllmConfig\n", "missing-name", "vllm.backend:VllmConfig"),
        ("from vllm import envs\nenvs.VLLM_GONE\n", "missing-attribute", "vllm.envs:VLLM_GONE"),
        (
            "from vllm.config import ModelConfig\nModelConfig.gone\n",
            "missing-attribute",
            "vllm.config:ModelConfig.gone",
        ),
        ("from vllm.config import ModelConfig\nModelConfig()\n", "call-argument", "vllm.config:ModelConfig.__init__"),
        ("import importlib\nimportlib.import_module('vllm.gone')\n", "missing-module", "vllm.gone"),
    ],
)
def test_what_fails_at_import_is_an_error(trees, source, kind, symbol):
    (found,) = findings(trees, source)
    assert (found.kind, found.symbol, found.level, found.severity) == (kind, symbol, "error", "import-time")
    assert (found.file, found.line) == (PLATFORM, source.count("\n"))


@pytest.mark.parametrize(
    "source",
    [
        "from vllm import envs\nenvs.VLLM_PORT\n",
        "from vllm.config import ModelConfig\nModelConfig('x').heads\n",
        "import vllm.config as c\nif hasattr(c, 'Gone'):\n    c.Gone\n",
        IMPORTED + "if vllm_version_is('0.29.0'):\n    import vllm.gone\n",
        IMPORTED + "if not vllm_version_is('0.30.0'):\n    import vllm.gone\nelse:\n    import vllm.config\n",
        IMPORTED + "old = vllm_version_is('0.29.0')\nif old:\n    import vllm.gone\n",
        "import vllm\nfrom packaging.version import parse\nif parse(vllm.__version__) < parse('1'):\n    x = 1\n"
        "else:\n    import vllm.gone\n",
        IMPORTED + "def f():\n    if vllm_version_is('0.30.0'):\n        return\n    import vllm.gone\n",
    ],
)
def test_what_this_core_has_or_never_runs_is_nothing(trees, source):
    assert findings(trees, source) == []


@pytest.mark.parametrize(
    "source",
    [
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from vllm.gone import X\n",
        "try:\n    from vllm.gone import X\nexcept ImportError:\n    X = None\n",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    import vllm.gone\n",
    ],
)
def test_what_is_handled_or_for_type_checkers_is_a_note(trees, source):
    (found,) = findings(trees, source)
    assert found.level == "note"


def test_a_handler_that_raises_again_handles_nothing(trees):
    source = "try:\n    import vllm.gone\nexcept ImportError:\n    raise\n"
    assert [found.level for found in findings(trees, source)] == ["error"]


def test_an_unknown_core_version_leaves_both_branches(trees):
    source = IMPORTED + "if vllm_version_is('0.29.0'):\n    import vllm.gone\n"
    report = trees.examine(CORE, {PLATFORM: source, **PLUGIN}, core_version=None)
    assert {finding.kind for finding in report.findings} == {"missing-module", "unreadable"}
    assert trees.only(report.findings, "missing-module").level == "warning"


def test_a_module_that_no_start_imports_is_a_warning(trees):
    report = trees.examine(CORE, {"vllm_ascend/models/rare.py": "import vllm.gone\n"})
    (found,) = report.findings
    assert (found.severity, found.level) == ("import-time", "warning")


OVERRIDES = """
    from vllm.backend import Backend


    class AscendBackend(Backend):
        {name}

        def {method}
"""


def overriding(trees, method, name="name = 'ascend'"):
    return findings(trees, OVERRIDES.format(name=name, method=method))


def test_an_override_that_refuses_the_cores_own_call(trees):
    (found,) = overriding(trees, "build(self, first): ...")
    assert (found.kind, found.name, found.confidence) == ("override-signature", "tokens", "high")
    assert (found.core_file, found.core_line) == (
        "vllm/backend.py",
        trees.line(CORE, "vllm/backend.py", "return self.build("),
    )
    assert "build(self, first, tokens)" in found.core_has


def test_an_override_that_takes_everything_or_more(trees):
    assert overriding(trees, "build(self, first, tokens, more=None): ...") == []
    assert overriding(trees, "build(self, *args, **kwargs): ...") == []


def test_a_difference_that_no_call_meets_is_a_note(trees):
    (found,) = overriding(trees, "plan(self): ...")
    assert (found.kind, found.level) == ("override-signature", "note")


def test_a_method_where_the_core_has_a_property(trees):
    (found,) = overriding(trees, "size(self): ...")
    assert (found.kind, found.level) == ("override-kind", "warning")


def test_an_abstract_method_left_out(trees):
    (found,) = overriding(trees, "more(self): ...", name="pass")
    assert (found.kind, found.name) == ("abstract-method", "name")


def test_a_classmethod_of_the_platform_is_called_before_the_start(trees):
    source = """
        from vllm.config import VllmConfig
        from vllm.platforms import Platform


        class NPUPlatform(Platform):
            @classmethod
            def log(cls, vllm_config):
                pass

            @classmethod
            def pre_register_and_update(cls, parser=None):
                cls.config().model_config.gone

            @classmethod
            def config(cls) -> VllmConfig:
                ...
    """
    made = {found.kind: found for found in findings(trees, source)}
    assert set(made) == {"override-signature", "missing-attribute"}
    assert {found.severity for found in made.values()} == {"start-up"}
    assert {found.level for found in made.values()} == {"error"}


def test_a_replacement_of_what_is_gone_is_a_note(trees):
    (found,) = findings(trees, "import vllm.config\nvllm.config.gone = len\n")
    assert (found.kind, found.level) == ("replacement-target", "note")


def test_what_the_plugin_puts_there_itself_is_no_error(trees):
    source = "import vllm.config\nvllm.config.extra = len\nfrom vllm.config import extra\n"
    assert {found.level for found in findings(trees, source)} == {"note"}


def test_a_keyword_for_a_positional_only_parameter(trees):
    core = {**CORE, "vllm/ops.py": "def op(x, /, y=1):\n    ...\n"}
    (found,) = findings(trees, "from vllm.ops import op\nop(x=1)\n", core=core)
    assert (found.kind, found.name) == ("call-argument", "x")
    assert findings(trees, "from vllm.ops import op\nop(1, y=2)\n", core=core) == []
    assert findings(trees, "from vllm.ops import op\nop(*[1, 2, 3])\n", core=core) == []


def test_a_kernel_launch_that_leaves_out_a_parameter(trees):
    kernel = "import triton\n\n\n@triton.jit\ndef kernel(a, b, SIZE):\n    ...\n"
    core = {**CORE, "vllm/kernels.py": kernel}
    (found,) = findings(trees, "from vllm.kernels import kernel\nkernel[(1,)](1, SIZE=2, num_warps=4)\n", core=core)
    assert (found.kind, found.name) == ("call-argument", "b")
    assert (
        findings(trees, "from vllm.kernels import kernel\nkernel[(1,)](1, 2, SIZE=2, num_warps=4)\n", core=core) == []
    )


FIELDS = "from dataclasses import dataclass\n\n\n@dataclass\nclass Batch:\n    {}\n    {}\n"


@pytest.mark.parametrize(("first", "second", "level"), [("size", "names", None), ("names", "size", "warning")])
def test_fields_passed_by_position_in_another_order(trees, first, second, level):
    core = {**CORE, "vllm/batch.py": FIELDS.format(f"{first}: int", f"{second}: int")}
    source = "from vllm.batch import Batch\n\n\ndef make(size, names):\n    return Batch(size, names)\n"
    assert [found.level for found in findings(trees, source, core=core)] == ([level] if level else [])


@pytest.mark.parametrize(("body", "count"), [("self.a = 1", 1), ("super().__init__()", 0), ("self.b = 2", 0)])
def test_an_attribute_that_only_the_cores_own_init_sets(trees, body, count):
    runner = """
        class GPUModelRunner:
            def __init__(self):
                self.a = 1
                self.b = 2

            def execute_model(self, output):
                return self.a, self.b
    """
    source = f"""
        from vllm.runner import GPUModelRunner


        class Runner(GPUModelRunner):
            def __init__(self):
                self.a = 1
                {body}
    """
    found = findings(trees, source, core={**CORE, "vllm/runner.py": runner})
    assert [(one.kind, one.name, one.severity) for one in found] == [("uninitialised", "b", "first-step")] * count
    assert [one.core_line for one in found] == [trees.line({"x": runner}, "x", "return self.a")] * count


RUNTIME = """
    from vllm.config import ModelConfig


    def make(cls: type[ModelConfig], config: ModelConfig):
        {before}
        return {call}
"""


@pytest.mark.parametrize(
    ("before", "call", "level"),
    [
        ("pass", "ModelConfig()", "warning"),
        ("fields = ModelConfig._fields", "ModelConfig() if fields else None", "note"),
        ("import inspect; inspect.signature(ModelConfig)", "config and ModelConfig()", "note"),
        ("import inspect; inspect.signature(ModelConfig)", "ModelConfig()", "warning"),  # whatever it saw there
        ("ModelConfig.__init__ = lambda self: None", "ModelConfig()", "note"),
    ],
)
def test_code_that_looks_first_or_patches_first_is_not_sure(trees, before, call, level):
    made = findings(trees, RUNTIME.format(before=before, call=call))
    assert [found.level for found in made if found.kind == "call-argument"] == [level]


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        ("old = vllm_version_is('0.29.0')", "pass", 0),
        ("old = vllm_version_is('0.29.0')", "old = x", 1),
        ("pass", "pass", 1),
    ],
)
def test_a_local_name_that_the_version_decides(trees, first, second, count):
    source = IMPORTED + f"def f(x, old=None):\n    {first}\n    {second}\n    if old:\n        import vllm.gone\n"
    assert len(findings(trees, source)) == count


NOTHING = """
    from vllm_ascend.utils import vllm_version_is

    if not vllm_version_is({version!r}):
        from vllm.config import Gone
    else:
        Gone = None


    def f():
        if Gone is not None:
            import vllm.gone
"""


@pytest.mark.parametrize(("version", "kinds"), [("0.30.0", []), ("0.29.0", ["missing-name", "missing-module"])])
def test_a_name_that_is_none_on_this_core(trees, version, kinds):
    assert [found.kind for found in findings(trees, NOTHING.format(version=version))] == kinds


@pytest.mark.parametrize(
    ("guard", "level"), [("for each in (1,)", "error"), ("with contextlib.suppress(ImportError)", "warning")]
)
def test_a_function_that_is_called_at_import_under_a_handler(trees, guard, level):
    source = f"import contextlib\n\n\ndef patch():\n    import vllm.gone\n\n\n{guard}:\n    patch()\n"
    assert [(found.line, found.level) for found in findings(trees, source)] == [(5, level)]


STATIC = """
    class SpeculativeConfig:
        @staticmethod
        def override(config):
            return config

        def check(self, config):
            return config

        def make(self, config):
            self.check(config)
            return SpeculativeConfig.override(config)
"""


@pytest.mark.parametrize(("parameters", "kinds"), [("config", []), ("config, more", ["replacement-signature"])])
def test_a_function_in_place_of_a_static_method(trees, parameters, kinds):
    source = f"""
        from vllm.spec import SpeculativeConfig


        def override({parameters}):
            return config


        def check(self, config):
            return config


        SpeculativeConfig.override = override
        SpeculativeConfig.check = check
    """
    made = findings(trees, source, core={**CORE, "vllm/spec.py": STATIC})
    assert [found.kind for found in made if found.level != "note"] == kinds
