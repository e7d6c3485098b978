"""ART's theorems: they hold where what they assume does, and need not elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from suffice.attention.art import ART
from suffice.attention.art_bounds import bounds, changes, stops, trajectory

SIZE = 64


def equal_masses(blocks: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys that all weigh the same, so that l_j / A_j = 1 / j, and values that drift a little."""
    drawn = torch.Generator().manual_seed(seed)
    v = 1 + 1e-2 * torch.randn(blocks * 16, SIZE, generator=drawn, dtype=torch.float64)
    return np.zeros((1, SIZE)), np.zeros((blocks * 16, SIZE)), v.numpy()


@pytest.mark.parametrize("seed", range(5))
def test_the_bounds_hold_where_masses_decay(seed: int) -> None:
    art = ART(change=1e-2, angle=0.5, patience=2, block=16, probe=SIZE)
    [found] = bounds(art, *equal_masses(40, seed), scale=1.0)
    assert found.regulated and found.decays and found.stopped < found.blocks == 40
    assert 0 < found.error <= min(found.theorem1, found.theorem2)
    assert found.theorem1_steps <= found.theorem1 < math.inf


def test_a_far_needle_breaks_what_the_theorems_assume_and_their_bounds() -> None:
    """The oldest block outweighs all others, and comes soon after the stop."""
    art = ART(change=1e-2, angle=0.5, patience=30, block=16, probe=SIZE)
    q, k, v = equal_masses(40, 0)
    q[0, 0], k[3, 0], v[3] = 1.0, 14.0, -8.0
    [found] = bounds(art, q, k, v, scale=1.0)
    assert found.stopped < found.blocks and not found.decays and not found.regulated
    # C_v and Delta grow with the needle's value, but mu knows nothing of its mass.
    assert found.error > found.theorem2 > 0 and found.error > found.theorem1 > 0
    assert math.isclose(found.error, float(np.linalg.norm(v[3] - 1)), rel_tol=0.05)


def test_a_probe_of_fewer_elements_than_steps_bounds_nothing() -> None:
    art = ART(change=1e-2, angle=0.5, patience=2, block=16, probe=16)
    [found] = bounds(art, *equal_masses(40, 0), scale=1.0)
    assert found.theorem1 == math.inf
    assert found.error <= found.theorem1_steps < math.inf


def test_a_head_that_never_stops_misses_nothing() -> None:
    [found] = bounds(ART(change=0, block=16), *equal_masses(9, 0), scale=1.0)
    assert (found.stopped, found.error, found.theorem1, found.theorem2) == (9, 0, 0, 0)


@pytest.mark.parametrize("block", [16, 48, 64])
@pytest.mark.parametrize("rows", [5, 64, 700])
def test_the_trajectory_ends_in_the_softmax_and_stops_where_the_reference_does(
    rows: int, block: int
) -> None:
    drawn = torch.Generator().manual_seed(rows)
    tensors = [torch.randn(n, SIZE, generator=drawn).double() for n in (3, rows, rows)]
    plain = (0.1 * tensors[0] @ tensors[1].T).softmax(-1) @ tensors[2]
    q, k, v = (each.numpy() for each in tensors)
    path = trajectory(q, k, v, scale=0.1, block=block)
    np.testing.assert_allclose(path.outputs[:, -1], plain.numpy(), rtol=1e-7, atol=1e-7)
    art = ART(change=0.3, angle=0.1, patience=2, block=block)
    scales, directions = changes(art, path.outputs)
    stable = (scales < art.change) & (directions < art.angle)
    together = stops(stable, art.patience)
    for head in range(3):
        found = art.reference(q[head, None, None], k[None], v[None], scale=0.1)
        read = min(int(together[head]), path.masses.shape[1]) * block
        spare = -rows % block
        assert int(found.keys.sum()) == min(read - spare, rows)
        settled = path.outputs[head, min(int(together[head]), path.masses.shape[1]) - 1]
        np.testing.assert_allclose(found.output[0, 0], settled, rtol=1e-7, atol=1e-7)


def test_stops_counts_looks_in_a_row() -> None:
    stable = np.array([[0, 1, 1, 0, 1], [0, 1, 0, 1, 1], [0, 1, 0, 1, 0]], bool)
    assert stops(stable, 2).tolist() == [3, 5, 6]
    assert stops(stable, 1).tolist() == [2, 2, 2]
