"""New rows go where the cache has them."""

from __future__ import annotations

import pytest
import torch

from gpu.device_rows import DEVICE
from suffice.backends.triton.call import Held
from suffice.backends.triton.store import store


@pytest.mark.parametrize("columns", [1, 3, 20])
def test_columns_are_stored_in_their_places_and_nowhere_else(columns: int) -> None:
    batch, heads, rows, size = 2, 3, 40, 48
    keys, values = torch.zeros(2, batch, heads, rows, size, device=DEVICE)
    # As a model's products give them: heads lie behind columns.
    new = torch.randn(2, batch, columns, heads, size, device=DEVICE).transpose(2, 3)
    made = torch.Generator().manual_seed(0)
    place = torch.stack([torch.randperm(rows, generator=made)[:columns] for _ in range(batch)])
    place[1, columns // 2] = -1  # padding
    expected = torch.zeros(2, batch, heads, rows, size, device=DEVICE)
    for request in range(batch):
        for column, row in enumerate(place[request].tolist()):
            if row >= 0:
                expected[:, request, :, row] = new[:, request, :, column]
    store(Held(keys, values), new[0], new[1], place.int().to(DEVICE))
    assert torch.equal(torch.stack((keys, values)), expected)
