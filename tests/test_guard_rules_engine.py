"""kv-plan-guard's rules for context parallel groups against the functions of vLLM and vllm-ascend that make the plans:
local slots, local lengths, and the pieces of a prefill, over sizes, ranks and interleaves. No engine is started.
"""

import importlib
import inspect

import ascend_sim
import numpy as np
import pytest
from ascend_sim import kernels
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kv_plan_guard import GroupLayout, rules

torch = pytest.importorskip("torch", reason="needs a pair's environment")

pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::RuntimeWarning"),
]
FEW = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def interpreted() -> None:
    """The simulator active; every kernel in Triton's interpreter, so that vLLM's own code is what the rules meet."""
    ascend_sim.activate()
    importlib.import_module("vllm.config")  # as an engine does it: vLLM first
    importlib.import_module("vllm_ascend.ops")  # before the runner's modules: the two import each other
    importlib.import_module("vllm.v1.worker.cpu.shm")  # host memory stands for device memory, as in the CPU worker
    importlib.import_module("vllm.v1.worker.gpu.block_table")
    kernels.remove()


def layout(block: int, shards: int, rank: int, interleave: int, kernel: int | None = None) -> GroupLayout:
    return GroupLayout(
        "full", block, 1000, kernel_block_size=kernel, shards=shards, shard_rank=rank, interleave=interleave
    )


def expected_slots(group: GroupLayout, row: list[int], positions: np.ndarray) -> list[int]:
    mine, columns, offsets = rules.kernel_column_and_offset(group, positions)
    kernel = [b * group.ratio + j for b in row for j in range(group.ratio)]
    slots = []
    for own, column, offset in zip(mine.tolist(), columns.tolist(), offsets.tolist(), strict=True):
        slots.append(kernel[column] * group.kernel_size + offset if own else -1)
    return slots


def real_slots(group: GroupLayout, row: list[int], positions: np.ndarray) -> list[int]:
    from vllm.v1.worker.gpu.block_table import BlockTables

    arguments = {
        "block_sizes": [group.block_size],
        "max_num_reqs": 4,
        "max_num_batched_tokens": 512,
        "max_num_blocks_per_group": [64],
        "max_model_len": 4096,
        "device": torch.device("cpu"),
        "kernel_block_sizes": [group.kernel_size],
        "cp_size": group.shards,
        "cp_rank": group.shard_rank,
        "cp_interleave": group.interleave,
    }
    known = inspect.signature(BlockTables.__init__).parameters
    tables = BlockTables(**{name: value for name, value in arguments.items() if name in known})
    tables.append_block_ids(1, (row,), overwrite=True)
    tables.apply_staged_writes()
    total = len(positions)
    slots = tables.compute_slot_mappings(
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([0, total], dtype=torch.int32),
        torch.from_numpy(positions),
        total,
    )
    return slots[0].tolist()


@FEW
@given(
    block=st.sampled_from([8, 16, 32]),
    shards=st.sampled_from([1, 2, 4]),
    interleave=st.sampled_from([1, 2, 8]),
    start=st.integers(0, 200),
    count=st.integers(1, 90),
    seed=st.integers(0, 999),
)
def test_local_slots_are_vllms(block: int, shards: int, interleave: int, start: int, count: int, seed: int) -> None:
    positions = np.arange(start, start + count)
    need = -(-(start + count) // (block * shards))
    row = (np.random.default_rng(seed).permutation(900)[:need] + 1).tolist()
    owners = np.zeros(count, int)
    for rank in range(shards):
        group = layout(block, shards, rank, interleave)
        slots = real_slots(group, row, positions)
        assert slots == expected_slots(group, row, positions)
        owners += np.array(slots) >= 0
    assert (owners == 1).all()  # together the ranks hold each token once


@FEW
@given(start=st.integers(0, 100), count=st.integers(1, 60), ratio=st.sampled_from([1, 2, 4]))
def test_kernel_blocks_are_vllms(start: int, count: int, ratio: int) -> None:
    group = layout(16, 1, 0, 1, kernel=16 // ratio)
    positions = np.arange(start, start + count)
    row = list(range(3, 3 + -(-(start + count) // 16)))
    assert real_slots(group, row, positions) == expected_slots(group, row, positions)


@FEW
@given(
    lengths=st.lists(st.integers(0, 5000), min_size=1, max_size=8),
    shards=st.sampled_from([2, 4, 8]),
    interleave=st.sampled_from([1, 4, 16, 128]),
)
def test_local_lengths_are_vllms(lengths: list[int], shards: int, interleave: int) -> None:
    from vllm.v1.attention.backends.utils import get_dcp_local_seq_lens

    whole = np.array(lengths, np.int64)
    parts = []
    for rank in range(shards):
        real = get_dcp_local_seq_lens(torch.tensor(lengths, dtype=torch.int32), shards, rank, interleave)
        parts.append(rules.local_length(whole, shards, rank, interleave))
        assert parts[-1].tolist() == real.tolist()
    assert (sum(parts) == whole).all()


def pcp_managers() -> list[type]:
    found = []
    for module, name in (
        ("vllm.v1.worker.gpu.pcp_manager", "PCPManager"),
        ("vllm_ascend.worker.v2.pcp_manager", "AscendPCPManager"),
    ):
        try:
            found.append(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError):
            continue
    return found


@pytest.mark.parametrize("sharded_decode", [False, True])
def test_pieces_of_a_prefill_are_vllms(sharded_decode: bool) -> None:
    kinds = [kind for kind in pcp_managers() if hasattr(kind, "_iter_rank_chunks")]
    if sharded_decode:
        kinds = [kind for kind in kinds if hasattr(kind, "is_decode_sharded")]
    if not kinds:
        pytest.skip("this release splits no batch this way in Model Runner V2")
    draw = np.random.default_rng(5)
    checked = 0
    for kind in kinds:
        for _ in range(120):
            # Decodes are only spread where DCP is not in use.
            size, dcp = int(draw.integers(2, 5)), 1 if sharded_decode else int(draw.choice([1, 2]))
            counts = draw.integers(1, 70, size=int(draw.integers(1, 6)))
            prefilling = draw.random(len(counts)) < 0.6
            counts = np.where(prefilling, counts, draw.integers(1, 4, size=len(counts)))
            covered: dict[int, list[int]] = {at: [] for at in range(len(counts))}
            for rank in range(size):
                manager = object.__new__(_with_decode(kind, sharded_decode))
                manager.pcp_world_size, manager.pcp_rank, manager.dcp_world_size = size, rank, dcp
                real: dict[int, list[tuple[int, int]]] = {}
                for at, offset, length in _chunks(manager, rank, counts, prefilling):
                    real.setdefault(at, []).append((offset, length))
                for at, count in enumerate(counts.tolist()):
                    whole = not prefilling[at] or (dcp > 1 and rules.pcp_too_short(count, size))
                    mine = rules.pcp_segments(count, size, rank, bool(whole))
                    if sharded_decode and not prefilling[at]:
                        assert real.get(at, []) in ([], mine)  # on one rank, whole, or not here
                    else:
                        assert real.get(at, []) == mine
                        checked += 1
                    for offset, length in real.get(at, []):
                        covered[at] += range(offset, offset + length)
            for at, count in enumerate(counts.tolist()):
                assert sorted(set(covered[at])) == list(range(count))  # no token is left out
    assert checked > 100


def _with_decode(kind: type, sharded: bool) -> type:
    """The class with its policy for decodes answered (it asks the engine's configuration)."""
    if not hasattr(kind, "is_decode_sharded"):
        return kind
    return type(kind.__name__, (kind,), {"is_decode_sharded": property(lambda self: sharded)})


def _chunks(manager: object, rank: int, counts: np.ndarray, prefilling: np.ndarray) -> list[tuple[int, int, int]]:
    """The release's own split, whatever arguments it takes."""
    known = inspect.signature(manager._iter_rank_chunks).parameters  # type: ignore[attr-defined]
    offered = {
        "rank": rank,
        "num_scheduled_tokens": counts,
        "is_prefilling": prefilling,
        "num_computed_tokens": np.zeros_like(counts),
    }
    return list(manager._iter_rank_chunks(**{n: v for n, v in offered.items() if n in known}))  # type: ignore[attr-defined]


def test_a_wrong_rule_would_be_seen() -> None:
    """The comparison can fail: another interleave, and another rank, give other slots."""
    positions = np.arange(64)
    row = [3, 4]
    right = real_slots(layout(16, 2, 0, 2), row, positions)
    assert right != expected_slots(layout(16, 2, 0, 4), row, positions)
    assert right != expected_slots(layout(16, 2, 1, 2), row, positions)
