"""Reads of the core's names: by getattr, before the plugin replaces them, and behind checks that raise."""

import pytest

CORE = {
    "vllm/config.py": """
        class ParallelConfig:
            size = 1


        class VllmConfig:
            parallel_config: ParallelConfig
    """,
    "vllm/utils.py": "def here():\n    ...\n",
    "vllm/platforms.py": """
        from vllm.config import VllmConfig


        class Platform:
            @classmethod
            def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
                pass
    """,
}


def found(trees, source):
    plugin = {
        "vllm_ascend/__init__.py": "def register():\n    return 'vllm_ascend.platform.NPUPlatform'\n",
        "vllm_ascend/platform.py": source,
    }
    return trees.examine(CORE, plugin).findings


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("getattr(utils, 'gone')", ["gone"]),
        ("getattr(utils, 'here')", []),
        ("getattr(utils, 'gone', None)", []),
        ("for name in ('here', 'gone', 'lost'):\n    getattr(utils, name)", ["gone", "lost"]),
        ("for name in dir(utils):\n    getattr(utils, name)", []),
        ("for name in ('gone',):\n    pass\nname = 'here'\ngetattr(utils, name)", []),
    ],
)
def test_getattr_without_a_default_reads(trees, source, names):
    made = found(trees, f"from vllm import utils\n{source}\n")
    assert [(one.kind, one.name, one.level) for one in made] == [("missing-attribute", name, "error") for name in names]


@pytest.mark.parametrize(
    ("source", "level"),
    [
        ("old = utils.gone\nutils.gone = print\n", "error"),
        ("utils.gone = wraps(utils.gone)\n", "error"),
        ("from vllm.utils import gone\nutils.gone = print\n", "error"),
        ("utils.gone = print\nold = utils.gone\n", "note"),
        ("utils.gone = print\ndef later():\n    return utils.gone\n", "note"),
        ("def later():\n    return utils.gone\nutils.gone = print\n", "note"),
    ],
)
def test_a_read_before_the_plugins_own_replacement(trees, source, level):
    made = found(trees, f"from vllm import utils\nfrom functools import wraps\n{source}")
    assert [one.level for one in made if one.kind != "replacement-target"] == [level]


CHECKED = """
    from vllm.config import VllmConfig
    from vllm.platforms import Platform


    class NPUPlatform(Platform):
        @classmethod
        def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
            quant = getattr(vllm_config, "quant_config", None)
            if quant:
                {body}
            vllm_config.parallel_config.gone
"""


@pytest.mark.parametrize(("body", "level"), [("raise ValueError(quant)", "warning"), ("return", "note")])
def test_what_follows_a_check_that_raises_always_runs(trees, body, level):
    made = found(trees, CHECKED.format(body=body))
    assert [(one.name, one.level) for one in made] == [("gone", level)]
