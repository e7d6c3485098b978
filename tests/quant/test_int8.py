from __future__ import annotations

import numpy as np
import pytest

from draws import normal
from suffice.errors import InputError
from suffice.quant.int8 import Int8, quantize_groups


def decoded(codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    values: np.ndarray = codes * np.repeat(scale.astype(np.float32), 32, 1)[:, : codes.shape[1]]
    return values


def lost(values: np.ndarray) -> np.ndarray:
    """Return the squared errors of groups [N, 3] of values [N, 96]."""
    error = np.square(decoded(*quantize_groups(values)) - values)
    found: np.ndarray = error.reshape(len(values), 3, 32).sum(-1)
    return found


def test_no_group_loses_more_than_by_its_greatest_value() -> None:
    values = normal(50, 96) * np.logspace(-2, 3, 96, dtype=np.float32)
    values[4] = 0
    greatest = np.abs(values).reshape(50, 3, 32).max(-1)
    assert (lost(values) <= 32 * 1.01 * np.square(greatest / 255)).all()
    codes, scale = quantize_groups(values[:, :90])
    assert codes.shape == (50, 90) and scale.shape == (50, 3)
    assert np.abs(codes).max() == 127 and not scale[4].any() and not codes[4].any()


def test_trials_find_better_scales_and_coarse_grids() -> None:
    def by_greatest(values: np.ndarray) -> float:
        parts = values.reshape(-1, 32)
        scale = np.abs(parts).max(-1, keepdims=True) / 127
        return float(np.square(np.rint(parts / scale) * scale - parts).sum())

    values = normal(200, 96)
    assert lost(values).sum() < 0.85 * by_greatest(values)
    random = np.random.default_rng(1)
    scale = np.repeat(random.uniform(0.5, 1, (200, 3)), 32, 1)
    least = np.repeat(random.uniform(-8, -7, (200, 3)), 32, 1)
    values = (scale * (random.integers(16, size=(200, 96)) + least)).astype(np.float32)
    assert lost(values).sum() < 0.35 * by_greatest(values)


def test_values_on_the_grid_are_found_again() -> None:
    codes = np.random.default_rng(2).integers(-127, 128, (30, 96))
    codes[:, ::32] = 127
    values = (codes * np.repeat(2.0 ** np.arange(-14, 16), 96).reshape(30, 96)).astype(np.float32)
    values[15, 32:64] /= -3
    found = decoded(*quantize_groups(values))
    assert np.allclose(found, values, rtol=2**-11)
    assert np.array_equal(found[:15], values[:15])


def test_a_group_has_its_own_scale() -> None:
    weight = np.repeat(np.float32([[127.0, 1.0]]), 32, 1)
    packed = Int8().pack(weight)
    assert np.array_equal(packed.unpack()[:, :32], weight[:, :32])
    assert np.allclose(packed.unpack()[:, 32:], 1, rtol=1e-3)  # one scale a row: exact, but coarse
    fine = weight + np.linspace(0, 0.5, 64, dtype=np.float32)
    assert np.abs(Int8().pack(fine).unpack() - fine)[:, 32:].max() < 0.01


def test_groups_whose_scale_underflows_are_zeros() -> None:
    codes, scale = quantize_groups(np.float32([[1e-38, -3e-39], [1.0, 0.5]]))
    assert not codes[0].any() and not scale[0].view(np.uint16).any()
    assert np.allclose(decoded(codes, scale)[1], [1, 0.5], rtol=1e-3)


def test_refused_weights_and_options() -> None:
    with pytest.raises(InputError, match=r"a weight needs a scale of .*float16 holds up to 65504"):
        Int8().pack(np.full((1, 4), 1e7, np.float32))
    with pytest.raises(InputError, match=r"int8: act_bits=4; allowed: 8, 16"):
        Int8(act_bits=4)
    assert [Int8(bits).pack(normal(1, 4)).most for bits in (8, 16)] == [127, 32639]
