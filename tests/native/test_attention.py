from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from caches import as_multiplied, empty_cache, in_pairs
from oracle import assert_matches, max_error
from suffice.cache import KV_DTYPES
from suffice.cache.kv import KVCache

# groups, query heads, head size, committed rows, query rows
SHAPES = [
    (1, 1, 64, 5, 1),
    (1, 4, 80, 1, 2),
    (3, 9, 64, 700, 1),
    (2, 16, 128, 1000, 3),
    (1, 4, 256, 300, 8),
    (2, 2, 32, 31, 16),
    (2, 2, 32, 0, 5),
    # more rows than registers hold, which unpack keys and values once
    (1, 2, 80, 90, 32),
    (2, 6, 64, 1030, 32),
]


def filled(groups: int, size: int, rows: int, keys: str, values: str) -> KVCache:
    cache = empty_cache(1, groups, size, keys, value_dtype=values, limit=4096)
    cache.reserve(rows)
    cache.append(0, torch.randn(groups, rows, size), torch.randn(groups, rows, size))
    return cache


def causal(count: int) -> list[int]:
    return [(1 << (i + 1)) - 1 if i < 31 else -1 for i in range(count)]  # as int32


def attend(
    cache: KVCache,
    q: torch.Tensor,
    length: int,
    visible: list[int] | None = None,
    window: int = 0,
    blocks: list[int] | None = None,
) -> torch.Tensor:
    out = torch.full_like(q, float("nan"))
    masks = torch.tensor(causal(len(q)) if visible is None else visible, dtype=torch.int32)
    order = None if blocks is None else torch.tensor(blocks, dtype=torch.int32)
    cache.native.attend(0, length, q, masks, 1 / math.sqrt(q.shape[2]), window, order, out)
    return out


def reference(
    cache: KVCache, q: torch.Tensor, mask: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Plain attention over what the cache holds; q [T, H, D], mask [T, rows]."""
    rows = (part(0, mask.shape[1]) for part in (cache.keys, cache.values))
    keys, values = (torch.from_numpy(each).to(dtype) for each in rows)
    out = scaled_dot_product_attention(
        q.transpose(0, 1).to(dtype), keys, values, attn_mask=mask, enable_gqa=True
    )
    return out.transpose(0, 1)


def check(cache: KVCache, actual: torch.Tensor, q: torch.Tensor, mask: torch.Tensor) -> None:
    q = torch.from_numpy(as_multiplied(q.numpy(), cache, 1 / math.sqrt(q.shape[2])))
    exact = reference(cache, q, mask, torch.float64)
    if in_pairs(cache.native.value_type):  # weights are rounded to bfloat16
        assert_matches(actual, exact, reference(cache, q, mask, torch.bfloat16))
    elif cache.native.value_type in ("kmeans4", "planes"):  # weights are rounded to 8 bits
        assert max_error(actual, exact) < 2e-2 * exact.abs().max()
    elif cache.native.key_type == "kmeans4":
        # a query whose element is between two whole numbers may be rounded to either
        assert max_error(actual, exact) < 1e-3 * exact.abs().max()
    elif {"int8", "planes"} & {cache.native.key_type, cache.native.value_type}:
        # queries and weights are rounded to 15 bits, far below the 7 bits of what is stored
        assert max_error(actual, exact) < 2e-4 * exact.abs().max()
    else:
        assert_matches(actual, exact, reference(cache, q, mask, torch.float32), factor=4)


# What reads keys and what reads values meet in the softmax alone: mixed types need one shape.
CASES = [(dtype, dtype, shape) for dtype in KV_DTYPES for shape in SHAPES] + [
    (keys, values, SHAPES[3]) for keys, values in itertools.permutations(KV_DTYPES, 2)
]


@pytest.mark.parametrize(("keys", "values", "shape"), CASES, ids=str)
def test_attention(each_isa: str, keys: str, values: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    groups, heads, size, length, count = shape
    cache = filled(groups, size, length + count, keys, values)
    q = torch.randn(count, heads, size)
    together = attend(cache, q, length)
    mask = torch.ones(count, length + count, dtype=torch.bool).tril(length)
    check(cache, together, q, mask)
    for i in range(count):  # bit for bit what decoding row by row gives
        alone = attend(cache, q[i : i + 1].contiguous(), length + i)
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16_loses_at_most_twice_what_pytorch_does(
    each_isa: str, shape: tuple[int, ...]
) -> None:
    """Queries and weights are rounded to bfloat16 where the processor multiplies pairs of it."""
    torch.manual_seed(7)
    groups, heads, size, length, count = shape
    cache = filled(groups, size, length + count, "bfloat16", "bfloat16")
    q = torch.randn(count, heads, size)
    mask = torch.ones(count, length + count, dtype=torch.bool).tril(length)
    exact = reference(cache, q, mask, torch.float64)
    assert_matches(attend(cache, q, length), exact, reference(cache, q, mask, torch.bfloat16))


def test_rows_that_do_not_exist_may_hold_anything(each_isa: str) -> None:
    """The last row of an odd number is multiplied with none, whatever the memory behind it has."""
    torch.manual_seed(8)
    cache = filled(1, 64, 64, "bfloat16", "bfloat16")
    q = torch.randn(1, 2, 64)
    clean = {length: attend(cache, q, length) for length in range(16, 24)}
    for length in range(23, 15, -1):
        behind = torch.full((1, 64 - length - 1, 64), float("inf")).numpy()
        cache.native.store(0, length + 1, behind, behind)
        assert torch.equal(attend(cache, q, length), clean[length])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_tree_of_drafts(each_isa: str, dtype: str) -> None:
    torch.manual_seed(1)
    length, parents = 100, [-1, 0, 0, 1, -1, 4]
    visible = []
    for i, parent in enumerate(parents):
        visible.append(1 << i | (visible[parent] if parent >= 0 else 0))
    cache = filled(2, 64, length + 6, dtype, dtype)
    q = torch.randn(6, 4, 64)
    mask = torch.tensor([[True] * length + [bool(m >> j & 1) for j in range(6)] for m in visible])
    check(cache, attend(cache, q, length, visible), q, mask)


@pytest.mark.parametrize("window", [1, 17, 64, 300])
def test_a_sliding_window(each_isa: str, window: int) -> None:
    torch.manual_seed(2)
    length, count = 500, 4
    cache = filled(1, 64, length + count, "float32", "float32")
    q = torch.randn(count, 2, 64)
    visible = [sum(1 << j for j in range(i + 1) if i - j < window) for i in range(count)]
    mask = torch.ones(count, length + count, dtype=torch.bool)
    mask = mask.tril(length) & mask.triu(length - window + 1)
    check(cache, attend(cache, q, length, visible, window), q, mask)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [1, 20, 300])
def test_many_rows_see_what_each_sees_alone(each_isa: str, dtype: str, window: int) -> None:
    """Windows end within tiles: keys that some rows see are hidden from others."""
    torch.manual_seed(9)
    length, count = 613, 32
    cache = filled(1, 48, length + count, dtype, dtype)
    q = torch.randn(count, 3, 48)
    masks = [(1 << i + 1) - 1 for i in range(count - 1)] + [-1]  # all before, as int32
    together = attend(cache, q, length, masks, window)
    for i in range(count):
        alone = attend(cache, q[i : i + 1].contiguous(), length + i, [1], window)
        assert torch.equal(alone[0], together[i])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_rows_bits_do_not_depend_on_the_number_of_others(each_isa: str, dtype: str) -> None:
    """Six query heads share the keys: from the fourth row on, keys and values are unpacked."""
    torch.manual_seed(10)
    length = 200
    cache = filled(1, 64, length + 9, dtype, dtype)
    q = torch.randn(9, 6, 64)
    together = attend(cache, q, length)
    for count in range(1, 9):
        assert torch.equal(attend(cache, q[:count].contiguous(), length), together[:count])


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_any_order_of_blocks_and_any_selection(each_isa: str, dtype: str) -> None:
    torch.manual_seed(3)
    length = 203
    cache = filled(2, 32, length + 1, dtype, dtype)
    q = torch.randn(1, 4, 32)
    everything = list(range(13))
    mask = torch.ones(1, length + 1, dtype=torch.bool)
    identity = attend(cache, q, length)
    assert torch.equal(attend(cache, q, length, blocks=everything), identity)
    check(cache, attend(cache, q, length, blocks=everything[::-1]), q, mask)
    chosen = [12, 0, 5, 7, 2]
    some = torch.zeros(13 * 16, dtype=torch.bool)
    for block in chosen:
        some[block * 16 : block * 16 + 16] = True
    check(cache, attend(cache, q, length, blocks=chosen), q, some[None, : length + 1])


def test_many_small_weights_are_not_lost_in_bytes(each_isa: str) -> None:
    """One key weighs 600 times as much as each of the others, which together outweigh it."""
    rows, size = 1024, 64
    cache = empty_cache(1, 1, size, "float32", value_dtype="kmeans4")
    cache.reserve(rows)
    torch.manual_seed(5)
    k, v = torch.zeros(1, rows, size), torch.zeros(1, rows, size)
    k[0, 0, 0] = math.log(600) * math.sqrt(size)
    v[0] = torch.randn(size)
    v[0, 0] = 0
    cache.append(0, k, v)
    q = torch.zeros(1, 1, size)
    q[..., 0] = 1.0
    out = attend(cache, q, rows - 1)[0, 0]
    exact = reference(cache, q, torch.ones(1, rows, dtype=torch.bool), torch.float64)[0, 0]
    assert max_error(out, exact) < 0.02 * exact.abs().max()


def test_extreme_scores_do_not_overflow(each_isa: str) -> None:
    cache = filled(1, 16, 200, "float32", "float32")
    k = torch.zeros(1, 200, 16)
    k[0, :, 0] = torch.linspace(-3000, 3000, 200)
    v = torch.randn(1, 200, 16)
    cache.append(0, k, v)
    q = torch.zeros(1, 1, 16)
    q[0, 0, 0] = 4.0
    out = attend(cache, q, 199)
    torch.testing.assert_close(out[0, 0], v[0, 199])


def test_threads_do_not_change_a_bit() -> None:
    from suffice import native

    torch.manual_seed(4)
    cache = filled(3, 64, 1500, "bfloat16", "int8")
    q = torch.randn(2, 9, 64)
    before, results = native.threads(), []
    for threads in range(1, native.cores() + 1):
        native.set_threads(threads)
        results.append(attend(cache, q, 1498))
    native.set_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_refused_arrays() -> None:
    cache = filled(2, 32, 20, "float32", "float32")
    for q, length, message in (
        (torch.ones(1, 3, 32), 5, r"q must be \[T, H, 32\] with H a multiple of 2"),
        (torch.ones(1, 2, 16), 5, r"q must be \[T, H, 32\]"),
        (torch.ones(33, 2, 32), 5, "1 to 32 query rows, not 33"),
        (torch.ones(1, 2, 32), 4000, "exceed the capacity"),
    ):
        with pytest.raises(ValueError, match=message):
            attend(cache, q, length, [1] * len(q))
    for block in (-1, 1, 7):
        with pytest.raises(ValueError, match="block index is out of range"):
            attend(cache, torch.ones(1, 2, 32), 5, blocks=[block])
