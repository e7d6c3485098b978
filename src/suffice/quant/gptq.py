"""Error compensation: minimizes the error of a layer's outputs, not of its weights.

With H = E[x x^T] over a layer's inputs, the mean square error of its outputs is, row by row,

    loss = (w - q)^T H (w - q)

`compensate` rounds column after column, those of the largest inputs first; columns not yet rounded
compensate for each error. `descend` then changes one code at a time as long as that lowers the
loss, and `rescale` computes the scales of least loss for the codes.

Source   Frantar et al. 2022 (GPTQ): Eq. 2 and 3, Cholesky form and lazy batches of section 4; the
         order by diag H and fixed scales are from their reference code. `descend` and `rescale`
         are this project's.
Exact    weights that lie on the grid are unchanged, whatever H.
Cost     N K^2 multiplications each, and K^3 once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from suffice.quant.coded import Coded, Grid, grouped

DAMPING = 0.01  # fraction of the mean of the diagonal that is added to it
BLOCK = 128  # columns whose errors are passed to the others together


def damped(hessian: np.ndarray) -> np.ndarray:
    """Return H [K, K] with a small multiple of its mean diagonal added; the identity if H is
    zero."""
    mean = hessian.diagonal().mean()
    identity = np.eye(len(hessian), dtype=hessian.dtype)
    if mean <= 0:
        return identity
    found: np.ndarray = hessian + hessian.dtype.type(DAMPING) * mean * identity
    return found


def inverse_factor(hessian: np.ndarray) -> np.ndarray:
    """Return the upper triangular U [K, K] with U^T U = H^-1, float32.

    With the order of rows and columns reversed, H = L L^T; U is L^-1, reversed again.
    """
    lower = np.linalg.cholesky(hessian[::-1, ::-1].astype(np.float64))
    inverse = _inverse(lower)[::-1, ::-1]
    return np.ascontiguousarray(inverse, dtype=np.float32)


def _inverse(lower: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower triangular matrix, by halves."""
    size = len(lower)
    if size <= BLOCK:
        return np.tril(np.linalg.inv(lower))
    half = size // 2
    found = np.zeros_like(lower)
    found[:half, :half] = _inverse(lower[:half, :half])
    found[half:, half:] = _inverse(lower[half:, half:])
    found[half:, :half] = -found[half:, half:] @ (lower[half:, :half] @ found[:half, :half])
    return found


def loss(weight: np.ndarray, decoded: np.ndarray, hessian: np.ndarray) -> float:
    """Return the mean squared change of the outputs of W [N, K], summed over the rows."""
    error = weight - decoded
    return float(((error @ hessian) * error).sum())


def compensate(weight: np.ndarray, hessian: np.ndarray, grid: Grid) -> Coded:
    """Round W [N, K] to a grid, passing each column's error to the columns after it."""
    rows, columns = weight.shape
    order = np.argsort(-hessian.diagonal(), kind="stable")
    groups = grid.groups(columns)[order].tolist()
    factor = inverse_factor(damped(hessian)[order][:, order])
    left = weight.T[order]  # columns become rows: contiguous in memory
    codes = np.empty((columns, rows), np.uint8)
    for start in range(0, columns, BLOCK):
        end = min(start + BLOCK, columns)
        errors = np.empty((end - start, rows), np.float32)
        for k in range(start, end):
            codes[k], value = grid.nearest_column(left[k], groups[k])
            error = np.divide(left[k] - value, factor[k, k], out=errors[k - start])  # Eq. 2
            left[k + 1 : end] -= np.outer(factor[k, k + 1 : end], error)  # Eq. 3
        left[end:] -= factor[start:end, end:].T @ errors
    return Coded(np.ascontiguousarray(codes[np.argsort(order)].T), grid)


def descend(weight: np.ndarray, hessian: np.ndarray, coded: Coded, sweeps: int) -> Coded:
    """Set each code in turn to the value of least loss while all others stay; `sweeps` times."""
    columns = weight.shape[1]
    hessian, grid = damped(hessian), coded.grid
    groups = grid.groups(columns).tolist()
    codes, decoded = (np.array(each.T, order="C") for each in (coded.codes, coded.decode()))
    pull = hessian @ (weight.T - decoded)  # minus half the gradient
    for _ in range(sweeps):
        for start in range(0, columns, BLOCK):
            end = min(start + BLOCK, columns)
            moved = np.empty((end - start, len(weight)), np.float32)
            for k in range(start, end):
                wanted = decoded[k] + pull[k] / hessian[k, k]
                codes[k], value = grid.nearest_column(wanted, groups[k])
                move = np.subtract(value, decoded[k], out=moved[k - start])
                pull[start:end] -= np.outer(hessian[k, start:end], move)
                decoded[k] = value
            pull[:start] -= hessian[start:end, :start].T @ moved
            pull[end:] -= hessian[start:end, end:].T @ moved
    return Coded(np.ascontiguousarray(codes.T), grid)


def rescale(weight: np.ndarray, hessian: np.ndarray, coded: Coded) -> Coded:
    """Return the same codes with the scales of least loss, for weights without zero point.

    For each row, with c_g the levels of group g and zeros elsewhere, the scales s solve
    sum_h (c_g^T H c_h) s_h = c_g^T H w.
    """
    grid = coded.grid
    assert grid.zero is None, "a zero point and a scale are not refined together"
    rows, columns = weight.shape
    hessian = damped(hessian)
    levels = grid.levels[coded.codes]
    count = grid.scale.shape[1]
    matrix = np.zeros((rows, count, count), np.float32)
    right = np.zeros((rows, count), np.float32)
    wanted = weight @ hessian
    for g in range(count):
        own = slice(g * grid.group, min((g + 1) * grid.group, columns))
        pulled = (levels[:, own] @ hessian[own]) * levels
        matrix[:, g] = grouped(pulled, grid.group).sum(-1)
        right[:, g] = (wanted[:, own] * levels[:, own]).sum(-1)
    # A group of zeros has no equation: its scale stays 0.
    empty = matrix.diagonal(axis1=1, axis2=2) <= 0
    at = np.arange(count)
    matrix[:, at, at] += empty
    scale = np.linalg.solve(matrix, right[..., None])[..., 0]
    keep = (scale > 0) | empty
    return replace(coded, grid=replace(grid, scale=np.where(keep, scale, grid.scale)))
