from __future__ import annotations

from dataclasses import replace

import torch

from suffice.quant.coded import Coded, Grid


def test_decode_is_what_the_formula_says() -> None:
    grid = Grid(
        torch.tensor([-1.0, 0.0, 2.0]),
        torch.tensor([[1.0, 10.0], [0.5, 3.0]]),
        group=2,
        zero=torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
    )
    coded = Coded(torch.tensor([[0, 2, 1], [2, 1, 0]], dtype=torch.uint8), grid)
    assert coded.decode().tolist() == [[-1, 2, -10], [1, 0, -3]]
    assert replace(coded).decode().equal(coded.decode())
