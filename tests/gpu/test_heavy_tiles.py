"""Tiles that are left out on a GPU: whatever programs share a running maximum."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpu.device_rows import Case
from gpu.test_attend import equals
from suffice.backends.triton import skipping


def spread(*lengths: int, window: int | None = None) -> Case:
    """Return a case of one head, in which most tiles are light."""
    case = Case.random(lengths, heads=1, group=2, window=window)
    case.q *= 2
    return case


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize("split", [0, 64, 192, 320])
def test_splits_of_any_length(block: int, split: int) -> None:
    """Shorter than the rows of a program, as long as several, and across their borders."""
    equals(spread(700, 400, window=450), f"skip_softmax:factor=200,block={block},split={split}")


def test_a_late_tile_looks_back_at_many() -> None:
    """Rows of many programs, and more tiles before the last than are looked back at together."""
    case, technique = spread(4400), "skip_softmax:factor=4000,block=16"
    found, reads = case.run(technique)
    [exact] = case.reference(technique)
    np.testing.assert_allclose(found[0], exact.output[:, 0], atol=1e-5)
    assert reads.values == exact.values.sum() < 400
    assert reads.fetched == 4400 + reads.values


def test_no_bit_depends_on_how_far_a_program_looks_back(monkeypatch: pytest.MonkeyPatch) -> None:
    case, technique = spread(1100), "skip_softmax:factor=200,block=16"
    found, reads = case.run(technique)
    monkeypatch.setattr(skipping, "_LOOKED", 4)
    same, other = case.run(technique)
    assert torch.equal(found, same) and torch.equal(reads.values, other.values)


def test_no_bit_depends_on_the_batch() -> None:
    case, technique = spread(600, 90, 330), "skip_softmax:factor=60,block=16,split=128"
    found, reads = case.run(technique)
    for at in range(3):
        own = slice(at, at + 1)
        alone = Case(case.q[own], case.k[own], case.v[own], case.lengths[own], case.firsts[own])
        same, other = alone.run(technique)
        assert torch.equal(found[own], same) and torch.equal(reads.values[own], other.values)


def test_a_text_shorter_than_the_factor_is_read_whole() -> None:
    case = spread(100, 50)
    _, reads = case.run("skip_softmax:factor=99,block=16")
    assert reads.values[0] < 100 and reads.values[1] == 50
