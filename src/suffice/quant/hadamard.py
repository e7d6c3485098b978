"""Rotation of a layer's inputs by Hadamard matrices, which spreads what is large over many.

With R orthogonal, W x = (W R^T) (R x): W R^T is stored, and R x computed for each token. R is block
diagonal, of Hadamard matrices of the largest power of two that divides the width; these are
symmetric, so R^T = R, and a product with one takes log2 of its size additions for each element.

Source   Ashkboos et al. 2024 (QuaRot), section 3, where a Hadamard product goes before a layer.
"""

from __future__ import annotations

import torch

from suffice.errors import InputError

__all__ = ["MOST", "block_of", "rotate"]

LEAST, MOST = 16, 1024


def block_of(columns: int) -> int:
    """Return the size of the blocks for K inputs: the largest power of two, at most 1024.

    Raises:
        InputError: It is less than 16.
    """
    block = min(columns & -columns, MOST)
    if block < LEAST:
        raise InputError(
            f"hadamard=true: a layer of {columns} inputs has blocks of {block}; "
            f"its width must be a multiple of {LEAST}"
        )
    return block


def rotate(values: torch.Tensor, block: int) -> torch.Tensor:
    """Multiply blocks of the last dimension [..., K] by the normalised Hadamard matrix."""
    shape = values.shape
    values, step = values.reshape(-1, block), 1
    while step < block:
        low, high = values.view(-1, block // (2 * step), 2, step).unbind(2)
        values = torch.stack((low + high, low - high), 2).view(-1, block)
        step *= 2
    normalised: torch.Tensor = values * block**-0.5
    return normalised.view(shape)
