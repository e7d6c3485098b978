"""Tests of weights in codes as files store them: the form that takes the fewest bytes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from suffice.quant.stored_codes import stored_codes

ROWS, COLUMNS = 3, 96


def values(codes: np.ndarray, scales: np.ndarray, zeros: Any, group: int) -> np.ndarray:
    """Return scale (code - zero) in float32."""
    wide = np.repeat(scales.astype(np.float32), group, 1)[:, :COLUMNS]
    zero = np.broadcast_to(zeros, scales.shape)
    return wide * (codes.astype(np.float32) - np.repeat(zero, group, 1)[:, :COLUMNS])


@pytest.mark.parametrize(
    ("bits", "zeros", "minima", "lowest"),
    [
        (4, np.array(8), "none", -8),
        (4, np.full((ROWS, 3), 8), "none", -8),
        (4, np.full((ROWS, 3), 15), "none", -15),
        (4, np.arange(9).reshape(ROWS, 3), "zero", 0),
        (8, np.array(128), "none", -128),
        (8, np.array(0), "zero", -128),
        (8, np.full((ROWS, 3), 255), "zero", -128),
    ],
)
def test_zero_points_that_are_equal_move_into_the_levels(
    bits: int, zeros: np.ndarray, minima: str, lowest: int
) -> None:
    random = np.random.default_rng(0)
    codes = random.integers(2**bits, size=(ROWS, COLUMNS)).astype(np.uint8)
    scales = random.random((ROWS, 3)).astype(np.float16)
    found = stored_codes(codes, scales, zeros, bits, 32)
    assert (found.layout.minima, int(found.levels[0]) - 128) == (minima, lowest)
    out = np.empty((ROWS, COLUMNS), np.float32)
    found.rows(0, out)
    assert np.array_equal(out, values(codes, scales, zeros, 32))


@pytest.mark.parametrize(
    ("scales", "form"),
    [
        (np.float32([0.5, 65504, 6e-8]).astype(np.float16).astype(np.float32), "float16"),
        (
            np.float32([1e38, 2.0**-130, 0]).astype(ml_dtypes.bfloat16).astype(np.float32),
            "bfloat16",
        ),
        (np.float32([0.1, 0.2, 0.3]), "float32"),
        (np.float32([1e38, 1 + 2.0**-9, 0]), "float32"),
        (np.array([0.1, 0.2, 0.3], np.float16), "float16"),
        (np.array([0.1, 0.2, 0.3], ml_dtypes.bfloat16), "bfloat16"),
    ],
)
def test_scales_take_the_smallest_type_that_holds_them(scales: np.ndarray, form: str) -> None:
    codes = np.zeros((ROWS, COLUMNS), np.uint8)
    found = stored_codes(codes, scales[:, None], np.array(8), 4, None)
    assert (found.layout.scales, found.layout.group) == (form, 96)
    assert np.array_equal(found.scales.astype(np.float32), scales[:, None].astype(np.float32))


def test_an_order_says_which_inputs_columns_multiply() -> None:
    order = np.random.default_rng(1).permutation(COLUMNS).astype(np.int32)
    codes = np.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS).astype(np.uint8) % 16
    found = stored_codes(codes, np.ones((ROWS, 1), np.float16), np.array(0), 4, None, order)
    out = np.empty((ROWS, COLUMNS), np.float32)
    found.rows(0, out)
    assert np.array_equal(out[:, order], codes)
    part = np.empty((2, COLUMNS), np.float32)
    found.rows(1, part)
    assert np.array_equal(part, out[1:])
