"""Rows in two planes: those of `kmeans4`, readable alone, and what they leave of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caches import Rounding, cache_of, channel_scales, held, held_planes, rotated
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


@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_the_base_is_kmeans4(each_isa: str, size: int, fitted: bool) -> None:
    """Bit for bit, whether the rounding of keys is fitted or not."""
    how = {"rounding": Rounding(1, 1, size).native if fitted else None}
    for kind in ("normal", "outliers", "sizes", "one"):
        rows = sixteen_rows(kind, size)
        codes = cache_of(rows, -rows, "kmeans4", **how)
        keys, values = base_of(cache_of(rows, -rows, "planes", **how))
        assert np.array_equal(keys, codes.keys(0)) and np.array_equal(values, codes.values(0))


@pytest.mark.parametrize("kind", ["normal", "outliers", "sizes", "one"])
@pytest.mark.parametrize("size", SIZES)
def test_rows_are_the_reference_s(each_isa: str, size: int, kind: str) -> None:
    rows = sixteen_rows(kind, size)
    cache = cache_of(rows, -rows, "planes", rounding=None)
    for keys, (given, found) in enumerate(
        zip((-rows, rows), held_planes(cache)[::-1], strict=True)
    ):
        expected = planes.split(given, keys=bool(keys))
        assert (np.abs(found.rest) <= -planes.LEAST).all() and found.rest.max() <= planes.MOST
        alike = (found.levels == expected.levels) & (found.rest == expected.rest)
        # Elements midway between two codes may get either, and those of one channel any level.
        assert alike.mean() > 0.9 or kind == "one"
        ours, theirs = (
            mean_square((each.whole - rotated(given.astype(np.float64))) / row_size(given))
            for each in (found, expected)
        )
        assert ours == pytest.approx(theirs, rel=0.05, abs=1e-9)


def row_size(rows: np.ndarray) -> np.ndarray:
    return np.abs(rows).max(-1, keepdims=True)


def test_what_rows_lose(each_isa: str) -> None:
    """Both planes lose a fourteenth of what the base alone does; where channels are large, less
    than int8."""
    for size in (64, 128):
        rows = normal(size)
        caches = {
            dtype: cache_of(rows, rows, dtype, limit=512, rounding=None)
            for dtype in ("planes", "int8")
        }
        for alone, whole, simple in zip(
            base_of(caches["planes"]), held(caches["planes"]), held(caches["int8"]), strict=True
        ):
            error = mean_square(whole - rows)
            assert 2e-4 > error > mean_square(simple - rows)
            assert 30 * error < mean_square(alone - rows)
        rows[..., :2] *= 100
        ours, theirs = (
            cache_of(rows, rows, dtype, limit=512, rounding=None) for dtype in ("planes", "int8")
        )
        for part in ("keys", "values"):
            error = mean_square(getattr(ours, part)(0) - rows)
            assert error < 0.9 * mean_square(getattr(theirs, part)(0) - rows)


def normal(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((1, 500, size), np.float32)


@pytest.mark.parametrize("size", [16, 64, 512])
def test_errors_of_keys_are_passed_on_in_both_planes(each_isa: str, size: int) -> None:
    """What counts are scores of queries like those that the rounding was fitted to."""
    rounding, scales = Rounding(1, 1, size), channel_scales(size)
    metric = rounding.moments[0, 0].astype(np.float64)
    rows = sixteen_rows("normal", size)
    turned = rotated((rows * scales).astype(np.float64))[0]

    def error(how: Any, dtype: str = "planes") -> float:
        found = cache_of(rows, rows, dtype, rounding=how).keys(0)
        lost = rotated((found * scales).astype(np.float64))[0] - turned
        return float(np.einsum("nd,de,ne->n", lost, metric, lost).mean())

    assert error(rounding.native) < 0.5 * error(None)
    assert error(rounding.native) < 0.5 * error(rounding.native, "kmeans4")


def test_keys_are_rounded_without_their_mean(each_isa: str) -> None:
    size, rounding = 64, Rounding(1, 1, 64)
    mean = 20 * rotated(rounding.means[0])[:, None] / channel_scales(size)
    rows = sixteen_rows("normal", size) + mean
    found, plain = (
        cache_of(rows, rows, "planes", rounding=how).keys(0) for how in (rounding.native, None)
    )
    assert mean_square(found - rows) < 0.1 * mean_square(plain - rows)


def test_a_row_of_zeros_stays_so(each_isa: str) -> None:
    rows = np.zeros((1, 20, 64), np.float32)
    rows[0, 3, 5] = 1.0
    cache = cache_of(rows, rows, "planes")
    for decoded in (cache.keys(0), cache.values(0), *base_of(cache)):
        assert not decoded[0, [*range(3), *range(4, 20)]].any()
        assert np.isfinite(decoded).all()


def test_a_row_has_a_byte_for_an_element_and_five_bytes() -> None:
    rows = np.ones((1, 32, 64), np.float32)
    assert cache_of(rows, rows, "planes").row_bytes == 2 * (64 + 5)
    assert cache_of(rows, rows, "planes", value_dtype="kmeans4").row_bytes == 64 + 5 + 32 + 4


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
