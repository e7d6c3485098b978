from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draws import normal
from suffice.backends.cpu.outliers import outliers
from suffice.errors import InputError
from suffice.quant import outliers as module
from suffice.quant.outliers import Orizuru, count_of, reference


def by_sort(values: np.ndarray, count: int) -> tuple[list[int], list[int]]:
    order = sorted(range(len(values)), key=lambda i: (-float(values[i]), i))
    return order[:count], order[::-1][:count]


@given(
    seed=st.integers(0, 10_000),
    size=st.integers(2, 70),
    distinct=st.integers(1, 80),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_trees_sort(seed: int, size: int, distinct: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(distinct, size=size).astype(np.float32) - np.float32(distinct / 2)
    count = data.draw(st.integers(0, size // 2))
    found = reference(values, count)
    assert (found.greatest, found.least) == by_sort(values, count)


@pytest.mark.parametrize("distinct", [1, 3, 50, 1_000_000])
def test_the_kernel_sorts(each_isa: str, distinct: int) -> None:
    for size in (2, 3, 16, 255, 256, 257, 576, 1536, 4096):
        random = np.random.default_rng(size)
        values = random.integers(distinct, size=size).astype(np.float32) - distinct // 2
        for count in {0, 1, min(8, size // 2), size // 2 if size < 300 else 20}:
            found = outliers(values, count)
            assert (found.greatest, found.least) == by_sort(values, count), size


@pytest.mark.parametrize("size", [8, 64, 512, 4096])
@pytest.mark.parametrize("count", [1, 3])
def test_comparisons(size: int, count: int) -> None:
    """The paper's count, 1.5 N + 2 k log2 N, from above; what the set-up takes, exactly."""
    values = normal(size, seed=size)
    assert reference(values, 0).comparisons == size - 1 + size // 2 - 1
    used = reference(values, count).comparisons
    assert used is not None
    most = 1.5 * size + 2 * count * math.log2(size)
    # The match that a popped leaf was in is decided without a comparison, and maybe one above it.
    assert most - 2 - 4 * count <= used <= most - 2 - 2 * count


def test_the_paper_s_example() -> None:
    """Fig. 7: of 8 values, the largest, 9, is at node 14; its neighbour takes its place."""
    values = [3.0, 1.0, 4.0, 2.0, 8.0, 5.0, 9.0, 7.0]
    trees = Orizuru(values)
    assert trees.comparisons == 7 + 3
    assert trees.leaves + trees.pop_greatest() == 0b1110
    assert [values[trees.pop_greatest()] for _ in range(3)] == [8, 7, 5]
    assert [values[trees.pop_least()] for _ in range(4)] == [1, 2, 3, 4]


def test_a_broken_tree_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A min tree that does not reverse what it takes over must not pass."""
    monkeypatch.setattr(module._Tree, "set_up", _unreversed(module._Tree.set_up))
    values = normal(64)
    found = reference(values, 8)
    assert (found.greatest, found.least) != by_sort(values, 8)


def _unreversed(set_up):  # type: ignore[no-untyped-def]
    def broken(self, first):  # type: ignore[no-untyped-def]
        set_up(self, first if self._sign > 0 else [not won for won in first])

    return broken


def test_refused(each_isa: str) -> None:
    for find in (reference, outliers):
        for wrong in (float("nan"), float("inf")):
            with pytest.raises(InputError, match="outliers: a value is NaN or infinite; all must"):
                find(np.float32([1, wrong, 2]), 1)
        with pytest.raises(InputError, match=r"2 at each end of 3 values; allowed: 0\.\.1"):
            find(np.ones(3, np.float32), 2)
        with pytest.raises(InputError, match=r"outliers: shape \[1, 3\]; allowed: \[N\]"):
            find(np.ones((1, 3), np.float32), 1)


def test_how_many() -> None:
    assert [count_of(size, 0.005) for size in (576, 1536, 4096, 20)] == [3, 8, 20, 1]
    assert count_of(576, 0.0) == 0 and count_of(5, 0.5) == 2
    with pytest.raises(InputError, match=r"a share of 0.7 at each end; allowed: 0..0.5"):
        count_of(8, 0.7)
