"""A plugin's class in place of a core class: its members must be what the core calls."""

import pytest

CORE = """
    class Buffer:
        def __init__(self, size):
            self.size = size

        def view(self, n=None):
            return self.size


    class Writer:
        def __init__(self, size):
            self.buffer = Buffer(size)
            self.now = self.buffer.view(n=1)
            self.length = self.buffer.size
"""
PLUGIN = """
    import vllm.buffers


    class Ours{base}:
        def __init__(self, size):
            self.size = size

        {member}


    vllm.buffers.Buffer = Ours
"""
WRONG = {
    "@property\n        def view(self):\n            return 1": ("override-kind", "vllm_ascend:Ours.view", "view"),
    "def view(self):\n            return 1": ("replacement-signature", "vllm_ascend:Ours.view", "n"),
    "def other(self):\n            return 1": ("substitute-member", "vllm_ascend:Ours.view", "view"),
}
RIGHT = {
    "def view(self, n):\n            return n": "",
    "def view(self, **rest):\n            return 1": "",
    "view = staticmethod(len)": "",
    "def __getattr__(self, name):\n            return len": "",
    "def other(self):\n            return 1": "(vllm.buffers.Buffer)",  # the core's own is inherited
}


def found(trees, member, base=""):
    source = PLUGIN.format(member=member, base=base)
    report = trees.examine({"vllm/buffers.py": CORE}, {"vllm_ascend/__init__.py": source})
    return [one for one in report.findings if one.level != "note"]


@pytest.mark.parametrize("member", WRONG)
def test_a_member_that_cannot_take_the_cores_own_call(trees, member):
    (one,) = found(trees, member)
    assert (one.kind, one.symbol, one.name) == WRONG[member]
    assert (one.core_file, one.core_line) == ("vllm/buffers.py", 13)
    assert one.confidence == "high"


@pytest.mark.parametrize("member", RIGHT)
def test_a_member_that_can(trees, member):
    assert found(trees, member, RIGHT[member]) == []


VALUES = """
    import vllm.buffers


    class Ours:
        {member}

        def view(self, n=None):
            return 1


    vllm.buffers.Buffer = Ours
"""


@pytest.mark.parametrize(
    ("member", "kinds"),
    [
        ("def size(self):\n            return 1", ["override-kind"]),
        ("length = 1", ["substitute-member"]),
        ("size = 1", []),
        ("def __init__(self, size):\n            self.size = size", []),
        ("@property\n        def size(self):\n            return 1", []),
    ],
)
def test_a_value_that_the_core_reads(trees, member, kinds):
    report = trees.examine({"vllm/buffers.py": CORE}, {"vllm_ascend/__init__.py": VALUES.format(member=member)})
    made = [one for one in report.findings if one.level != "note" and one.kind != "replacement-signature"]
    assert [one.kind for one in made] == kinds
    assert all((one.symbol, one.core_line) == ("vllm_ascend:Ours.size", 14) for one in made)


CHOSEN = """
    import vllm.buffers

    if print():
        from vllm_ascend.one import Ours
    else:
        from vllm_ascend.other import Ours

    vllm.buffers.Buffer = Ours
"""
OURS = "from vllm.buffers import Buffer\n\n\nclass Ours(Buffer):\n    def __init__({}):\n        self.size = 1\n"
TAKES, REFUSES = OURS.format("self, size"), OURS.format("self")
RUNNER = """
    from vllm.buffers import GPUModelRunner


    class NPUModelRunner(GPUModelRunner):
        pass
"""


@pytest.mark.parametrize(
    ("one", "other", "files", "levels"),
    [
        (TAKES, TAKES, [], []),
        (REFUSES, TAKES, ["vllm_ascend/one.py"], ["warning"]),
        (REFUSES, REFUSES, ["vllm_ascend/one.py", "vllm_ascend/other.py"], ["error", "error"]),
    ],
)
def test_a_class_that_a_branch_chooses(trees, one, other, files, levels):
    core = CORE.replace("class Writer", "class GPUModelRunner")
    plugin = {"vllm_ascend/__init__.py": CHOSEN, "vllm_ascend/one.py": one, "vllm_ascend/other.py": other}
    plugin["vllm_ascend/runner.py"] = RUNNER
    made = [one for one in trees.examine({"vllm/buffers.py": core}, plugin).findings if one.level != "note"]
    assert [one.file for one in made] == files
    assert [one.level for one in made] == levels
    assert all((one.kind, one.line, one.core_line) == ("replacement-signature", 5, 12) for one in made)
