from __future__ import annotations

import numpy as np

from draws import normal
from suffice.quant.int8 import quantize_rows


def test_int8_codes_stay_within_half_a_step() -> None:
    values = normal(9, 100) * np.logspace(-3, 3, 9, dtype=np.float32)[:, None]
    values[4] = 0
    codes, scale = quantize_rows(values)
    error = np.abs(codes.astype(np.float32) * scale[:, None] - values)
    assert (error <= scale[:, None] * 0.5001).all()
    assert np.abs(codes).max() <= 127 and scale[4] == 0


def test_rows_whose_inverse_scale_would_overflow_are_zeros() -> None:
    codes, scale = quantize_rows(np.float32([[1e-38, -3e-39], [1.0, 0.5]]))
    assert not codes[0].any() and codes[1].tolist() == [127, 64]
    assert scale[0] > 0
