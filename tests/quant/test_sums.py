"""Sums of rows: the order that `suffice.quant.sums` states, number by number."""

from __future__ import annotations

import numpy as np
import pytest

from draws import normal
from suffice.quant import sums
from suffice.quant.sums import row_sums


def one_by_one(row: np.ndarray) -> np.float32:
    """Return the sum of one row by plain loops."""
    vectors = len(row) // 8
    levels = np.zeros((4, 4, 8), np.float32)  # of four sums, a vector each
    steps = vectors // 4
    for step in range(steps):
        for number in range(4):
            levels[0, number] += row[(4 * step + number) * 8 :][:8]
        done, level = step + 1, 1
        while level < 4 and done % 16 == 0:
            levels[level] += levels[level - 1]
            levels[level - 1] = 0
            done, level = done // 16, level + 1
    four = levels[0]
    for level in levels[1:]:
        four = four + level
    for vector in range(4 * steps, vectors):
        four[0] += row[vector * 8 :][:8]
    lanes = four[0]
    for number in range(1, 4):
        lanes = lanes + four[number]
    total = np.float32(0)
    for value in (*row[vectors * 8 :], *lanes):
        total = total + value
    return total


@pytest.mark.parametrize("size", [1, 7, 8, 20, 32, 64, 100, 576, 4096, 9000])
def test_sums_are_in_the_stated_order(size: int) -> None:
    values = normal(3, 2, size, seed=size)
    expected = [[one_by_one(row) for row in rows] for rows in values]
    assert np.array_equal(row_sums(values), np.float32(expected))
    exact = values.astype(np.float64).sum(-1)
    assert np.abs(row_sums(values) - exact).max() <= 1e-6 * np.abs(values).sum(-1).max()


def test_another_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    values = normal(50, 576)
    found = row_sums(values)
    monkeypatch.setattr(sums, "SUMS", 2)
    assert not np.array_equal(row_sums(values), found)
    assert not np.array_equal(values.sum(-1), found)
