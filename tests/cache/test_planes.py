"""Rows in two planes: rotated int8 whose high halves are readable alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caches import Rounding, cache_of, channel_scales, rotated
from rows import sixteen_rows
from suffice.attention import planes
from suffice.cache.kv import KVCache

SIZES = (16, 64, 80, 128, 512)


def base_of(cache: KVCache) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and values [G, S, D] by their base planes alone."""
    keys, values = (np.empty_like(cache.keys(0)) for _ in range(2))
    cache.native.load(0, 0, keys, values, base=True)
    return keys, values


def mean_square(errors: np.ndarray) -> float:
    return float(np.square(errors.astype(np.float64)).mean())


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes", "one"])
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_the_reference_s(each_isa: str, size: int, kind: str) -> None:
    rows = sixteen_rows(kind, size)
    cache = cache_of(rows, -rows, "planes", rounding=None)
    by_base = base_of(cache)
    for place, (given, found) in enumerate(((rows, cache.keys(0)), (-rows, cache.values(0)))):
        expected = planes.split(given, keys=place == 0)
        assert np.abs(expected.codes).max() == planes.MOST
        largest = np.abs(expected.whole).max(-1, keepdims=True)
        for wanted, decoded in ((expected.whole, found), (expected.base, by_base[place])):
            # an element midway between two codes, as those of one channel are, may get either
            error = np.abs(rotated(decoded.astype(np.float64)) - wanted) / largest
            assert (error > 1e-5).mean() < 1e-3


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes", "one"])
def test_rows_that_were_read_are_split_alike(kind: str) -> None:
    for size in SIZES:
        rows = sixteen_rows(kind, size)
        cache = cache_of(rows, rows, "planes", rounding=None)
        for keys, (found, alone) in enumerate(
            zip((cache.values(0), cache.keys(0)), base_of(cache)[::-1], strict=True)
        ):
            again = planes.split(found, keys=bool(keys))
            size_of = np.abs(again.whole).max(-1, keepdims=True)
            for wanted, decoded in ((again.whole, found), (again.base, alone)):
                assert (np.abs(rotated(decoded.astype(np.float64)) - wanted) < 1e-5 * size_of).all()


def test_both_planes_lose_no_more_than_int8(each_isa: str) -> None:
    """On normal rows they are alike; where a channel is large, rotation spreads it."""
    for size, large, most in ((64, 1, 1.05), (128, 1, 1.05), (64, 50, 0.25), (128, 50, 0.25)):
        rows = normal(size)
        rows[..., :2] *= large
        ours, theirs = (
            cache_of(rows, rows, dtype, limit=512, rounding=None) for dtype in ("planes", "int8")
        )
        for part in ("keys", "values"):
            error = mean_square(getattr(ours, part)(0) - rows)
            assert error < most * mean_square(getattr(theirs, part)(0) - rows)


def test_what_the_base_alone_loses(each_isa: str) -> None:
    """A codebook's levels suit normal rows better than even steps up to the largest element do."""
    for size, most in ((64, 1.4), (128, 1.6)):
        rows = normal(size)
        cache = cache_of(rows, rows, "planes", limit=512, rounding=None)
        codes = cache_of(rows, rows, "kmeans4", limit=512, rounding=None)
        least = mean_square(codes.values(0) - rows)
        for found in base_of(cache):
            assert least < mean_square(found - rows) < most * least


def normal(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((1, 500, size), np.float32)


def test_keys_are_rounded_without_their_mean_and_with_scaled_channels(each_isa: str) -> None:
    size, rounding = 64, Rounding(1, 1, 64)
    mean = rounding.means[0, 0].astype(np.float64)
    rows = sixteen_rows("normal", size) + 20 * rotated(rounding.means[0])[:, None] / channel_scales(
        size
    )
    turned = rotated((rows * channel_scales(size)).astype(np.float64))[0]
    share = turned @ mean / (mean @ mean)
    left = turned - np.float32(share)[:, None] * mean
    cache = cache_of(rows, rows, "planes", rounding=rounding.native)
    found, alone = (
        rotated((each * channel_scales(size)).astype(np.float64))[0]
        for each in (cache.keys(0), base_of(cache)[0])
    )
    # of the mean itself what bfloat16 leaves of its factor stays in the codes
    step = (np.abs(left).max(-1) + 0.004 * np.abs(share) * np.abs(mean).max()) / planes.MOST
    assert (np.abs(found - turned) <= 0.55 * step[:, None] + 1e-5 * np.abs(turned).max()).all()
    assert (np.abs(alone - turned) <= 8.6 * step[:, None] + 1e-5 * np.abs(turned).max()).all()
    plain = cache_of(rows, rows, "planes", rounding=None).keys(0)
    assert mean_square(cache.keys(0) - rows) < 0.1 * mean_square(plain - rows)


def test_a_row_of_zeros_stays_so(each_isa: str) -> None:
    rows = np.zeros((1, 20, 64), np.float32)
    rows[0, 3, 5] = 1.0
    cache = cache_of(rows, rows, "planes")
    for decoded in (cache.keys(0), cache.values(0), *base_of(cache)):
        assert not decoded[0, [*range(3), *range(4, 20)]].any()
        assert np.isfinite(decoded).all()


def test_a_row_has_a_byte_for_an_element_and_four_bytes() -> None:
    rows = np.ones((1, 32, 64), np.float32)
    assert cache_of(rows, rows, "planes").row_bytes == 2 * (64 + 4)
    assert cache_of(rows, rows, "planes", value_dtype="kmeans4").row_bytes == 64 + 4 + 32 + 4


@pytest.mark.parametrize("kept", [[0, 17, 5, 33, 39], [*range(20, 40)]])
def test_both_planes_move_with_a_row(kept: list[int]) -> None:
    rows: Any = np.random.default_rng(0).standard_normal((2, 40, 32), np.float32)
    cache = cache_of(rows, -rows, "planes")
    before = [*base_of(cache), cache.keys(0), cache.values(0)]
    fork = cache.fork()
    order = sorted(kept)
    cache.evict(0, np.array([order, order], np.int32))
    for was, now in zip(before, [*base_of(cache), cache.keys(0), cache.values(0)], strict=True):
        assert np.array_equal(was[:, order], now)
    for was, now in zip(before, [*base_of(fork), fork.keys(0), fork.values(0)], strict=True):
        assert np.array_equal(was, now)
