"""The query_start_loc stand-in answers what the dense builder asks, and nothing else."""

import numpy as np
import pytest
from mrv2_metadata.adapters.twin import DeviceTwin
from mrv2_metadata.errors import ProxyError

HOST = np.array([0, 2, 5, 6], np.int32)
DEVICE = np.array([0, 2, 5, 6], np.int32)


def twin(uses=None):
    uses = [] if uses is None else uses
    return DeviceTwin(HOST, DEVICE, "npu:0", lambda: uses.append(1))


def test_the_batch_slice_keeps_the_twin_and_hands_it_out_once():
    uses = []
    sliced = twin(uses)[:3]
    assert isinstance(sliced, DeviceTwin)
    sent = sliced.pin_memory().to("npu:0", non_blocking=True)
    assert np.shares_memory(sent, DEVICE)
    assert sent.tolist() == [0, 2, 5]
    assert uses == [1]


@pytest.mark.parametrize("key", [slice(1, None), slice(None, -1), slice(1, 3), 0])
def test_every_other_read_is_the_plain_host_array(key):
    for holder, host in ((twin(), HOST), (twin()[:3], HOST[:3])):
        assert not isinstance(holder[key], DeviceTwin)
        assert np.array_equal(holder[key], host[key])


@pytest.mark.parametrize("name", ["shape", "tolist", "numpy", "cpu", "data_ptr", "npu"])
def test_anything_else_is_refused_by_name(name):
    with pytest.raises(ProxyError, match=rf"query_start_loc_cpu\.{name}"):
        getattr(twin(), name)


def test_another_device_and_a_longer_slice_are_refused():
    with pytest.raises(ProxyError, match=r"query_start_loc\.to\('npu:1'\)"):
        twin().to("npu:1", non_blocking=True)
    with pytest.raises(ProxyError, match=r"query_start_loc\[:9\].* has 4 values"):
        twin()[:9]


def test_arithmetic_on_the_stand_in_fails():
    with pytest.raises(TypeError):
        twin() - 1
