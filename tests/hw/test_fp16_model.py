"""The units' FP16 in integers against numpy's, where both mean the same: normal results."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from suffice_hw.rtl import fp16_model

LEAST = Fraction(1, 2**14)  # normal


def number(bits: int) -> np.float16:
    return np.uint16(bits).view(np.float16)


def pairs(count: int = 10000) -> list[tuple[int, int]]:
    random = np.random.default_rng(4)
    near = random.integers(10, 20, (count, 2)) << 10
    wide = random.integers(1, 31, (count, 2)) << 10
    fields = np.where(random.random((count, 1)) < 0.5, near, wide)
    signs = random.integers(0, 2, (count, 2)) << 15
    return (signs | fields | random.integers(0, 1024, (count, 2))).tolist()


@pytest.mark.parametrize(
    ("ours", "exact"),
    [
        (fp16_model.multiply, operator.mul),
        (fp16_model.add, operator.add),
        (fp16_model.subtract, operator.sub),
        (fp16_model.divide, operator.truediv),
    ],
    ids=lambda function: function.__name__,
)
def test_normal_results_are_numpys(
    ours: Callable[[int, int], int], exact: Callable[..., Fraction]
) -> None:
    compared = 0
    for a, b in pairs():
        x, y = number(a), number(b)
        value = exact(Fraction(float(x)), Fraction(float(y)))
        found = ours(a, b)
        if value and abs(value) < LEAST:
            assert found == (0x8000 if value < 0 else 0), (hex(a), hex(b))
            continue
        with np.errstate(over="ignore"):
            expected = int(exact(x, y).view(np.uint16))
        assert found == expected, (hex(a), hex(b))
        compared += 1
    assert compared > 2500


def test_what_ieee_has_and_the_units_have_not() -> None:
    subnormal, infinity, one = 0x0001, 0x7C00, 0x3C00
    assert fp16_model.multiply(subnormal, 0x7BFF) == 0
    assert fp16_model.add(subnormal, one) == one
    assert fp16_model.multiply(0, infinity) == 0
    assert fp16_model.add(infinity, 0xFC00) == infinity
    assert fp16_model.divide(one, 0x8000) == 0xFC00
    assert fp16_model.divide(0, 0) == 0
    assert fp16_model.divide(infinity, infinity) == 0


def test_keys_order_as_numbers() -> None:
    bits = [b for b in range(0x10000) if not fp16_model.infinite(b)]
    keys = np.array([fp16_model.key(b) for b in bits])
    assert (np.diff(np.array(bits, np.uint16).view(np.float16)[np.argsort(keys)]) >= 0).all()
    assert len(set(keys.tolist())) == len(bits)
