"""Two processes share the work on a plugin and find what one finds."""

import os
import threading

import pytest
from vllm_pairs.doctor import Workbench, checks, engine
from vllm_pairs.doctor.findings import DoctorError
from vllm_pairs.doctor.twin import Twin, can_fork

CORE = {
    "vllm/core.py": """
        def load(path, *, depth=0):
            return path


        class Runner:
            def step(self, tokens, scale=1):
                return tokens

            def run(self):
                return self.step(1, scale=load("x", depth=1))
    """
}
PLUGIN = {
    "vllm_ascend/__init__.py": "from vllm_ascend import patch, runner\n",
    "vllm_ascend/patch.py": "import vllm.core\n\n\ndef ours(path):\n    return path\n\n\nvllm.core.load = ours\n",
    "vllm_ascend/runner.py": """
        from vllm.core import Runner, gone


        class Ours(Runner):
            def step(self, tokens):
                return tokens
    """,
    "vllm_ascend/puts.py": "import vllm.core\n\nvllm.core.put = len\n",
    "vllm_ascend/reads.py": "from vllm.core import put\n\nput(1)\n",
}


def findings(trees, processes):
    bench = Workbench(processes=processes)
    return bench.run(bench.core(trees.core(CORE)), bench.plugin(trees.plugin(PLUGIN))).findings


def test_both_find_the_same(trees, monkeypatch):
    made = []
    monkeypatch.setattr(engine, "FEW", 0)
    monkeypatch.setattr(engine, "can_fork", lambda: True)
    monkeypatch.setattr(checks, "Twin", lambda work: made.append(Twin(work)) or made[-1])
    alone = findings(trees, 1)
    assert not made
    assert findings(trees, 2) == alone
    assert len(made) == 1
    said = {(one.kind, one.name) for one in alone if one.level != "note"}
    assert said == {("replacement-signature", "depth"), ("override-signature", "scale"), ("missing-name", "gone")}


@pytest.mark.parametrize("put_by_the_copy", [True, False])
def test_what_one_half_puts_there_the_other_half_may_read(trees, monkeypatch, put_by_the_copy):
    monkeypatch.setattr(engine, "FEW", 0)
    monkeypatch.setattr(engine, "can_fork", lambda: True)

    def shares(analysis, modules):
        rest = [name for name in modules if name != "vllm_ascend.puts"]
        return (rest, ["vllm_ascend.puts"]) if put_by_the_copy else (["vllm_ascend.puts"], rest)

    monkeypatch.setattr(checks, "_shares", shares)
    assert not [one for one in findings(trees, 2) if one.name == "put" and one.level != "note"]


def test_where_no_process_can_be_made_one_does_all(trees, monkeypatch):
    tried = []

    def no_room():
        tried.append(len(os.listdir("/proc/self/fd")))
        raise BlockingIOError(11, "Resource temporarily unavailable")

    alone = findings(trees, 1)
    monkeypatch.setattr(engine, "FEW", 0)
    monkeypatch.setattr(engine, "can_fork", lambda: True)
    monkeypatch.setattr(os, "fork", no_room)
    before = len(os.listdir("/proc/self/fd"))
    assert findings(trees, 2) == alone
    assert tried
    assert len(os.listdir("/proc/self/fd")) == before < tried[0]


def test_a_copy_is_asked_and_answered():
    def work(talk):
        return talk(1) + talk(2)

    twin = Twin(work)
    try:
        for expected in (1, 2):
            assert twin.receive() == expected
            twin.send(expected * 10)
        assert twin.receive() == 30
    finally:
        twin.end()


def test_a_copy_that_dies_is_one_error(capfd):
    for end in (lambda talk: os._exit(3), lambda talk: 1 / 0):
        twin = Twin(end)
        with pytest.raises(DoctorError, match="ended before it was done"):
            twin.receive()
        twin.send("nobody listens")
        twin.end()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_copy_that_is_left_waiting_ends():
    twin = Twin(lambda talk: talk("never answered"))
    assert twin.receive() == "never answered"
    twin.end()  # would wait for ever


def test_a_process_with_other_threads_is_not_forked():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        stop.set()
        thread.join()
