"""Counters by call site and by step; none of this needs torch."""

import json
import os
import subprocess
import sys

import pytest
from ascend_sim import counters
from ascend_sim.counters import D2H, EVENT_WAIT, H2D, ITEM, STREAM_WAIT, TOLIST, Site

RUNNER = Site("vllm_ascend/worker/v2/model_runner.py", "NPUModelRunner._update_seq_lens_cpu", 1118)
OUTPUT = Site("vllm/v1/worker/gpu/async_utils.py", "AsyncOutput.get_output", 168, "output")
BUILDER = Site("vllm_ascend/attention/attention_v1.py", "AscendAttentionMetadataBuilder.build", 362)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.delenv(counters.ENV_DIR, raising=False)
    counters.reset()
    yield
    counters.reset()


def decode_step(**counts):
    counters.begin_step(8, 8, True)
    for site, kinds in counts.items():
        for kind in kinds:
            counters.record(kind, {"runner": RUNNER, "output": OUTPUT, "builder": BUILDER}[site], 32)
    counters.end_step()


def test_averages_are_over_ordinary_decode_steps_only():
    counters.record(H2D, RUNNER, 1000)  # start-up belongs to no step
    counters.begin_step(8, 240, False)
    for _ in range(50):
        counters.record(D2H, RUNNER)
    counters.end_step()
    decode_step(runner=[D2H, EVENT_WAIT], builder=[H2D, TOLIST, TOLIST])
    decode_step(builder=[H2D, TOLIST, TOLIST])
    average = counters.per_decode_step()
    assert average["decode_steps"] == 2
    assert average["d2h"] == 0.5
    assert average["event_waits"] == 0.5
    assert average["h2d_qsl"] == 1.0
    assert average["h2d"] == 1.0
    assert average["tolist_builder"] == 2.0
    assert counters.totals() == {D2H: 51, H2D: 3, EVENT_WAIT: 1, STREAM_WAIT: 0, TOLIST: 4, ITEM: 0}


def test_output_waits_are_kept_apart_from_the_step_and_belong_to_it_even_after_its_end():
    decode_step(output=[D2H, D2H])
    counters.record(EVENT_WAIT, OUTPUT)  # get_output comes between two steps
    decode_step(output=[D2H, D2H])
    counters.record(EVENT_WAIT, OUTPUT)
    average = counters.per_decode_step()
    assert (average["d2h"], average["event_waits"]) == (0.0, 0.0)
    assert (average["output_d2h"], average["output_event_waits"]) == (2.0, 1.0)
    assert [step.total(EVENT_WAIT) for step in counters.steps()] == [1, 1]


def test_no_decode_step_means_zero_and_not_a_division():
    assert set(counters.per_decode_step().values()) == {0.0}


def test_sites_given_as_text_keep_path_function_and_role():
    counters.begin_step(1, 1, True)
    counters.record(D2H, "vllm/v1/worker/gpu/async_utils.py:AsyncOutput.__init__", 64)
    (row,) = counters.to_json()["decode_sites"]
    assert row == {
        "kind": D2H,
        "site": "vllm/v1/worker/gpu/async_utils.py:AsyncOutput.__init__",
        "line": 0,
        "role": "output",
        "count": 1,
        "nbytes": 64,
    }


def compiled(filename, source, name):
    namespace = {"call_site": counters.call_site}
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def test_the_site_is_the_first_frame_outside_torch_and_outside_the_upload_helpers():
    torch_frame = compiled("/x/site-packages/torch/_tensor.py", "def to(): return call_site(1)", "to")
    helper = compiled(
        "/x/site-packages/vllm/utils/torch_utils.py", "def async_tensor_h2d(inner): return inner()", "async_tensor_h2d"
    )
    user = compiled("/x/site-packages/vllm_ascend/worker/v2/m.py", "\n\ndef prepare(f, g):\n    return f(g)", "prepare")
    site = user(helper, torch_frame)
    assert site == Site("vllm_ascend/worker/v2/m.py", "prepare", 4, "step")
    assert str(site) == "vllm_ascend/worker/v2/m.py:prepare"


@pytest.mark.parametrize("filename", ["/x/site-packages/triton/runtime/interpreter.py", "OPS"])
def test_reference_operators_and_interpreted_kernels_are_no_sites(filename):
    if filename == "OPS":
        filename = os.path.join(os.path.dirname(counters.__file__), "ops", "attention.py")
    inner = compiled(filename, "def run(): return call_site(1)", "run")
    assert inner() is None


def test_output_role_comes_from_the_file_of_the_output_copy():
    inner = compiled("/x/site-packages/vllm/v1/worker/gpu/async_utils.py", "def get(): return call_site(1)", "get")
    assert inner().role == "output"
    helper_elsewhere = compiled(
        "/x/site-packages/vllm/v1/worker/gpu/async_utils.py",
        "def async_copy_to_np(): return call_site(1)",
        "async_copy_to_np",
    )
    user = compiled("/x/site-packages/vllm/v1/worker/gpu/spec_decode/utils.py", "def draft(f): return f()", "draft")
    assert user(helper_elsewhere).role == "step"


def test_a_stand_in_that_hides_itself_leaves_the_copy_to_the_output_and_its_own_copy_to_itself():
    source = """
class Snapshot:
    def issue(self):
        return call_site(1)
class Riding:
    def to(self):
        {hidden}
        return call_site(1), Snapshot().issue()
"""
    output = compiled(
        "/x/site-packages/vllm/v1/worker/gpu/async_utils.py",
        "def async_copy_to_np(x): return x.to()",
        "async_copy_to_np",
    )
    made = compiled("/x/site-packages/vllm/v1/worker/gpu/async_utils.py", "def init(f, x): return f(x)", "init")
    roles = {}
    for hidden in ("__tracebackhide__ = True", "pass"):
        riding = compiled("/x/site-packages/guard/gate.py", source.format(hidden=hidden), "Riding")
        roles[hidden] = [str(site).rpartition(":")[2] + " " + site.role for site in made(output, riding())]
    assert roles["__tracebackhide__ = True"] == ["init output", "Snapshot.issue step"]
    assert roles["pass"] == ["Riding.to step", "Snapshot.issue step"], "the check can fail"


def test_old_steps_go_but_the_sums_stay(monkeypatch):
    for _ in range(counters.KEPT_STEPS + 10):
        counters.begin_step(1, 1, True)
        counters.record(H2D, BUILDER)
    assert len(counters.steps()) == counters.KEPT_STEPS
    assert counters.per_decode_step()["decode_steps"] == counters.KEPT_STEPS + 10
    assert counters.totals()[H2D] == counters.KEPT_STEPS + 10


def test_write_is_whole_or_not_at_all(tmp_path):
    decode_step(builder=[H2D])
    target = tmp_path / "c.json"
    counters.write(target)
    assert json.loads(target.read_text())["per_decode_step"]["h2d_qsl"] == 1.0
    with pytest.raises(OSError, match="missing"):
        counters.write(tmp_path / "missing" / "c.json")
    assert [p.name for p in tmp_path.iterdir()] == ["c.json"]


PROCESS = """
import os, sys
from ascend_sim import counters
def steps(n):
    for _ in range(n):
        counters.begin_step(2, 2, True)
        counters.record(counters.H2D, "vllm_ascend/a.py:B.build")
        counters.end_step()
steps({n})
if {fork}:
    pid = os.fork()
    if not pid:
        steps(3)
        sys.exit(0)
    os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("fork", [False, True])
def test_every_process_writes_its_own_file_at_exit(tmp_path, fork):
    folder = tmp_path / "counters"
    environment = {**os.environ, counters.ENV_DIR: str(folder)}
    subprocess.run([sys.executable, "-c", PROCESS.format(n=5, fork=fork)], env=environment, check=True, timeout=60)
    written = sorted(json.loads(path.read_text())["steps"] for path in folder.glob("counters-*.json"))
    assert written == ([3, 5] if fork else [5])
    assert not list(folder.glob("*.tmp"))


def test_a_long_run_is_written_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setenv(counters.ENV_DIR, str(tmp_path))
    monkeypatch.setattr(counters, "_start_writer", lambda: None)
    monkeypatch.setattr(counters, "WRITE_EVERY_S", float("inf"))
    for _ in range(counters.WRITE_EVERY_STEPS - 1):
        decode_step()
    assert not list(tmp_path.iterdir())
    decode_step()
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["steps"] == counters.WRITE_EVERY_STEPS


def test_a_folder_that_cannot_be_written_warns_and_the_step_goes_on(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(counters.ENV_DIR, str(tmp_path / "file"))
    monkeypatch.setattr(counters, "_start_writer", lambda: None)
    monkeypatch.setattr(counters, "WRITE_EVERY_STEPS", 1)
    decode_step()
    assert "counters are not written" in caplog.text
    assert counters.per_decode_step()["decode_steps"] == 1


def test_importing_the_counters_imports_no_torch_and_no_numpy():
    code = "import sys, ascend_sim.counters; print(sorted({'torch', 'numpy', 'vllm', 'rich'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
