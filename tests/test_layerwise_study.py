"""The study's tools: the matrix, the rule on joined results, the packet, and the flow of the Ascend host's part."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
sys.path.insert(0, str(TOOLS))
pytestmark = pytest.mark.engine  # needs layerwise-sched with its tables; no engine is started

layerwise_cells = pytest.importorskip("layerwise_cells")
layerwise_npu = pytest.importorskip("layerwise_npu")
layerwise_packet = pytest.importorskip("layerwise_packet")
layerwise_study = pytest.importorskip("layerwise_study")

from layerwise_sched import make_policy  # noqa: E402
from layerwise_sched.hol import find  # noqa: E402
from layerwise_sched.simulation import Spec, generate, simulate  # noqa: E402
from layerwise_sched.spool import Spool  # noqa: E402
from layerwise_sched.timeline import Code, Timeline  # noqa: E402

LATE = Spec(
    shared_buffers=3, independent=(0, 5, 6, 10), straggler_us=6_000, straggler_layers=(1, 4), steps=4, spread=0.02
)
CONFIG = '{"kv_connector": "AscendStoreConnector", "kv_connector_extra_config": {"use_layerwise": true}}'


def spool(folder, spec, policy, seed):
    """A run as a worker leaves it; returns its spool, and the simulation."""
    folder.mkdir(parents=True)
    result = simulate(generate(spec, seed), make_policy(policy))
    timeline = Timeline(100_000, result.plan)
    timeline.policies.append(policy)
    written = Spool(timeline, folder)
    rings = {name: timeline.ring(name) for name in ("compute", "receive", "send")}
    tasks = {task.cid: task for task in result.tasks}
    for row in result.records:
        if row.code == Code.ENQUEUE:
            rings[row.thread].task(tasks[row.subject], row.value, row.t)
        else:
            rings[row.thread].event(row.code, row.subject, row.value, row.t)
    written.flush()
    return written.path, result


def rig_result(folder, schedule, policy, repeat, spec=LATE, **changes):
    """A result file of the rig, made from a simulated run."""
    name = f"{schedule}.{policy}.{repeat}"
    path, result = spool(folder / f"{name}.timelines", spec, policy, repeat)
    events = find(result.run()).events
    row = {
        "name": name, "schedule": schedule, "policy": policy, "step_ms": [ns / 1e6 for ns in result.step_ns],
        "data_errors": 0, "open_leases": 0, "unfinished": 0, "stage_problems": [], "hol": len(events),
        "hol_pairs": {f"{event.layer}>{event.later[0].run.task.layer}:SAVE_CPU": 1 for event in events},
        "counts": {"reordered": result.counts.reordered}, "timeline": str(path), "impossible": None, **changes,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(row))


def test_the_matrix_covers_what_the_question_asks():
    cells = layerwise_cells.simulated()
    assert len(cells) >= 100
    assert len({cell.name for cell in cells}) == len(cells)
    for axis, least in (("path", 3), ("reuse", 3), ("prefetch", 4), ("layout", 6), ("batch", 2), ("regime", 4)):
        assert len({getattr(cell, axis) for cell in cells}) >= least, axis
    assert {cell.path for cell in cells if cell.default} == {"gva", "range", "key"}
    assert len(layerwise_cells.REAL) >= 10
    runs = layerwise_cells.real_runs(5, 8)
    assert len({run["name"] for run in runs}) == len(runs)


def test_a_cell_has_every_column():
    cell = next(cell for cell in layerwise_cells.simulated() if "two late" in cell.regime and "[0,5" in cell.layout)
    row = layerwise_study.cell_row(cell, 3)
    assert row["policies"]["fifo"]["hol_events"] > 0 == row["policies"]["ready"]["hol_events"]
    assert row["policies"]["ready"]["faults"] == 0
    assert row["verdicts"]["ready"]["answer"] in {"ADOPT", "KEEP FIFO", "INCONCLUSIVE"}
    assert set(row["policies"]["fifo"]["waits_us"]) == {*layerwise_study.WAITS, "hol"}


def joined(tmp_path, **changes):
    real = tmp_path / "real"
    real.mkdir()
    for repeat in range(3):
        for policy in ("fifo", "ready"):
            rig_result(real, "B", policy, repeat, **changes)
            rig_result(real, "A", policy, repeat, spec=Spec(shared_buffers=3, steps=4))
    return layerwise_study.real_rows(real)


def test_real_threads_are_joined_judged_and_replayed(tmp_path):
    rows = {(row["schedule"], row["policy"]): row for row in joined(tmp_path)}
    assert rows["A", "ready"]["verdict"]["answer"] == "KEEP FIFO"
    assert rows["B", "ready"]["verdict"]["answer"] == "ADOPT"
    assert rows["B", "fifo"]["hol_pairs"] == ["4>5:SAVE_CPU"]
    for row in rows.values():
        assert row["replay"]["same_order"] == row["replay"]["steps"] == 12
        assert abs(row["replay"]["median_off_pct"]) < 5
    cells = [layerwise_study.cell_row(cell, 3) for cell in layerwise_cells.simulated() if cell.default][:2]
    overall = layerwise_packet.verdicts(cells, list(rows.values()))[0]
    assert overall["verdict"] == "KEEP FIFO"
    assert "1 gain beyond their noise" in overall["why"]
    found = layerwise_study.summary(cells, list(rows.values()), [])
    assert found["figures"]["real_thread_cells"] == 2
    assert not found["passed"]  # two cells are no matrix
    packet = tmp_path / "packet"
    layerwise_packet.write_packet(packet, cells, list(rows.values()), [], found)
    assert "**Verdict: KEEP FIFO.**" in (packet / "index.md").read_text()
    assert (packet / "timelines" / "B.ready.timeline" / "events.parquet").exists()


@pytest.mark.parametrize("fault", [{"data_errors": 1}, {"open_leases": 2}, {"unfinished": 1}])
def test_a_fault_on_real_threads_is_never_judged_away(tmp_path, fault):
    rows = joined(tmp_path, **fault)
    verdict = next(row["verdict"] for row in rows if (row["schedule"], row["policy"]) == ("B", "ready"))
    assert verdict["answer"] == "INCONCLUSIVE"
    assert not layerwise_study.summary([], rows, [])["passed"]


STAND_IN = """#!{python}
import http.server, json, os, shutil, signal, sys, threading
words = sys.argv[1:]
if words[0] == "bench":
    target = os.path.join(words[words.index("--result-dir") + 1], words[words.index("--result-filename") + 1])
    row = {{"completed": 2, "median_ttft_ms": 10.0, "p99_ttft_ms": 12.0, "output_throughput": 5.0}}
    open(target, "w").write(json.dumps(row))
    sys.exit(0)
key = json.loads(words[words.index("--additional-config") + 1])["layerwise_sched"]
shutil.copytree(os.path.join({spools!r}, key["policy"]), key["timeline"])
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Health)
signal.signal(signal.SIGINT, lambda *_: threading.Thread(target=server.shutdown).start())
server.serve_forever()
"""


def test_the_flow_on_an_ascend_host(tmp_path, monkeypatch, capsys):
    """A stand-in for the `vllm` command: serves a health route, leaves a timeline, writes a bench result."""
    for policy in ("fifo", "ready"):
        spool(tmp_path / "spools" / policy, LATE, policy, 0)
    command = tmp_path / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(STAND_IN.format(python=sys.executable, spools=str(tmp_path / "spools")))
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(layerwise_npu, "refusal", lambda options: None)
    words = [
        "--model",
        "m",
        "--kv-transfer-config",
        CONFIG,
        "--repeats",
        "3",
        "--prompts",
        "2",
        "--out",
        str(tmp_path / "o"),
    ]
    assert layerwise_npu.main(words) == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    assert summary["figures"]["servings"] == 6
    assert summary["rows"][0]["verdict"] == "KEEP FIFO"  # the stand-in's times do not differ
    assert summary["figures"]["hol_events"] > 0
    capsys.readouterr()
    assert layerwise_npu.main(words) == 0  # everything is there: nothing is served again
    assert "repeat" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "words"),
    [("{", "is not JSON"), ("{}", "use_layerwise: true"), (CONFIG, "no NPU here")],
)
def test_the_ascend_part_says_why_it_cannot_run(config, words, capsys):
    if words == "no NPU here" and list(Path("/dev").glob("davinci[0-9]*")):
        pytest.skip("this host has an NPU")
    assert layerwise_npu.main(["--model", "m", "--kv-transfer-config", config]) == 2
    assert words in capsys.readouterr().err
