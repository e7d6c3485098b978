"""The trees that Sequoia's recursion finds, by brute force; and the benchmark of trees and chains."""

from __future__ import annotations

import itertools
import random

import pytest

from benchmarks.speculate import sequoia

Path = tuple[int, ...]  # the ranks on the way to a draft


def trees_of(count: int, depths: int, ranks: int) -> set[frozenset[Path]]:
    """Return every tree of `count` drafts that has each draft's parent and the siblings before."""
    found = {frozenset[Path]()}
    for _ in range(count):
        found = {
            tree | {path}
            for tree in found
            for parent in [(), *tree]
            for rank in range(ranks)
            if len(parent) < depths
            and (path := (*parent, rank)) not in tree
            and (rank == 0 or (*parent, rank - 1) in tree)
        }
    return found


def accepted(tree: frozenset[Path], rates: sequoia.Rates) -> float:
    total = 0.0
    for path in tree:
        chance = 1.0
        for depth, rank in enumerate(path):
            chance *= rates[min(depth, len(rates) - 1)][rank]
        total += chance
    return total


def random_rates(rng: random.Random, depths: int, ranks: int) -> list[list[float]]:
    whole = [sorted((rng.random() for _ in range(ranks)), reverse=True) for _ in range(depths)]
    return [[rate / sum(level) * 0.95 for rate in level] for level in whole]


@pytest.mark.parametrize("seed", range(8))
def test_each_shape_is_the_best_of_its_kind(seed: int) -> None:
    rates = random_rates(random.Random(seed), 3, 3)
    best, ours, chains = (
        kind(rates, 5)
        for kind in (sequoia.best_trees, sequoia.best_with_siblings, sequoia.best_chains)
    )
    for count in range(6):
        trees = trees_of(count, 5, 3)
        assert best[count] == pytest.approx(max(accepted(tree, rates) for tree in trees))
        caterpillars = [
            tree for tree in trees if all(not any(path[:-1]) for path in tree)
        ]  # only first siblings have children
        assert ours[count] == pytest.approx(max(accepted(tree, rates) for tree in caterpillars))
        chain = frozenset((0,) * depth for depth in range(1, count + 1))
        assert chains[count] == pytest.approx(accepted(chain, rates))


def test_more_freedom_expects_more() -> None:
    rates = random_rates(random.Random(9), 4, 5)
    best, ours, chains = (
        kind(rates, 31)
        for kind in (sequoia.best_trees, sequoia.best_with_siblings, sequoia.best_chains)
    )
    assert len(best) == len(ours) == len(chains) == 32
    for tree, own, chain in zip(best, ours, chains, strict=True):
        assert tree >= own - 1e-12 and own >= chain - 1e-12
    assert best[31] > ours[31] > chains[31]
    assert all(after >= before for before, after in itertools.pairwise(best))


def test_the_numbers_of_trees() -> None:
    assert [len(trees_of(count, 9, 9)) for count in range(5)] == [1, 1, 2, 5, 14], "Catalan"
