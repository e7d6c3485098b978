"""The bound of `tiers` at a confidence: seldom exceeded, close, and of no other effect."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from caches import cache_of
from pairs import pairwise
from suffice import native
from suffice.attention.tiers import Tiers
from suffice.backends.cpu.attention import attend
from suffice.cache.kv import KVCache
from suffice.errors import InputError
from tiered import (
    GROUPS,
    REP,
    SCALE,
    filled,
    like_a_model_s,
    queries,
    queries_that_estimates_miss,
    reference,
)

HEADS = GROUPS * REP
TYPES = ("planes", "bfloat16", "float16", "float32", "int8", "kmeans4")


def audited(technique: Tiers, q: np.ndarray, cache: KVCache, **how: Any) -> np.ndarray:
    """Return what an audit finds, [5, T, H]: `missing`, error, bound, shift and its bound."""
    found = np.full((5, q.shape[1], HEADS), np.nan, np.float32)
    attend(technique.rule(), q, cache, 0, scale=SCALE, audit=found, **how)
    return found.astype(np.float64)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_sample_changes_no_bit_of_an_output(dtype: str, each_isa: str) -> None:
    cache, q = filled(1500, dtype=dtype), queries(4)
    for eps, skip in ((0.5, 0.001), (1.0, 0.0), (0.1, 0.01), (0.0, 0.01)):
        plain, before = attend(Tiers(eps, skip).rule(), q, cache, 0, scale=SCALE)
        out, reads = attend(Tiers(eps, skip, sample=16).rule(), q, cache, 0, scale=SCALE)
        assert np.array_equal(out, plain)
        for found, was in zip(reads, before, strict=True):
            assert (found.value_rows, found.per_head_rows) == (was.value_rows, was.per_head_rows)
            assert was.key_rows <= found.key_rows <= was.key_rows + 4 * 16 * 16
            assert was.missing == 0 < found.missing <= 1 and found.shift > found.missing


@pytest.mark.parametrize(
    ("dtype", "setting", "each_isa"),
    pairwise(
        TYPES[:-1],  # products with `kmeans4` are rounded like estimates
        [(0.5, 0.001), (1.0, 0.0), (0.2, 0.01)],
        native.isas(),
    ),
    indirect=["each_isa"],
)
def test_it_is_the_reference(dtype: str, setting: tuple[float, float], each_isa: str) -> None:
    """By the same draws: all blocks of a few, or 12 of 57, whatever else a token sees."""
    for rows, sample, window in ((150, 12, None), (900, 12, None), (900, 5, 700)):
        technique = Tiers(*setting, sample=sample, delta=0.05)
        cache, q = filled(rows, dtype=dtype), queries(3)
        visible = np.tri(3, rows, rows - 3, bool)
        if window:
            visible &= ~np.tri(3, rows, rows - 3 - window, bool)
        wanted = reference(technique, q, cache, visible)
        reads = attend(technique.rule(), q, cache, 0, scale=SCALE, window=window)[1]
        for group, found in enumerate(reads):
            alone = int(wanted.sampled[:, group].sum())
            assert found.key_rows == int(wanted.keys[:, group].sum()) + alone
            assert found.missing == pytest.approx(wanted.distance[:, group].max(), rel=2e-2)
            assert found.shift == pytest.approx(wanted.shift[:, group].max(), rel=2e-2)


@pytest.mark.parametrize("dtype", ["planes", "bfloat16", "int8"])
def test_bounds_are_seldom_exceeded(dtype: str, each_isa: str) -> None:
    """Whatever the queries, and never above the certain bound; how often: within 4 deviations."""
    delta, beyond, softmaxes = 0.2, 0, 0
    for seed in range(2):
        cache = cache_of(*like_a_model_s(800, seed), dtype, rounding=None, bases=True)
        for q in (queries(24, seed + 9), queries_that_estimates_miss(cache, seed)):
            for eps, skip, sample in ((0.5, 0.001, 8), (1.0, 0.0, 16)):
                technique = Tiers(eps, skip, sample=sample, delta=delta)
                missing, _, bound, shift, shift_bound = audited(technique, q, cache)
                assert (bound <= 1).all()
                wrong = missing > bound + 1e-5
                assert not (shift > shift_bound + 1e-5)[~wrong].any()
                beyond, softmaxes = beyond + int(wrong.sum()), softmaxes + wrong.size
    assert softmaxes == 2 * 4 * 24 * HEADS
    assert beyond / softmaxes <= delta + 4 * (delta * (1 - delta) / softmaxes) ** 0.5


@pytest.mark.parametrize("dtype", ["planes", "bfloat16"])
def test_no_bound_is_above_the_certain_one(dtype: str) -> None:
    """Of all rows by their bases, which is what `bounded` with a bound of 1 reads, too."""
    cache, q = filled(1000, dtype=dtype), queries(6, spread=0.3)
    certain = audited(Tiers(1.0, 0.0, bounded=True), q, cache)[2]
    assert certain.max() < 1
    for sample in (1, 8, 64):
        bound = audited(Tiers(1.0, 0.0, sample=sample), q, cache)[2]
        assert (bound <= certain * (1 + 1e-4)).all()
    assert bound.mean() < 0.5 * certain.mean()


@pytest.mark.parametrize("dtype", ["planes", "bfloat16"])
def test_more_blocks_and_less_confidence_are_closer(dtype: str) -> None:
    cache, q = filled(2500, dtype=dtype), queries(6, spread=0.2)
    at = [audited(Tiers(0.5, 0.0002, sample=n), q, cache)[2].mean() for n in (4, 16, 64, 156)]
    assert at == sorted(at, reverse=True) and at[3] < at[2] < 0.6 * at[0]
    by_delta = [
        audited(Tiers(0.5, 0.0002, sample=16, delta=delta), q, cache)[2]
        for delta in (0.5, 0.1, 0.01, 1e-6)
    ]
    for less, more in itertools.pairwise(by_delta):
        assert (less <= more).all() and less.mean() < more.mean()


def test_a_sample_of_all_blocks_knows_the_distance() -> None:
    """What is lost and what is added are then known, whatever `delta` is."""
    cache, q = filled(700), queries(8, spread=0.4)
    missing, _, bound = audited(Tiers(1.0, 0.0, sample=44, delta=1e-9), q, cache)[:3]
    assert (missing <= bound + 1e-5).all()
    assert np.median(bound / missing) < 1.5


@pytest.mark.parametrize("window", [None, 3014])  # alone, row 1 begins a tile later
@pytest.mark.parametrize("dtype", ["planes", "bfloat16"])
def test_threads_and_other_rows_change_no_bound(dtype: str, window: int | None) -> None:
    cache, q = filled(5000, dtype=dtype), queries(4)
    technique, before, results = Tiers(0.5, 0.00002, sample=16), native.threads(), []
    for threads in range(1, native.cores() + 1):
        native.set_threads(threads)
        results.append(audited(technique, q, cache, window=window))
    native.set_threads(before)
    assert all(np.array_equal(result, results[0]) for result in results)
    cache.truncate(4998)
    alone = audited(technique, q[:, 1:2], cache, window=window)
    assert np.array_equal(alone[2:, 0], results[0][2:, 1])


def test_tokens_and_heads_have_draws_of_their_own() -> None:
    """With keys that are all the same, the bounds of tokens differ by their draws alone."""
    keys, values = like_a_model_s(2000)
    keys[1], values[1] = keys[0], values[0]
    cache = cache_of(keys, values, "planes", rounding=None, bases=True)
    q = np.repeat(np.repeat(queries(1, spread=0.2)[:1], HEADS, 0), 2, 1)
    bound = audited(Tiers(0.5, 0.0001, sample=8), q, cache)[2]
    assert len({*bound[:, ::REP].ravel()}) == 2 * GROUPS and np.ptp(bound) > 1e-3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample": -1}, "sample=-1: must be a number of blocks, or 0"),
        ({"delta": 0.0}, "delta=0.0: must be at least 1e-30 and below 1"),
        ({"delta": 1.0}, "delta=1.0: must be at least 1e-30 and below 1"),
        ({"sample": 3, "delta": 1e-300}, "delta=1e-300: must be at least 1e-30 and below 1"),
        ({"delta": 0.1}, "delta=0.1: needs sample, such as sample=64: without it"),
        ({"sample": 8, "eps": 0, "skip": 0}, "sample=8 with eps=0,skip=0: nothing is left out"),
        ({"sample": 8, "bounded": True}, "sample=8 with bounded=true: a certain bound takes no"),
    ],
)
def test_refused_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=f"^tiers: {words}"):
        Tiers(**options)
