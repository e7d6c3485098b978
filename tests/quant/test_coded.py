from __future__ import annotations

from dataclasses import replace

import numpy as np

from suffice.quant.coded import Coded, Grid


def test_decode_is_what_the_formula_says() -> None:
    grid = Grid(
        np.float32([-1, 0, 2]),
        np.float32([[1, 10], [0.5, 3]]),
        group=2,
        zero=np.float32([[0, 1], [0, 0]]),
    )
    coded = Coded(np.uint8([[0, 2, 1], [2, 1, 0]]), grid)
    assert coded.decode().tolist() == [[-1, 2, -10], [1, 0, -3]]
    assert np.array_equal(replace(coded).decode(), coded.decode())
