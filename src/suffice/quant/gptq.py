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

import torch

from suffice.quant.coded import Coded, Grid

__all__ = ["compensate", "damped", "descend", "inverse_factor", "loss", "rescale"]

DAMPING = 0.01  # fraction of the mean of the diagonal that is added to it
BLOCK = 128  # columns whose errors are passed to the others together


def damped(hessian: torch.Tensor) -> torch.Tensor:
    """Return H [K, K] with a small multiple of its mean diagonal added; the identity if H is
    zero."""
    mean = hessian.diagonal().mean()
    if mean <= 0:
        return torch.eye(len(hessian))
    return hessian + DAMPING * mean * torch.eye(len(hessian))


def inverse_factor(hessian: torch.Tensor) -> torch.Tensor:
    """Return the upper triangular U [K, K] with U^T U = H^-1."""
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian.double()))
    factor: torch.Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()


def loss(weight: torch.Tensor, decoded: torch.Tensor, hessian: torch.Tensor) -> float:
    """Return the mean squared change of the outputs of W [N, K], summed over the rows."""
    error = weight - decoded
    return float(((error @ hessian) * error).sum())


def compensate(weight: torch.Tensor, hessian: torch.Tensor, grid: Grid) -> Coded:
    """Round W [N, K] to a grid, passing each column's error to the columns after it."""
    rows, columns = weight.shape
    order = torch.argsort(hessian.diagonal(), descending=True)
    groups = grid.groups(columns)[order].tolist()
    factor = inverse_factor(damped(hessian)[order][:, order])
    left = weight.T[order]  # columns become rows: contiguous in memory
    codes = torch.empty(columns, rows, dtype=torch.uint8)
    for start in range(0, columns, BLOCK):
        end = min(start + BLOCK, columns)
        errors = torch.empty(end - start, rows)
        for k in range(start, end):
            codes[k], value = grid.nearest_column(left[k], groups[k])
            error = torch.div(left[k] - value, factor[k, k], out=errors[k - start])  # Eq. 2
            left[k + 1 : end].addr_(factor[k, k + 1 : end], error, alpha=-1)  # Eq. 3
        left[end:].addmm_(factor[start:end, end:].T, errors, alpha=-1)
    return Coded(codes[torch.argsort(order)].T.contiguous(), grid)


def descend(weight: torch.Tensor, hessian: torch.Tensor, coded: Coded, sweeps: int) -> Coded:
    """Set each code in turn to the value of least loss while all others stay; `sweeps` times."""
    columns = weight.shape[1]
    hessian, grid = damped(hessian), coded.grid
    groups = grid.groups(columns).tolist()
    codes, decoded = coded.codes.T.contiguous(), coded.decode().T.contiguous()
    pull = hessian @ (weight.T - decoded)  # minus half the gradient
    for _ in range(sweeps):
        for start in range(0, columns, BLOCK):
            end = min(start + BLOCK, columns)
            moved = torch.empty(end - start, len(weight))
            for k in range(start, end):
                wanted = decoded[k] + pull[k] / hessian[k, k]
                codes[k], value = grid.nearest_column(wanted, groups[k])
                move = torch.sub(value, decoded[k], out=moved[k - start])
                pull[start:end].addr_(hessian[k, start:end], move, alpha=-1)
                decoded[k] = value
            pull[:start].addmm_(hessian[start:end, :start].T, moved, alpha=-1)
            pull[end:].addmm_(hessian[start:end, end:].T, moved, alpha=-1)
    return Coded(codes.T.contiguous(), grid)


def rescale(weight: torch.Tensor, hessian: torch.Tensor, coded: Coded) -> Coded:
    """Return the same codes with the scales of least loss, for weights without zero point.

    For each row, with c_g the levels of group g and zeros elsewhere, the scales s solve
    sum_h (c_g^T H c_h) s_h = c_g^T H w.
    """
    grid = coded.grid
    assert grid.zero is None, "a zero point and a scale are not refined together"
    rows, columns = weight.shape
    hessian = damped(hessian)
    levels = grid.levels[coded.codes.int()]
    count = grid.scale.shape[1]
    matrix = torch.zeros(rows, count, count)
    right = torch.zeros(rows, count)
    wanted = weight @ hessian
    for g in range(count):
        own = slice(g * grid.group, min((g + 1) * grid.group, columns))
        pulled = (levels[:, own] @ hessian[own]) * levels
        spread = torch.nn.functional.pad(pulled, (0, -columns % grid.group))
        matrix[:, g] = spread.view(rows, count, -1).sum(-1)
        right[:, g] = (wanted[:, own] * levels[:, own]).sum(-1)
    # A group of zeros has no equation: its scale stays 0.
    empty = matrix.diagonal(dim1=1, dim2=2) <= 0
    matrix += torch.diag_embed(empty.float())
    scale = torch.linalg.solve(matrix, right)
    keep = (scale > 0) | empty
    return replace(coded, grid=replace(grid, scale=torch.where(keep, scale, grid.scale)))
