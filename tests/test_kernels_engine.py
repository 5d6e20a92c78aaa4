"""Each fast kernel leaves exactly the memory that Triton's interpreter leaves, over random inputs, on the pair of this
environment.
"""

import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import ascend_sim
import numpy as np
import pytest
from ascend_sim import kernels
from ascend_sim.kernels import registry
from ascend_sim.kernels.arrays import NotCovered
from ascend_sim.kernels.swap import FastKernel
from kernel_cases import (
    CASES,
    MAX_REQS,
    SEEDS,
    STEPS,
    VOCAB,
    Build,
    Case,
    current,
    f32,
    sampling,
    tables,
)

torch = pytest.importorskip("torch", reason="needs a pair's environment")

# Importing vLLM and running its kernels in the interpreter warns about things that are not ours.
pytestmark = [
    pytest.mark.engine,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::RuntimeWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def fast_kernels() -> Iterator[None]:
    """The simulator active, all fast kernels in place, and the interpreter's log1p answered exactly."""
    ascend_sim.activate()
    importlib.import_module("vllm.config")  # as an engine does it: vLLM first
    importlib.import_module("vllm_ascend.ops")  # before the runner's modules: the two import each other
    import triton.language as tl
    import vllm.v1.worker.gpu.sample.gumbel as gumbel
    from triton.runtime.interpreter import TensorHandle

    def log1p(x: Any) -> Any:
        return tl.core.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    saved, gumbel.tldevice = gumbel.tldevice, types.SimpleNamespace(log1p=log1p)
    kernels.install("fast")
    yield
    kernels.remove()
    gumbel.tldevice = saved


def installed(name: str) -> list[FastKernel]:
    found = [fast for fast in registry._installed.values() if fast.name == name]
    assert found, f"no fast kernel {name} on this pair: {[s for s in kernels.status() if s.name == name]}"
    return found


def launch(kernel: Any, names: tuple[str, ...], made: Case) -> None:
    kernel[made.grid](**{name: made.named[name] for name in names})


def differences(fast: FastKernel, build: Build, seed: int, function: Callable[..., None] | None = None) -> list[str]:
    """Names (or numbers) of the tensors that differ after the interpreter's run and the fast one."""
    current.append(fast)
    reference, made = build(np.random.default_rng(seed)), build(np.random.default_rng(seed))
    launch(fast.original, fast.parameters, reference)
    if function is None:
        launch(fast, fast.parameters, made)
    else:
        function(made.grid, **{name: made.named[name] for name in fast.parameters})
    names = [name for name, value in made.named.items() if isinstance(value, torch.Tensor)]
    names += [f"memory {i}" for i in range(len(made.memory))]
    pairs = zip(names, reference.tensors(), made.tensors(), strict=True)
    return [name for name, left, right in pairs if not same_bits(left, right)]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal to the last bit, NaN included; raw addresses (uint64) belong to their own case and are not compared."""
    if left.dtype == torch.uint64:
        return True
    if left.numel() == 0:
        return bool(left.shape == right.shape)
    bits = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return torch.equal(*bits)


@pytest.mark.parametrize(("name", "build"), [(name, build) for name, builds in CASES.items() for build in builds])
def test_fast_kernel_equals_the_interpreter(name: str, build: Build) -> None:
    for fast in installed(name):
        fast.declined.clear()
        for seed in SEEDS:
            assert differences(fast, build, seed) == [], f"{fast!r}, seed {seed}"
        assert fast.declined == {}, "the cases are meant to be covered"


@pytest.mark.parametrize("name", kernels.NAMES)
def test_planted_fault_is_seen(name: str) -> None:
    """A fast kernel whose first written number is off by one differs from the interpreter."""
    fast, build = installed(name)[0], CASES[name][0]

    def faulty(grid: tuple[int, ...], **named: Any) -> None:
        tensors = [value for value in named.values() if isinstance(value, torch.Tensor)]
        before = [tensor.clone() for tensor in tensors]
        fast.function(grid, **named)
        for tensor, old in zip(tensors, before, strict=True):
            if tensor.numel() and not torch.equal(tensor, old):
                changed = (tensor != old).reshape(-1).nonzero()[0]
                tensor.view(-1)[changed] += 1
                return

    def faulty_memory(grid: tuple[int, ...], **named: Any) -> None:
        """This kernel writes through raw addresses only: the mapping is read in reverse."""
        mapping = named.pop("batch_idx_to_req_idx")
        fast.function(grid, batch_idx_to_req_idx=mapping.flip(0).contiguous(), **named)

    fault = faulty_memory if name == "gather_block_tables" else faulty
    assert any(differences(fast, build, seed, fault) for seed in SEEDS)


def test_every_kernel_of_this_pair_is_fast() -> None:
    left = [entry for entry in kernels.status() if not entry.fast and not entry.reason.startswith("no such")]
    assert [entry for entry in left if "not a Triton kernel" not in entry.reason] == []
    assert {entry.name for entry in kernels.status() if entry.fast} == set(kernels.NAMES)


def check_declined(fast: FastKernel, build: Build, reason: str, **changes: Any) -> None:
    """The fast kernel declines, says why, and the interpreter's result stands."""

    def changed(rng: np.random.Generator) -> Case:
        made = build(rng)
        made.named |= {
            name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in changes.items()
        }
        return made

    fast.declined.clear()
    assert differences(fast, changed, 1) == []
    assert [key for key in fast.declined if reason in key], fast.declined


def test_context_parallelism_is_the_interpreters() -> None:
    for fast in installed("slot_mapping"):
        check_declined(fast, tables.slots, "context parallelism", CP_SIZE=2)


def test_requests_with_a_temperature_are_verified_by_the_interpreter() -> None:
    for name, build in (
        ("local_logits_stats", sampling.stats),
        ("rejection", sampling.verify),
        ("resample", sampling.bonus),
    ):
        check_declined(installed(name)[0], build, "temperature", temp_ptr=f32(np.full(MAX_REQS, 0.8)))


def test_nan_logits_are_the_interpreters() -> None:
    def build(rng: np.random.Generator) -> Case:
        made = sampling.draw(rng, greedy=True, cache=False)
        made.named["logits_ptr"][0, 0] = float("nan")
        return made

    check_declined(installed("gumbel_sample")[0], build, "NaN")


def test_logits_cache_holds_the_logits_before_temperature() -> None:
    """Triton's interpreter cannot run this store (its mask has a type it refuses), so the definition stands in for
    it.
    """
    fast = installed("gumbel_sample")[0]
    if "processed_logits_ptr" in fast.parameters:
        made = sampling.draw(np.random.default_rng(1), greedy=True, cache=False)
        made.named["processed_logits_ptr"] = f32(np.zeros((MAX_REQS, STEPS, VOCAB)))
        with pytest.raises(NotCovered, match="cache of processed logits"):
            fast.function(made.grid, **{name: made.named[name] for name in fast.parameters})
        return
    for seed in SEEDS:
        made = sampling.draw(np.random.default_rng(seed), greedy=seed % 2 == 0, cache=True)
        launch(fast, fast.parameters, made)
        expected = torch.zeros(MAX_REQS, STEPS, VOCAB)
        column = made.named["logits_cache_col_ptr"].expand(made.grid[0])
        for token, row in enumerate(made.named["expanded_idx_mapping_ptr"]):
            if row >= 0:
                expected[row, column[token]] = made.named["logits_ptr"][token, :VOCAB]
        assert torch.equal(made.named["logits_cache_ptr"], expected)


def test_one_kernel_can_be_left_to_the_interpreter() -> None:
    import vllm.v1.worker.gpu.block_table as block_table

    original = installed("gather_block_tables")[0].original
    try:
        kernels.install("gather_block_tables=interpreter")
        assert block_table._gather_block_tables_kernel is original
        assert {entry.name for entry in kernels.status() if entry.fast} == set(kernels.NAMES) - {"gather_block_tables"}
        kernels.install("interpreter,slot_mapping=fast")
        assert {entry.name for entry in kernels.status() if entry.fast} == {"slot_mapping"}
    finally:
        kernels.install("fast")


def test_imported_copies_are_replaced_and_put_back() -> None:
    import vllm.v1.worker.gpu.block_table as home
    import vllm.v1.worker.gpu.input_batch as other

    original = installed("gather_block_tables")[0].original
    kernels.remove()
    try:
        other.copy_of_kernel = home._gather_block_tables_kernel
        kernels.install("fast")
        assert isinstance(other.copy_of_kernel, FastKernel)
        assert other.copy_of_kernel is home._gather_block_tables_kernel
        kernels.remove()
        assert other.copy_of_kernel is original
        assert home._gather_block_tables_kernel is original
    finally:
        del other.copy_of_kernel
        kernels.install("fast")


def test_a_kernel_with_another_body_stays_in_the_interpreter() -> None:
    """Same parameter names, another body: the contract is the source, not the signature."""
    import vllm.v1.worker.gpu.input_batch as home
    from triton.runtime.interpreter import InterpretedFunction

    def _post_update_num_computed_tokens_kernel(idx_mapping_ptr, num_computed_tokens_ptr, query_start_loc_ptr):  # type: ignore[no-untyped-def]
        pass

    kernels.remove()
    original = home._post_update_num_computed_tokens_kernel
    planted = InterpretedFunction(_post_update_num_computed_tokens_kernel)
    try:
        home._post_update_num_computed_tokens_kernel = planted
        kernels.install("fast")
        entry = next(s for s in kernels.status() if s.name == "post_update_num_computed_tokens")
        assert home._post_update_num_computed_tokens_kernel is planted
        assert not entry.fast
        assert "is not one the fast kernel was tested against" in entry.reason
    finally:
        home._post_update_num_computed_tokens_kernel = original
        kernels.install("fast")


def test_install_twice_is_once() -> None:
    import vllm.v1.worker.gpu.input_batch as home

    kernels.install("fast")
    assert not isinstance(home._post_update_kernel.original, FastKernel)
