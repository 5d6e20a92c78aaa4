"""The kit's own hooks against both trees, and that hooks do without what the doctor needs."""

import subprocess
import sys

import pytest
from vllm_pairs.contract import ast_sha256, signature_text
from vllm_pairs.doctor import Workbench
from vllm_pairs.doctor.hooks import read_hooks

RUNNER = """
    class Base:
        def reach(self, scheduler_output, req_ids=None):
            return req_ids


    class Runner(Base):
        def step(self):
            return 1
"""
HOOKS = """
    from typing import Final

    RUNNER: Final = "vllm.runner:Runner"
    WRAPPED = {{f"{{RUNNER}}.step": ("{digest}",)}}


    def hook(target: str = "vllm.runner:Runner.reach"):
        return Hook(name="x", target=target, signature="{signature}")
"""


@pytest.fixture
def check(trees, tmp_path, make_module):
    module = make_module("runner_of_the_hook_test", RUNNER)
    right = {"digest": ast_sha256(module.Runner.step), "signature": signature_text(module.Runner.reach)}

    def run(runner=RUNNER, **hook):
        trees.write("hooks", {"hooks_here/x.py": HOOKS.format(**{**right, **hook})}, name="x", version=None)
        bench = Workbench(processes=1)
        core = bench.core(trees.core({"vllm/runner.py": runner}))
        plugin = bench.plugin(trees.plugin({"vllm_ascend/x.py": ""}))
        return bench.run(core, plugin, read_hooks(tmp_path / "hooks" / "hooks_here")).findings

    return run


def test_hooks_that_fit_are_nothing(check):
    assert check() == ()


@pytest.mark.parametrize(
    ("runner", "name", "word"),
    [
        (RUNNER.replace("return 1", "return 2"), "step", "body"),
        (RUNNER.replace("def step", "def stride"), "step", "has no step"),
        (RUNNER.replace("def reach", "def grasp"), "reach", "has no reach"),
        (RUNNER.replace("req_ids=None", "req_ids"), "reach", "signature"),
        (RUNNER.replace("class Runner", "class Walker"), "step", "no class Runner"),
    ],
)
def test_a_hook_that_would_be_refused(check, runner, name, word):
    found = [one for one in check(runner) if one.name == name]
    assert [(one.kind, one.level, one.file) for one in found] == [("hook-target", "warning", "hooks_here/x.py")]
    assert word in found[0].message


def test_a_module_that_is_gone(check):
    assert {one.core_has for one in check("")} == {"no Runner"}


def test_the_kits_own_hooks_are_found():
    from pathlib import Path

    import vllm_pairs

    targets = {source.target for source in read_hooks(Path(vllm_pairs.__file__).parent)}
    assert any(target.endswith("WorkerWrapperBase.init_device") for target in targets)


def test_hooks_need_neither_griffe_nor_packaging():
    code = "import sys, vllm_pairs, vllm_pairs.cli; assert not {'griffe', 'packaging'} & set(sys.modules), sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
