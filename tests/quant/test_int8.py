from __future__ import annotations

import pytest
import torch

from suffice.quant import QUANTS
from suffice.quant.int8 import quantize_rows


def test_int8_codes_stay_within_half_a_step() -> None:
    values = torch.randn(9, 100) * torch.logspace(-3, 3, 9)[:, None]
    values[4] = 0
    codes, scale = quantize_rows(values)
    assert (codes.float() * scale[:, None] - values).abs().le(scale[:, None] * 0.5001).all()
    assert codes.abs().max() <= 127 and scale[4] == 0


def test_a_vocabulary_is_coded_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(100, 64, generator=torch.Generator().manual_seed(2))
    whole = QUANTS.build("int8").pack(weight)
    monkeypatch.setattr("suffice.quant.int8.BLOCK", 48)
    parts = QUANTS.build("int8").pack(weight)
    assert torch.equal(parts.data, whole.data) and torch.equal(parts.scale, whole.scale)
