"""Attention to joint rows: joint_scores.inl against the reference, and its laws."""

from __future__ import annotations

import numpy as np
import pytest

from caches import empty_cache, in_pairs
from suffice.attention.certified import Certified
from suffice.attention.exact import Exact
from suffice.backends.cpu.attention import attend
from suffice.cache import JOINT_DTYPES
from suffice.cache.kv import KVCache

SCALE = 0.1
# heads: fewer than a vector's lanes, as many, groups of 2 and 3 vectors and what is left over
HEADS = (1, 4, 16, 20, 40, 128)
SIZES = ((48, 16), (512, 64), (256, 64))  # rank, rotated


def filled(dtype: str, rows: np.ndarray, rank: int, **extras: bool) -> KVCache:
    cache = empty_cache(1, 1, rows.shape[1], dtype, joint=rank, **extras)
    cache.reserve(len(rows))
    cache.append(0, rows[None], None)
    cache.advance(len(rows))
    return cache


def inputs(count: int, heads: int, rank: int, rotated: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows, whose rotated entries are the larger ones, and queries of the last tokens."""
    random = np.random.default_rng(count + heads)
    rows = random.standard_normal((count, rank + rotated), np.float32)
    rows[:, rank:] *= 5
    queries = random.standard_normal((heads, min(3, count), rank + rotated), np.float32)
    return rows, queries


def reference(queries: np.ndarray, cache: KVCache) -> np.ndarray:
    tokens, length = queries.shape[1], cache.length
    visible = np.arange(length) <= np.arange(length - tokens, length)[:, None]
    keys, values = (x.astype(np.float64) for x in (cache.keys(0), cache.values(0)))
    found = Exact().reference(
        queries.astype(np.float64), keys, values, scale=SCALE, visible=visible
    )
    return found.output


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dtype", JOINT_DTYPES)
def test_the_kernel_is_the_reference(each_isa: str, dtype: str, heads: int) -> None:
    rank, rotated = SIZES[HEADS.index(heads) % len(SIZES)]
    for count in (1, 15, 64, 130, 521):
        rows, queries = inputs(count, heads, rank, rotated)
        cache = filled(dtype, rows, rank)
        found = attend(Exact().rule(), queries, cache, 0, scale=SCALE)[0]
        assert not found[..., rank:].any()
        # some sets round queries and weights to bfloat16; for int8 both have 16 bits
        within = 5e-2 if in_pairs(dtype) else 1e-3 if dtype == "int8" else 2e-5
        np.testing.assert_allclose(found, reference(queries, cache), rtol=0, atol=within)


def test_a_key_that_differs_would_be_noticed() -> None:
    rows, queries = inputs(70, 16, 48, 16)
    cache = filled("float32", rows, 48)
    wanted = reference(queries, cache)
    for entry in (0, 47, 48, 63):
        changed = rows.copy()
        changed[33, entry] += 2
        found = attend(Exact().rule(), queries, filled("float32", changed, 48), 0, scale=SCALE)[0]
        assert np.abs(found - wanted).max() > 1e-3


@pytest.mark.parametrize("dtype", JOINT_DTYPES)
def test_a_head_s_bits_do_not_depend_on_the_others(each_isa: str, dtype: str) -> None:
    rows, queries = inputs(600, 50, 48, 16)
    cache = filled(dtype, rows, 48)
    together = attend(Exact().rule(), queries, cache, 0, scale=SCALE)[0]
    for first, last in ((0, 1), (3, 20), (49, 50), (0, 33)):
        part = np.ascontiguousarray(queries[first:last])
        alone = attend(Exact().rule(), part, cache, 0, scale=SCALE)[0]
        np.testing.assert_array_equal(alone, together[first:last])
    for token in range(queries.shape[1]):  # as if the later tokens had not been there
        shorter = filled(dtype, rows[: 600 - queries.shape[1] + token + 1], 48)
        one = np.ascontiguousarray(queries[:, token : token + 1])
        alone = attend(Exact().rule(), one, shorter, 0, scale=SCALE)[0]
        np.testing.assert_array_equal(alone[:, 0], together[:, token])


@pytest.mark.parametrize("heads", [4, 16, 40])
@pytest.mark.parametrize("dtype", JOINT_DTYPES)
@pytest.mark.parametrize(
    "technique", [Certified(eps=0.05), Certified(eps=0.3, values=0.02)], ids=str
)
def test_no_more_than_eps_is_missing(
    each_isa: str, technique: Certified, dtype: str, heads: int
) -> None:
    """By a sketch of the rows as they are stored, of their normalized and rotated entries alike."""
    rank, rotated = SIZES[heads % len(SIZES)]
    skipped = 0
    for count in (70, 521, 900):
        rows, queries = inputs(count, heads, rank, rotated)
        rows, queries = 0.3 * rows, 0.3 * queries + 0.1
        rows[count // 2 :, :rank] += 1  # the later half is heavy, and so are a few rows before it
        rows[33], rows[60:64, rank + 1] = 1, 10
        cache = filled(dtype, rows, rank, sketch=True)
        audit = np.zeros((5, queries.shape[1], heads), np.float32)
        found, (reads,) = attend(technique.rule(), queries, cache, 0, scale=SCALE, audit=audit)
        assert audit[0].max() - 1e-6 <= reads.missing <= technique.eps
        tokens = queries.shape[1]
        skipped += 2 * (tokens * count - tokens * (tokens - 1) // 2)
        skipped -= reads.key_rows + reads.value_rows
        if in_pairs(dtype):
            continue
        visible = np.arange(count) <= np.arange(count - tokens, count)[:, None]
        wide = (each.astype(np.float64) for each in (queries, cache.keys(0), cache.values(0)))
        wanted = technique.reference(*wide, scale=SCALE, visible=visible)
        assert reads.key_rows == wanted.keys.sum()
        within = 1e-3 if dtype == "int8" else 1e-4
        np.testing.assert_allclose(found, wanted.output, rtol=0, atol=within)
    assert skipped > 0, "something was left out"


def test_nothing_missing_is_exact(each_isa: str) -> None:
    rows, queries = inputs(600, 20, 48, 16)
    cache = filled("bfloat16", rows, 48, sketch=True)
    found, exact = (
        attend(technique.rule(), queries, cache, 0, scale=SCALE)[0]
        for technique in (Certified(eps=0.0), Exact())
    )
    np.testing.assert_array_equal(found, exact)
