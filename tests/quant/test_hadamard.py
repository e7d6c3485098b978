from __future__ import annotations

import math

import numpy as np
import pytest

from draws import normal
from suffice.errors import InputError
from suffice.quant.hadamard import block_of, rotate


@pytest.mark.parametrize(
    ("columns", "block"), [(576, 576), (1536, 1536), (4096, 4096), (48, 48), (64, 64), (1072, 16)]
)
def test_a_rotation_is_orthogonal_and_its_own_inverse(columns: int, block: int) -> None:
    assert block_of(columns) == block
    x = normal(3, columns)
    assert np.allclose(rotate(rotate(x, block), block), x, atol=1e-5)
    assert np.isclose(np.linalg.norm(rotate(x, block)), np.linalg.norm(x))
    # An outlier is spread over all of its block.
    assert np.abs(rotate(np.eye(1, columns), block)).max() <= 1.001 * (2 / block) ** 0.5


def test_a_rotation_is_what_the_formula_says() -> None:
    h, c = 32, 3
    expected = np.empty((c * h, c * h))
    for i in range(c * h):
        for j in range(c * h):
            t = 2 * math.pi * (i // h) * (j // h) / c
            sign = (-1) ** ((i % h) & (j % h)).bit_count()
            expected[i, j] = sign * h**-0.5 * (math.cos(t) + math.sin(t)) * c**-0.5
    assert np.allclose(rotate(np.eye(c * h), c * h), expected, atol=1e-12)


def test_an_odd_width_is_not_rotated() -> None:
    with pytest.raises(InputError, match="a layer of 100 inputs has blocks of 4, its width must"):
        block_of(100)


def test_rows_are_rotated_alike_however_many(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(7, 576)
    whole = rotate(x, 576)
    monkeypatch.setattr("suffice.quant.hadamard.CHUNK", 576)
    assert np.array_equal(rotate(x, 576), whole)
