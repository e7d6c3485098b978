"""Rotation of a layer's inputs, which spreads outliers over many channels.

With R orthogonal, W x = (W R^T) (R x): W R^T is stored, and R x is computed for each token. Inputs
are rotated in blocks (one block of all inputs if their number allows) by

    R = C (x) H        H[i, j] = (-1)^popcount(i & j) / sqrt(h)
                       C[i, j] = (cos t + sin t) / sqrt(c),    t = 2 pi i j / c

H is the Hadamard matrix of the largest power of two h that divides the block, up to 1024; C is the
Hartley matrix of the remaining factor c. C is needed because few other sizes have Hadamard
matrices, and blocks of 64 spread an outlier over only a ninth of 576 inputs. Both are symmetric, so
R^T = R. H costs log2 h additions for each element, C costs c multiplications.

Source   Ashkboos et al. 2024 (QuaRot), section 3: a Hadamard matrix before a layer. The Hartley
         matrix for other sizes is this project's.
"""

from __future__ import annotations

import torch

from suffice.errors import InputError

__all__ = ["MOST", "MOST_PARTS", "block_of", "rotate"]

LEAST, MOST = 16, 1024  # of a Hadamard matrix
MOST_PARTS = 64  # of a Hartley matrix


def block_of(columns: int) -> int:
    """Return the size of the blocks for K inputs: K, or h if its Hartley matrix is too large.

    Raises:
        InputError: h is less than 16.
    """
    size = _hadamard_size(columns)
    if size < LEAST:
        raise InputError(
            f"a layer of {columns} inputs has blocks of {size}, its width must be a multiple of "
            f"{LEAST}: give hadamard=false"
        )
    return columns if columns // size <= MOST_PARTS else size


def rotate(values: torch.Tensor, block: int) -> torch.Tensor:
    """Multiply blocks of the last dimension [..., K] by R."""
    shape, size = values.shape, _hadamard_size(block)
    values, step = values.reshape(-1, size), 1
    while step < size:
        low, high = values.view(-1, size // (2 * step), 2, step).unbind(2)
        values = torch.stack((low + high, low - high), 2).view(-1, size)
        step *= 2
    normalised: torch.Tensor = values * size**-0.5
    if block > size:
        parts = block // size
        normalised = _hartley(parts).to(values.dtype) @ normalised.view(-1, parts, size)
    return normalised.reshape(shape)


def _hadamard_size(block: int) -> int:
    return min(block & -block, MOST)


def _hartley(size: int) -> torch.Tensor:
    index = torch.arange(size)
    angle = 2 * torch.pi / size * (torch.outer(index, index) % size).double()
    matrix: torch.Tensor = (angle.cos() + angle.sin()) * size**-0.5
    return matrix
