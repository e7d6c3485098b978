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

import numpy as np

from suffice.errors import InputError

LEAST, MOST = 16, 1024  # of a Hadamard matrix
MOST_PARTS = 64  # of a Hartley matrix
CHUNK = 1 << 16  # values rotated at a time, so that they stay in the cache


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


def rotate(values: np.ndarray, block: int) -> np.ndarray:
    """Multiply blocks of the last dimension [..., K] by R."""
    blocks = values.reshape(-1, block)
    turned, at_once = np.empty_like(blocks), max(1, CHUNK // block)
    for begin in range(0, len(blocks), at_once):
        own = slice(begin, begin + at_once)
        turned[own] = _rotated(blocks[own])
    return turned.reshape(values.shape)


def _rotated(blocks: np.ndarray) -> np.ndarray:
    """Multiply rows [N, B] by R."""
    block = blocks.shape[1]
    size, step = _hadamard_size(block), 1
    values: np.ndarray = blocks.reshape(-1, size)
    while step < size:
        pairs = values.reshape(-1, size // (2 * step), 2, step)
        both = np.empty_like(pairs)
        np.add(pairs[:, :, 0], pairs[:, :, 1], out=both[:, :, 0])
        np.subtract(pairs[:, :, 0], pairs[:, :, 1], out=both[:, :, 1])
        values, step = both.reshape(-1, size), 2 * step
    values = values * values.dtype.type(size**-0.5)
    if block > size:
        parts = block // size
        values = _hartley(parts).astype(values.dtype) @ values.reshape(-1, parts, size)
    rotated: np.ndarray = values.reshape(blocks.shape)
    return rotated


def _hadamard_size(block: int) -> int:
    return min(block & -block, MOST)


def _hartley(size: int) -> np.ndarray:
    index = np.arange(size)
    angle = 2 * np.pi / size * (np.outer(index, index) % size)
    matrix: np.ndarray = (np.cos(angle) + np.sin(angle)) * size**-0.5
    return matrix
