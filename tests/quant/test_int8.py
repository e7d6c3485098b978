from __future__ import annotations

import numpy as np
import pytest

from draws import normal
from suffice.errors import InputError
from suffice.quant.int8 import Int8, quantize_groups


def test_codes_stay_within_half_a_step_of_their_group() -> None:
    values = normal(9, 100) * np.logspace(-2, 3, 100, dtype=np.float32)
    values[4] = 0
    codes, scale = quantize_groups(values)
    assert codes.shape == values.shape and scale.shape == (9, 4)
    steps = np.repeat(scale.astype(np.float32), 32, 1)[:, :100]
    # A scale rounded down to float16 cuts the greatest value by up to 127 / 2048 of a step more.
    assert (np.abs(codes * steps - values) <= steps * 0.57).all()
    assert np.abs(codes).max() == 127 and not scale[4].any()
    assert (np.abs(values).reshape(-1)[codes.reshape(-1) == 0] <= steps.max() / 2).all()


def test_a_group_has_its_own_scale() -> None:
    weight = np.repeat(np.float32([[127.0, 1.0]]), 32, 1)
    packed = Int8().pack(weight)
    assert np.array_equal(packed.unpack()[:, :32], weight[:, :32])
    assert np.allclose(packed.unpack()[:, 32:], 1, rtol=1e-3)  # one scale a row: exact, but coarse
    fine = weight + np.linspace(0, 0.5, 64, dtype=np.float32)
    assert np.abs(Int8().pack(fine).unpack() - fine)[:, 32:].max() < 0.01


def test_groups_whose_scale_underflows_are_zeros() -> None:
    codes, scale = quantize_groups(np.float32([[1e-38, -3e-39], [1.0, 0.5]]))
    assert not codes[0].any() and codes[1].tolist() == [127, 64]
    assert scale[0] == 0


def test_refused_weights_and_options() -> None:
    with pytest.raises(InputError, match=r"a weight needs a scale of .*float16 holds up to 65504"):
        Int8().pack(np.full((1, 4), 1e7, np.float32))
    with pytest.raises(InputError, match=r"int8: act_bits=4; allowed: 8, 16"):
        Int8(act_bits=4)
    assert [Int8(bits).pack(normal(1, 4)).most for bits in (8, 16)] == [127, 32639]
