"""The simulated device's memory, streams and lazy copies, on plain torch without an engine."""

import pickle
import threading
from typing import Any, NamedTuple

import pytest

pytestmark = pytest.mark.engine

torch = pytest.importorskip("torch", reason="needs a pair's environment")

from ascend_sim import counters, runtime  # noqa: E402
from ascend_sim.runtime import late, lazy, streams  # noqa: E402

CPU = torch.device("cpu")  # what vLLM calls `self.device`


@pytest.fixture
def sim(monkeypatch):
    monkeypatch.delenv(lazy.ENV, raising=False)
    yield from installed()


@pytest.fixture
def lazy_sim(monkeypatch):
    monkeypatch.setenv(lazy.ENV, "1")
    yield from installed()


def installed():
    counters.reset()
    runtime.install(torch)
    yield torch.npu
    streams.synchronize()
    runtime.uninstall()
    counters.reset()


def totals():
    return {kind: n for kind, n in counters.totals().items() if n}


def device_tensor(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype).to(CPU)


def test_nothing_is_patched_before_install_and_after_uninstall(sim):
    inside = {name: getattr(torch.Tensor, name) for name in ("to", "copy_", "item", "pin_memory")}
    runtime.uninstall()
    outside = {name: getattr(torch.Tensor, name) for name in inside}
    assert all(inside[name] is not outside[name] for name in inside)
    assert not hasattr(torch, "npu")
    assert torch.device is type(CPU)
    assert "to" not in vars(torch.Tensor)


def test_install_twice_is_install_once(sim):
    once = torch.Tensor.to
    runtime.install(torch)
    assert torch.Tensor.to is once


def test_direction_of_copies(sim):
    host = torch.zeros(4, dtype=torch.int32, pin_memory=True)
    on_device = torch.zeros(4, dtype=torch.int32, device=CPU)
    counters.reset()
    on_device.copy_(host)
    host[:2].copy_(on_device[:2])  # a view is where its storage is
    host.copy_(torch.zeros(4, dtype=torch.int32))
    on_device.copy_(on_device + 1)
    assert totals() == {"h2d": 1, "d2h": 1}
    counters.reset()
    assert on_device.to(CPU) is on_device
    assert host.to("cpu") is host
    assert on_device.to(torch.int64).dtype is torch.int64
    assert totals() == {}
    up = host.to(CPU, non_blocking=True)
    down = on_device.to(device="cpu", dtype=torch.int64)
    (on_device + 1).cpu()
    assert totals() == {"h2d": 1, "d2h": 2}
    assert down.dtype is torch.int64
    assert up.data_ptr() != host.data_ptr()


def test_a_download_and_an_upload_never_alias(sim):
    on_device = device_tensor(1, 2)
    host = on_device.cpu()
    on_device.fill_(9)
    assert host.tolist() == [1, 2]
    again = host.to(CPU)
    host.fill_(7)
    assert again.tolist() == [1, 2]


def test_reads_of_device_memory_count_as_copies_and_reads_of_host_memory_do_not(sim):
    counters.reset()
    torch.tensor([1, 2]).tolist()
    assert totals() == {"tolist": 1}
    on_device = torch.ones(2, device=CPU)
    on_device[0].item()
    assert totals() == {"tolist": 1, "item": 1, "d2h": 1}


def test_npu_device_names_mean_the_cpu_everywhere(sim):
    assert torch.zeros(2, device="npu").device == CPU
    assert torch.zeros(2, device="npu:0").to("npu").device == CPU
    assert torch.device("npu", 0) == CPU
    assert torch.device("npu:1") == CPU
    assert isinstance(CPU, torch.device)
    assert torch.Generator(device="npu").device == CPU
    assert torch.ones(2).npu().device == CPU
    assert torch.full_like(torch.ones(2), 3, device="npu:0").device == CPU
    assert pickle.loads(pickle.dumps({"device": CPU})) == {"device": CPU}
    with torch.device("meta"):
        assert torch.empty(2).device.type == "meta"


def test_a_schema_may_name_the_replaced_device_type(sim):
    def op(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        return x

    assert torch.library.infer_schema(op, mutates_args=()) == "(Tensor x, Device device) -> Tensor"


def test_pinned_memory(sim):
    pinned = torch.empty(3, pin_memory=True)
    assert pinned.is_pinned()
    assert pinned.pin_memory() is pinned
    pageable = torch.ones(3)
    assert not pageable.is_pinned()
    copy = pageable.pin_memory()
    pageable.fill_(5)
    assert copy.is_pinned()
    assert copy.tolist() == [1, 1, 1]
    assert not torch.empty_like(pinned).is_pinned()
    assert torch.empty_like(pinned, pin_memory=True).is_pinned()


def test_waits_are_counted_by_kind(sim):
    side, event = sim.Stream(), sim.Event()
    counters.reset()
    side.wait_stream(sim.current_stream())
    with sim.stream(side):
        event.record()
    side.wait_event(event)
    event.wait()
    assert totals() == {"stream_wait": 3}
    event.synchronize()
    side.synchronize()
    sim.synchronize()
    assert totals() == {"stream_wait": 3, "event_wait": 3}


def test_the_current_stream_is_the_threads_own(sim):
    side, seen = sim.Stream(), []
    with sim.stream(side):
        thread = threading.Thread(target=lambda: seen.append(sim.current_stream()))
        thread.start()
        thread.join()
        assert sim.current_stream() is side
    assert seen == [sim.default_stream()]
    sim.set_stream(side)
    assert sim.current_stream() is side
    with sim.Stream() as inner:
        assert sim.current_stream() is inner
    assert sim.current_stream() is side
    sim.set_stream(sim.default_stream())


def test_event_times_need_timing_and_a_record(sim):
    start, end = sim.Event(enable_timing=True), sim.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    end.record()
    assert start.elapsed_time(end) >= 0
    with pytest.raises(RuntimeError, match="enable_timing"):
        start.elapsed_time(sim.Event())


def test_what_is_not_stood_in_for_is_refused_by_name(sim):
    with pytest.raises(AttributeError, match="'npu_magic'"):
        sim.npu_magic  # noqa: B018
    with pytest.raises(NotImplementedError, match=r"torch\.npu\.NPUGraph: ACL graphs are not simulated"):
        sim.NPUGraph()
    with pytest.raises(NotImplementedError, match=r"torch\.npu\.graph"):
        sim.graph(None)

    class Updatable(sim.NPUGraph):
        pass

    with pytest.raises(NotImplementedError, match="NPUGraph"):
        Updatable()


# ---------------------------------------------------------------------------------------------------------- lazy copies


def download(npu, stream, source):
    """What AsyncOutput does: order, copy, record."""
    stream.wait_stream(npu.current_stream())
    with npu.stream(stream):
        target = source.to("cpu", non_blocking=True)
        event = npu.Event()
        event.record()
    return target, event


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int16]
)
def test_the_target_holds_poison_until_the_wait(lazy_sim, dtype):
    source = torch.tensor([0, 1, 0], dtype=dtype).to(CPU)
    target, event = download(lazy_sim, lazy_sim.Stream(), source)
    array = None if dtype is torch.bfloat16 else target.numpy()
    assert not torch.equal(torch.nan_to_num(target.float()), source.float()) or target.isnan().all()
    event.synchronize()
    assert torch.equal(target, source)
    if array is not None:
        assert array.tolist() == source.tolist()


def test_copy_into_a_pinned_buffer_is_lazy_too_and_lands_in_its_part_only(lazy_sim):
    side = lazy_sim.Stream()
    buffer = torch.full((4,), 5, dtype=torch.int32, pin_memory=True)
    with lazy_sim.stream(side):
        buffer[:2].copy_(device_tensor(1, 2), non_blocking=True)
    assert buffer.numpy().tolist() == [lazy.POISON, lazy.POISON, 5, 5]
    assert buffer[2:].tolist() == [5, 5]
    side.synchronize()
    assert buffer.tolist() == [1, 2, 5, 5]


def test_the_value_is_the_one_at_issue(lazy_sim):
    source = device_tensor(1, 2)
    target, event = download(lazy_sim, lazy_sim.Stream(), source)
    source.fill_(9)
    event.synchronize()
    assert target.tolist() == [1, 2]


@pytest.mark.parametrize("read", [
    lambda t: t.tolist(),
    lambda t: t[0].item(),
    lambda t: t.to(CPU),
    lambda t: torch.zeros(2, dtype=torch.int32).copy_(t),
    lambda t: t.cpu(),
    lambda t: torch.zeros(2, dtype=torch.int32).__setitem__(0, t[1]),
])  # fmt: skip
def test_a_read_before_the_wait_names_reader_and_copy(lazy_sim, read):
    target, event = download(lazy_sim, lazy_sim.Stream(), device_tensor(1, 2))
    with pytest.raises(lazy.LazyCopyError, match=r"test_runtime_copies.py:.*<lambda>.*issued at .*:download:\d+"):
        read(target)
    event.synchronize()
    read(target)


def test_an_event_covers_what_was_queued_before_its_record_only(lazy_sim):
    side = lazy_sim.Stream()
    early, event = download(lazy_sim, side, device_tensor(1))
    late, _ = download(lazy_sim, side, device_tensor(2))
    event.synchronize()
    assert early.tolist() == [1]
    with pytest.raises(lazy.LazyCopyError):
        late.tolist()


def test_a_main_stream_wait_covers_nothing_of_a_side_stream_without_an_order(lazy_sim):
    side = lazy_sim.Stream()
    target, event = download(lazy_sim, side, device_tensor(1))
    lazy_sim.current_stream().synchronize()
    with pytest.raises(lazy.LazyCopyError):
        target.tolist()
    event.wait()  # the main stream now comes after the copy; the host has not waited yet
    with pytest.raises(lazy.LazyCopyError):
        target.tolist()
    lazy_sim.current_stream().synchronize()
    assert target.tolist() == [1]


@pytest.mark.parametrize("order", ["wait_stream", "wait_event"])
def test_orders_between_streams_are_followed_through_a_third(lazy_sim, order):
    first, second, third = lazy_sim.Stream(), lazy_sim.Stream(), lazy_sim.Stream()
    target, event = download(lazy_sim, first, device_tensor(1))
    if order == "wait_stream":
        second.wait_stream(first)
    else:
        second.wait_event(event)
    third.wait_stream(second)
    third.record_event().synchronize()
    assert target.tolist() == [1]


def test_npu_synchronize_covers_every_stream(lazy_sim):
    target, _ = download(lazy_sim, lazy_sim.Stream(), device_tensor(3))
    lazy_sim.synchronize()
    assert target.tolist() == [3]


def test_a_polling_loop_on_query_ends(lazy_sim):
    target, event = download(lazy_sim, lazy_sim.Stream(), device_tensor(3))
    assert event.query() is False
    assert event.query() is True
    assert target.tolist() == [3]


def test_a_target_made_under_inference_mode_lands_outside_it_and_in_another_thread(lazy_sim):
    with torch.inference_mode():
        target, event = download(lazy_sim, lazy_sim.Stream(), device_tensor(3))
    thread = threading.Thread(target=event.synchronize)
    thread.start()
    thread.join()
    assert target.tolist() == [3]


def test_an_event_that_was_never_recorded_covers_nothing(lazy_sim):
    target, _ = download(lazy_sim, lazy_sim.Stream(), device_tensor(3))
    lazy_sim.Event().synchronize()
    with pytest.raises(lazy.LazyCopyError):
        target.tolist()


def test_an_upload_whose_pinned_source_is_reused_too_early_is_named_at_the_next_wait(lazy_sim):
    source = torch.ones(2, pin_memory=True)
    on_device = torch.empty(2, device=CPU)
    on_device.copy_(source, non_blocking=True)
    source.fill_(2)
    with pytest.raises(
        lazy.LazyCopyError, match=r"pinned source of the upload at .*test_runtime_copies.py:.*too_early"
    ):
        lazy_sim.current_stream().synchronize()


def test_reusing_the_source_after_the_wait_is_right(lazy_sim):
    source, side = torch.ones(2, pin_memory=True), lazy_sim.Stream()
    for value in (2.0, float("nan"), 4.0):
        source.to(CPU, non_blocking=True)
        _, event = download(lazy_sim, side, device_tensor(1))
        event.synchronize()  # the side stream came after the main stream's upload
        source.fill_(value)
    lazy_sim.synchronize()


def test_a_pageable_source_may_be_reused_at_once(lazy_sim):
    source = torch.ones(2)
    source.to(CPU, non_blocking=True)
    source.fill_(2)
    lazy_sim.synchronize()


def test_a_blocking_download_waits_for_the_uploads_before_it(lazy_sim):
    source = torch.ones(2, pin_memory=True)
    source.to(CPU, non_blocking=True)
    device_tensor(1).cpu()
    source.fill_(2)
    lazy_sim.synchronize()


def test_a_stream_that_nobody_waits_for_stays_bounded(lazy_sim):
    side, source = lazy_sim.Stream(), device_tensor(1)
    first, _ = download(lazy_sim, side, source)
    for _ in range(streams.MAX_PENDING + 5):
        download(lazy_sim, side, source)
    assert len(side.pending) <= streams.MAX_PENDING
    assert first.tolist() == [1]


def test_without_the_lazy_mode_a_copy_is_there_at_once(sim):
    target, _ = download(sim, sim.Stream(), device_tensor(1, 2))
    assert target.tolist() == [1, 2]


def test_results_on_host_tensors_are_host_tensors(sim):
    a, b = torch.tensor([1, 2]), torch.from_numpy(torch.tensor([3, 4]).numpy())
    index = torch.tensor([0])
    counters.reset()
    target = torch.zeros(2, dtype=torch.int64, pin_memory=True)
    for host in (
        a + b,
        a[index],
        (a - 1).clamp(min=0),
        torch.cat([a, b])[:2],
        torch.where(a > 1, a, b),
        a.to(torch.int32),
    ):
        target[: len(host)].copy_(host)
    assert a.max().item() == 2
    assert totals() == {"item": 1}
    device = torch.zeros(2, dtype=torch.int64, device=CPU)
    target.copy_(a + device)  # one argument on the device: the result is there too
    assert totals() == {"item": 1, "d2h": 1}


class Scores(NamedTuple):
    """As vLLM's LogprobsTensors: some fields are tensors, some are not."""

    token_ids: Any
    values: Any
    lengths: list[int] | None = None


def test_output_tensors_that_say_they_are_on_the_cpu_are_copied_all_the_same(lazy_sim):
    side = lazy_sim.Stream()
    with lazy_sim.stream(side):
        moved = late._to_cpu_nonblocking(Scores(device_tensor(3), device_tensor(0.5, dtype=torch.float32), [1]))
    assert moved.values.isnan().all()
    assert moved.lengths == [1]
    with pytest.raises(lazy.LazyCopyError):
        moved.token_ids.tolist()
    side.synchronize()
    assert (moved.token_ids.tolist(), moved.values.tolist()) == ([3], [0.5])


class Output:
    """Holds copies the way the engine's outputs do."""

    def __init__(self, *held):
        self.array, self.pair = held[0].numpy(), (held[1], 3)


def test_a_holder_that_returns_with_a_pending_copy_is_named(lazy_sim):
    side = lazy_sim.Stream()
    held, event = download(lazy_sim, side, device_tensor(1, 2))
    other = torch.zeros(2)
    for output in (Output(held[1:], other), Output(other, held)):
        with pytest.raises(lazy.LazyCopyError, match=r"^the reader reads the target of the D2H copy issued at"):
            lazy.check_holder(output, "the reader")
    event.synchronize()
    lazy.check_holder(Output(held, held), "the reader")
