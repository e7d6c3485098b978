"""Keys or values in a tensor with room for more rows."""

from __future__ import annotations

import torch

from suffice.errors import OutOfMemory


def grown(rows: torch.Tensor, used: int, capacity: int) -> torch.Tensor:
    """Return rows [B, G, C, D] with another capacity: the first `used` of them, and zeros.

    Raises:
        OutOfMemory: There is no memory for them.
    """
    shape = (*rows.shape[:2], capacity, rows.shape[3])
    try:
        made = rows.new_empty(shape)
    except RuntimeError as error:
        size = rows.element_size() * shape[0] * shape[1] * shape[2] * shape[3]
        raise OutOfMemory(
            f"no memory for {capacity} rows of keys or values ({size} bytes in one layer)"
        ) from error
    made[:, :, :used] = rows[:, :, :used]
    made[:, :, used:] = 0
    return made
