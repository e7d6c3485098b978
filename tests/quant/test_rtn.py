"""Even grids: how far a weight may be from its code, and what `compensate` passes on."""

from __future__ import annotations

import numpy as np
import pytest

from correlated import layer
from draws import normal
from suffice.quant import gptq
from suffice.quant.codebook import codebook
from suffice.quant.coded import grouped
from suffice.quant.kmeans import KMeans
from suffice.quant.rtn import RTN

HALF = 0.51  # of a step, and what scales in float16 add


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_weight_is_further_away_than_half_a_step(bits: int, symmetric: bool) -> None:
    """Those at both ends of a group, too: the zero point is the nearest whole number."""
    weight = normal(64, 96) + np.float32(not symmetric)
    coded = RTN(bits, group=32, symmetric=symmetric).quantize(weight)
    steps = np.abs(grouped(coded.decode() - weight, 32)) / coded.grid.scale[..., None]
    assert steps.max() <= HALF + 127 * 2**-11 * (bits == 8)
    assert symmetric or (coded.grid.zero == np.rint(coded.grid.zero)).all()


def test_errors_are_passed_on_across_batches_of_columns() -> None:
    """Column by column, as in GPTQ's Eq. 2 and 3, of more columns than go together."""
    weight, hessian = layer(rows=16, columns=300)
    grid = RTN().grid(weight)
    found = gptq.compensate(weight, hessian, grid)
    order = np.argsort(-hessian.diagonal(), kind="stable")
    factor = gptq.inverse_factor(gptq.damped(hessian)[order][:, order])
    left, codes = weight.T[order], np.empty_like(found.codes.T)
    for k in range(300):
        codes[order[k]], value = grid.nearest_column(left[k], 0)
        left[k + 1 :] -= np.outer(factor[k, k + 1 :], (left[k] - value) / factor[k, k])
    assert (found.codes == codes.T).mean() > 0.99  # but for the rounding of sums


def test_large_groups_count_by_the_square_of_their_scale() -> None:
    weight = normal(8, 64) * np.repeat(np.float32([1, 3]), 32)
    plain = KMeans(2, rounds=0, centroids="float32", compensate=False, hadamard=False)
    parts = grouped(weight, 32)
    scale = np.abs(parts).max(-1, keepdims=True)
    expected = codebook(parts / scale, np.broadcast_to(np.square(scale), parts.shape), 4)
    assert np.allclose(plain.quantize(weight).grid.levels, expected, rtol=1e-5)
