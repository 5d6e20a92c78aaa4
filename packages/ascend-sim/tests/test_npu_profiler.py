"""npu-smoke's profiler files: copies and waits of hand-made traces, and when the recorder profiles. No NPU involved."""

import sys
import types
from pathlib import Path

import pytest
from ascend_sim.smoke import npu_compare, npu_engine, npu_profile, npu_worker
from ascend_sim.smoke.npu_plan import OFF

HAND_MADE = Path(__file__).parent / "npu_profiles"


@pytest.mark.parametrize(("name", "copies", "waits"), [("hand-made-off", 3, 2), ("hand-made-on", 2, 1)])
def test_copies_and_waits_of_a_hand_made_trace(name, copies, waits):
    counts = npu_profile.read(HAND_MADE / f"{name}.json")
    assert counts.profiler_steps == 2
    assert counts.by_kind == {
        npu_profile.D2H: 2 * copies,
        npu_profile.WAIT_EVENT: 2 * waits,
        npu_profile.HOST_EVENT_WAIT: 2 * waits,
        npu_profile.HOST_STREAM_WAIT: 0,
        npu_profile.ACL_STREAM_WAIT: 2 * waits,
        npu_profile.DEVICE_D2H: 2 * copies,
        npu_profile.DEVICE_EVENT_WAIT: 2 * waits,
    }
    assert counts.unmatched == {}


def event(name, ph="X", **args) -> dict:
    return {"ph": ph, "name": name, "pid": 1, "tid": 1, "ts": "1.0", "dur": 1, "args": args}


@pytest.mark.parametrize(
    ("events", "kind", "expected"),
    [
        ([event("Enqueue@wait_event"), event("Dequeue@wait_event")], npu_profile.WAIT_EVENT, 1),
        ([event("Dequeue@wait_event")] * 2, npu_profile.WAIT_EVENT, 2),
        ([event("acl_memcpy_device_to_host")], npu_profile.D2H, 1),
        ([event("Enqueue@acl_memcpy_device_to_host", ph="s")], npu_profile.D2H, 0),
        ([event("Enqueue@acl_memcpy_host_to_device")], npu_profile.D2H, 0),
        ([event("AscendCL@aclrtSynchronizeStreamWithTimeout")], npu_profile.HOST_STREAM_WAIT, 1),
        ([event("AscendCL@aclrtSynchronizeEvent")], npu_profile.HOST_EVENT_WAIT, 1),
        ([event("MEMCPY_ASYNC", operation="host to device")], npu_profile.DEVICE_D2H, 0),
        ([event("Notify_Wait")], npu_profile.DEVICE_EVENT_WAIT, 0),
    ],
)
def test_rules_of_the_names(events, kind, expected):
    assert npu_profile.count(events).by_kind[kind] == expected


def test_a_renamed_event_is_reported_and_no_silent_zero():
    counts = npu_profile.count(
        [event("Enqueue@acl_memcpy_d2h_v2"), event("AscendCL@aclrtEventWaitV2"), event("MatMul")]
    )
    assert set(counts.unmatched) == {"Enqueue@acl_memcpy_d2h_v2", "AscendCL@aclrtEventWaitV2"}
    assert not any(counts.by_kind.values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a trace"),
        ("[]", "holds no complete event"),
        ('{"a": 1}', "is no Chrome trace"),
        ('[{"ph": "M"}, 3, null]', "holds no complete event"),
        ("[" * 100_000, "cannot be read as a trace"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "trace_view.json"
    path.write_text(text)
    with pytest.raises(npu_profile.ProfileError, match=rf"'trace_view.json' {message}"):
        npu_profile.read(path)


def exported(folder: Path, name: str, rank: int = 0) -> None:
    target = folder / f"rank{rank}_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    target.mkdir(parents=True)
    (target / "trace_view.json").write_bytes((HAND_MADE / f"{name}.json").read_bytes())


def test_profile_of_exported_traces(tmp_path):
    recorded = {"source": "torch_npu.profiler", "steps": 2}
    exported(tmp_path, "hand-made-off")
    found = npu_compare.from_traces("eager", OFF, recorded, tmp_path)
    assert found.status == "recorded"
    assert {name: found.counts[name] for name in ("d2h", "wait_event", "host_wait")} == {
        "d2h": 6,
        "wait_event": 4,
        "host_wait": 4,
    }
    short = npu_compare.from_traces("eager", OFF, {**recorded, "steps": 8}, tmp_path)
    assert (short.status, short.reason) == ("failed", "the trace has 2 ProfilerStep spans, 8 steps were recorded")
    missing = npu_compare.from_traces("eager", OFF, recorded, tmp_path / "nowhere")
    assert (missing.status, missing.reason) == ("failed", "the profiler exported no trace_view.json")


class Profiler(types.ModuleType):
    """Stands where torch_npu.profiler does on a host with one: exports at the end of its schedule, as that does."""

    ExportType = types.SimpleNamespace(Text="text")
    ProfilerLevel = types.SimpleNamespace(Level1="level1")
    ProfilerActivity = types.SimpleNamespace(CPU="cpu", NPU="npu")

    def __init__(self) -> None:
        super().__init__("torch_npu.profiler")
        self.recorded, self.stopped = 0, False

    def _ExperimentalConfig(self, **options):  # the name is torch_npu's
        return options

    def schedule(self, *, wait, warmup, active, repeat):
        return wait, warmup, active, repeat

    def tensorboard_trace_handler(self, folder, worker_name):
        return Path(folder) / f"{worker_name}_1_ascend_pt" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"

    def profile(self, *, activities, schedule, on_trace_ready, experimental_config):
        assert activities == ["cpu", "npu"]
        assert (schedule[0], schedule[1], schedule[3]) == (0, 1, 1)
        self.target, self.active, self.calls = on_trace_ready, schedule[2], -1
        return self

    def start(self):
        self.calls = 0

    def step(self):
        assert self.calls >= 0, "step before start"
        assert not self.stopped
        self.recorded += self.calls > 0  # the first step was the warm-up
        self.calls += 1
        if self.recorded == self.active:
            self.target.parent.mkdir(parents=True)
            self.target.write_text("[]")

    def stop(self):
        self.stopped = True


class Engine:
    """An LLM as the recorder sees it: `steps` engine steps, the first `prefill` of which bring no token."""

    def __init__(self, requests: int, steps: int, prefill: int = 2, leaves_at: int | None = None) -> None:
        self.done, self.rpc = 0, []
        self._plan = (requests, steps, prefill, leaves_at)
        core = types.SimpleNamespace(engine_core=types.SimpleNamespace(scheduler=self))
        self.llm_engine = types.SimpleNamespace(step=self._step, engine_core=core)

    def _step(self):
        self.done += 1
        return []

    @property
    def running(self):
        requests, _, prefill, leaves_at = self._plan
        left = leaves_at is not None and self.done >= leaves_at
        one = types.SimpleNamespace(num_output_tokens=max(0, self.done - prefill))
        return [one] * (requests - left)

    def collective_rpc(self, function, args=()):
        self.rpc.append(function.__name__)
        return [function(types.SimpleNamespace(rank=0), *args)]

    def generate(self):
        for _ in range(self._plan[1]):
            self.llm_engine.step()


@pytest.fixture
def profiler(monkeypatch):
    made = Profiler()
    module = types.ModuleType("torch_npu")
    module.profiler = made
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return made


def test_the_recorder_profiles_decode_steps_only(tmp_path, profiler):
    llm = Engine(requests=8, steps=20)
    recorder = npu_engine.Recorder(llm, 8, 4, tmp_path)
    llm.generate()
    assert recorder.result() == {"source": "torch_npu.profiler", "steps": 4}
    # Two steps of prefill and one with the first tokens, then the warm-up and four recorded ones, then nothing.
    assert llm.rpc == ["start_profile", *["step_profile"] * 5, "stop_profile"]
    assert (profiler.recorded, profiler.stopped) == (4, True)
    assert npu_profile.traces(tmp_path) == [profiler.target]
    assert npu_worker._profiler is None


def test_a_profile_that_ends_too_early_or_loses_a_request_is_an_error(tmp_path, profiler):
    llm = Engine(requests=8, steps=6)
    recorder = npu_engine.Recorder(llm, 8, 4, tmp_path)
    llm.generate()
    with pytest.raises(RuntimeError, match="only 3 of 5 decode steps came after the prefill"):
        recorder.result()
    llm = Engine(requests=8, steps=20, leaves_at=6)
    recorder = npu_engine.Recorder(llm, 8, 4, tmp_path)
    profiler.stopped, profiler.recorded = False, 0
    llm.generate()
    with pytest.raises(RuntimeError, match="only 7 of 8 requests decoded in a recorded step"):
        recorder.result()
