"""The reference operators: right against torch's own attention, and refusing what the real operator refuses."""

import pytest

pytestmark = pytest.mark.engine

torch = pytest.importorskip("torch", reason="needs a pair's environment")

from ascend_sim import ops  # noqa: E402
from ascend_sim.ops import ContractError, attention, kv_cache, layers  # noqa: E402

HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS = 4, 2, 32, 16, 12
MASK = torch.zeros(2048, 2048, dtype=torch.int8)


def caches(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (BLOCKS, BLOCK, KV_HEADS, SIZE)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def expected(query, keys, values, window=None):
    """torch's own attention for one request; the mask is aligned to the last key."""
    n, length = query.shape[0], keys.shape[0]
    position, key = torch.arange(length - n, length).view(n, 1), torch.arange(length)
    visible = key <= position
    if window is not None:
        visible &= key >= position - window
    group = HEADS // KV_HEADS
    k, v = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (keys, values))
    out = torch.nn.functional.scaled_dot_product_attention(query.transpose(0, 1), k, v, attn_mask=visible, scale=0.2)
    return out.transpose(0, 1)


def call(query, lengths, table, key_cache, value_cache, **changes):
    ends = torch.tensor(lengths[0]).cumsum(0).tolist()
    arguments = {
        "num_heads": HEADS, "num_key_value_heads": KV_HEADS, "scale": 0.2, "input_layout": "TND", "atten_mask": MASK,
        "block_table": table, "block_size": BLOCK, "actual_seq_lengths": ends, "actual_seq_lengths_kv": lengths[1],
        "sparse_mode": 3,
    }  # fmt: skip
    arguments |= changes
    return attention.npu_fused_infer_attention_score(query, key_cache.flatten(2), value_cache.flatten(2), **arguments)[
        0
    ]


BATCHES = [
    ([1, 1, 1], [1, 17, 40]),  # decode: all in one piece
    ([5, 1, 20], [5, 33, 40]),  # first prefill, decode and a chunk that continues
    ([16], [16]),
    ([1], [BLOCK * 4]),
]


@pytest.mark.parametrize(("query_lengths", "kv_lengths"), BATCHES)
@pytest.mark.parametrize("window", [None, 7])
def test_paged_attention_equals_torch(query_lengths, kv_lengths, window):
    key_cache, value_cache = caches()
    generator = torch.Generator().manual_seed(1)
    query = torch.randn((sum(query_lengths), HEADS, SIZE), generator=generator)
    table = torch.randperm(BLOCKS, generator=generator)[: 4 * len(kv_lengths)].view(len(kv_lengths), 4).int()
    changes = {} if window is None else {"sparse_mode": 4, "pre_tokens": window, "next_tokens": 0}
    out = call(query, (query_lengths, kv_lengths), table, key_cache, value_cache, **changes)
    start = 0
    for row, (n, length) in enumerate(zip(query_lengths, kv_lengths, strict=True)):
        blocks = table[row].long()
        keys, values = (cache[blocks].flatten(0, 1)[:length] for cache in (key_cache, value_cache))
        want = expected(query[start : start + n], keys, values, window)
        torch.testing.assert_close(out[start : start + n], want, atol=1e-5, rtol=1e-4)
        start += n


def test_what_lies_behind_a_request_never_reaches_it():
    """Poison in unused slots and foreign ids in unused columns change nothing, in both ways of decoding."""
    key_cache, value_cache = caches()
    query = torch.randn((2, HEADS, SIZE), generator=torch.Generator().manual_seed(2))
    table = torch.tensor([[3, 0], [5, 6]], dtype=torch.int32)
    clean = call(query, ([1, 1], [5, 20]), table, key_cache, value_cache)
    key_cache[3, 5:], value_cache[3, 5:] = float("nan"), float("nan")
    key_cache[6, 4:], value_cache[6, 4:] = float("inf"), float("nan")
    table[0, 1] = 999999
    torch.testing.assert_close(call(query, ([1, 1], [5, 20]), table, key_cache, value_cache), clean)


def test_without_a_block_table_keys_are_ragged():
    generator = torch.Generator().manual_seed(3)
    query = torch.randn((7, HEADS, SIZE), generator=generator)
    keys, values = (torch.randn((7, KV_HEADS, SIZE), generator=generator) for _ in range(2))
    out, _ = attention.npu_fused_infer_attention_score(
        query, keys, values, num_heads=HEADS, num_key_value_heads=KV_HEADS, scale=0.2, input_layout="TND",
        atten_mask=MASK, actual_seq_lengths=[3, 7], actual_seq_lengths_kv=[3, 7], sparse_mode=3,
    )  # fmt: skip
    for part in (slice(0, 3), slice(3, 7)):
        torch.testing.assert_close(out[part], expected(query[part], keys[part], values[part]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_layout": "BSH"}, "input_layout='BSH'"),
        ({"sparse_mode": 2}, "sparse_mode=2"),
        ({"atten_mask": None}, "needs atten_mask"),
        ({"actual_seq_lengths": [1, 3]}, "differs from T=2"),
        ({"actual_seq_lengths": [2, 1, 2]}, "decreases"),
        ({"actual_seq_lengths": []}, "is empty"),
        ({"actual_seq_lengths_kv": [5]}, "1 KV lengths for 2 queries"),
        ({"actual_seq_lengths_kv": [5, 33]}, "needs more than 2 columns"),
        ({"block_size": 10}, "no positive multiple of 16"),
        ({"block_table": torch.tensor([[3, 0]], dtype=torch.int32)}, "1 rows for 2 requests"),
        ({"block_table": torch.tensor([[3, 0], [5, 6]])}, "block_table is torch.int64"),
        ({"block_table": torch.tensor([[3, 0], [5, BLOCKS]], dtype=torch.int32)}, "outside 0..11"),
        ({"num_heads": 3, "num_key_value_heads": 2}, "is not"),
        ({"softmax_lse_flag": True}, "softmax_lse_flag"),
    ],
)
@pytest.mark.parametrize("query_lengths", [[1, 1]])
def test_what_the_operator_refuses_is_refused(changes, message, query_lengths):
    key_cache, value_cache = caches()
    query = torch.randn((2, HEADS, SIZE))
    table = torch.tensor([[3, 0], [5, 6]], dtype=torch.int32)
    with pytest.raises(ContractError, match=message):
        call(query, (query_lengths, [5, 20]), table, key_cache, value_cache, **changes)


def test_scatter_writes_real_slots_only():
    key_cache, value_cache = caches()
    before = key_cache.clone()
    key, value = torch.ones(3, KV_HEADS, SIZE), torch.full((3, KV_HEADS, SIZE), 2.0)
    kv_cache.npu_scatter_pa_kv_cache(key, value, key_cache, value_cache, torch.tensor([17, -1, 3], dtype=torch.int32))
    assert (key_cache[1, 1] == 1).all()
    assert (value_cache[0, 3] == 2).all()
    changed = (key_cache != before).flatten(2).any(-1).nonzero().tolist()
    assert changed == [[0, 3], [1, 1]]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (torch.tensor([BLOCKS * BLOCK], dtype=torch.int32), "outside a cache"),
        (torch.tensor([1, 2, 3, 4], dtype=torch.int32), "4 slots for 3 tokens"),
        (torch.tensor([1.0]), "expected int32 or int64"),
    ],
)
def test_scatter_refuses_slots_outside_the_cache(slots, message):
    key_cache, value_cache = caches()
    before = key_cache.clone()
    with pytest.raises(ContractError, match=message):
        kv_cache.npu_scatter_pa_kv_cache(
            torch.ones(3, KV_HEADS, SIZE), torch.ones(3, KV_HEADS, SIZE), key_cache, value_cache, slots
        )
    assert torch.equal(key_cache, before)


def test_layers_equal_torch():
    x, y, gamma = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, _, total = layers.npu_add_rms_norm(x, y, gamma, 1e-5)
    torch.testing.assert_close(total, x + y)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x + y, (8,), gamma, 1e-5))
    gate, up = x.chunk(2, -1)
    torch.testing.assert_close(layers.npu_swiglu(x), torch.nn.functional.silu(gate) * up)
    with pytest.raises(ContractError, match="npu_add_rms_norm: shapes"):
        layers.npu_add_rms_norm(x, y[:2], gamma)


def test_every_operator_is_registered_under_its_own_name():
    found = ops.operators()
    assert {"npu_fused_infer_attention_score", "npu_scatter_pa_kv_cache", "_npu_paged_attention"} <= set(found)
    assert all(name == function.__name__ and function.__doc__ for name, function in found.items())
