"""The snapshot on a real device: torch alone, the accelerator that is here, else the CPU, whose copies are synchronous.

`nox -s device-tests` runs it and says which device that was. The output below is this file's own, made like vLLM's: a
copy stream behind the step's stream, copies by `.to()`, one event.
"""

import time

import numpy as np
import pytest
import torch
from kv_plan_guard.adapters.gate import Riding
from kv_plan_guard.adapters.snapshot import Pool, new_event

pytestmark = pytest.mark.device

ACCELERATOR = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
DEVICE = torch.device(ACCELERATOR.type, 0) if ACCELERATOR is not None else torch.device("cpu")
needs_queue = pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator here: a CPU's copies are synchronous")


def module():
    return torch.get_device_module(DEVICE)


def plan(tokens, rows, columns, value=0):
    """Tensors as a runner has them: persistent buffers, sliced, of two types."""
    return {
        "positions": torch.arange(value, value + tokens, dtype=torch.int64, device=DEVICE),
        "0.block_table": torch.full((rows, columns + 3), 7 + value, dtype=torch.int32, device=DEVICE)[:, :columns],
        "0.slot_mapping": torch.arange(tokens, dtype=torch.int32, device=DEVICE) + value,
        "0.seq_lens": torch.full((rows,), tokens + value, dtype=torch.int32, device=DEVICE),
    }


def expected(tensors):
    return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}


def busy():
    """Work that keeps the step's stream occupied for a while."""
    work = torch.randn(2048, 2048, device=DEVICE)
    for _ in range(60):
        work = work @ work * 1e-3
    return work


class Output:
    """An output that copies what it is given on its own stream, behind the step's."""

    def __init__(self, num_sampled_tokens, copy_stream):
        if ACCELERATOR is None:
            self.num_sampled = num_sampled_tokens.to("cpu", non_blocking=True)
            self.event = new_event(DEVICE)
            return
        main = module().current_stream()
        with module().stream(copy_stream):
            copy_stream.wait_stream(main)
            self.num_sampled = num_sampled_tokens.to("cpu", non_blocking=True)
            self.event = module().Event()
            self.event.record(copy_stream)

    def get(self):
        if ACCELERATOR is not None:
            self.event.synchronize()
        return self.num_sampled


@pytest.fixture
def pool():
    return Pool(DEVICE, pin=ACCELERATOR is not None)


@pytest.fixture(scope="module")
def copy_stream():
    return module().Stream() if ACCELERATOR is not None else None


def test_what_is_read_is_what_was_packed(pool, copy_stream):
    tensors = plan(33, 3, 5)
    snapshot = pool.pack(list(tensors.items()))
    output = Output(Riding(torch.ones(3, dtype=torch.int32, device=DEVICE), snapshot), copy_stream)
    assert output.get().tolist() == [1, 1, 1]
    landed = snapshot.read()
    for name, want in expected(tensors).items():
        assert landed[name].dtype == want.dtype
        np.testing.assert_array_equal(landed[name], want)


def test_mutation_on_the_device_after_the_snapshot(pool, copy_stream):
    tensors = plan(64, 2, 4)
    want = expected(tensors)
    blocker = busy() if ACCELERATOR is not None else None
    snapshot = pool.pack(list(tensors.items()))
    for tensor in tensors.values():
        tensor.fill_(-5)  # the next step's buffers: same stream, so behind the packing
    output = Output(Riding(torch.ones(2, dtype=torch.int32, device=DEVICE), snapshot), copy_stream)
    output.get()
    for name, value in want.items():
        np.testing.assert_array_equal(snapshot.read()[name], value)
    del blocker


@needs_queue
def test_delayed_readers_the_copy_lands_behind_its_event_and_not_before(pool, copy_stream):
    tensors = plan(4096, 8, 64)
    want = expected(tensors)
    module().synchronize()
    blocker = busy()
    snapshot = pool.pack(list(tensors.items()))
    snapshot.buffers.host.fill_(-987654321)
    output = Output(Riding(torch.ones(8, dtype=torch.int32, device=DEVICE), snapshot), copy_stream)
    assert not output.event.query(), "the device was not busy: this run proves nothing"
    assert (snapshot.read()["0.seq_lens"] == -987654321).all(), "landed before its event"
    output.get()
    for name, value in want.items():
        np.testing.assert_array_equal(snapshot.read()[name], value)
    del blocker


def test_buffers_are_reused_while_shapes_alternate(pool, copy_stream):
    def step(tokens, rows, columns, value):
        tensors = plan(tokens, rows, columns, value)
        snapshot = pool.pack(list(tensors.items()))
        output = Output(Riding(torch.ones(rows, dtype=torch.int32, device=DEVICE), snapshot), copy_stream)
        output.get()
        for name, want in expected(tensors).items():
            np.testing.assert_array_equal(snapshot.read()[name], want)
        snapshot.release()

    shapes = [(2048, 1, 16), (8, 8, 64), (600, 8, 64), (16384, 1, 128)]
    for tokens, rows, columns in shapes:
        step(tokens, rows, columns, 1)
    warm = pool.allocated
    for number in range(40):
        step(*shapes[number % len(shapes)], number)
    assert pool.allocated == warm


def test_two_snapshots_in_flight_do_not_share_buffers(pool):
    first = pool.pack(list(plan(16, 2, 2, 1).items()))
    second = pool.pack(list(plan(16, 2, 2, 2).items()))
    assert first.buffers.array.ctypes.data != second.buffers.array.ctypes.data
    first.release()
    first.release()  # a second call gives nothing back twice
    third, fourth = (pool.pack(list(plan(16, 2, 2, 3).items())) for _ in range(2))
    assert third.buffers.array.ctypes.data != fourth.buffers.array.ctypes.data


def test_a_copy_on_the_steps_stream_is_covered_by_the_outputs_event(pool, copy_stream):
    tensors = plan(2048, 4, 32)
    blocker = busy() if ACCELERATOR is not None else None
    snapshot = pool.pack(list(tensors.items()))
    snapshot.issue()
    output = Output(torch.ones(4, dtype=torch.int32, device=DEVICE), copy_stream)
    output.get()
    for name, want in expected(tensors).items():
        np.testing.assert_array_equal(snapshot.read()[name], want)
    del blocker


def test_an_event_of_a_rank_without_output_is_only_asked(pool):
    tensors = plan(512, 4, 8)
    want = expected(tensors)
    blocker = busy() if ACCELERATOR is not None else None
    snapshot = pool.pack(list(tensors.items()))
    snapshot.issue()
    event = new_event(DEVICE)
    event.record()
    deadline = time.monotonic() + 60
    while not event.query():
        assert time.monotonic() < deadline
    for name, value in want.items():
        np.testing.assert_array_equal(snapshot.read()[name], value)
    del blocker


def test_a_tensor_of_another_type_is_refused_by_name(pool):
    with pytest.raises(TypeError, match=r"'0\.slots' has type torch\.float32"):
        pool.pack([("0.slots", torch.zeros(3, device=DEVICE))])


def test_a_rider_that_is_copied_twice_issues_once(pool):
    snapshot = pool.pack(list(plan(4, 1, 1).items()))
    rider = Riding(torch.ones(1, dtype=torch.int32, device=DEVICE), snapshot)
    assert rider.shape == (1,)  # everything else is the tensor's own
    rider.to("cpu")
    first = snapshot.read()["0.seq_lens"].copy()
    snapshot.buffers.device.zero_()
    rider.to("cpu")
    np.testing.assert_array_equal(snapshot.read()["0.seq_lens"], first)
