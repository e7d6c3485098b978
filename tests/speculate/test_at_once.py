"""How many drafts pay where a model makes all of them at once. Tests budget.py and shapes.py."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from suffice import SamplingParams
from suffice.speculate import Tree, Widths
from suffice.speculate.budget import Budget
from suffice.speculate.dflash import DFlash
from suffice.speculate.rates import Rates
from suffice.speculate.shapes import blocks_that_pay

DEPTHS, ROW = 5, 0.02  # a row of a checking step takes that share of a step without drafts


def sample(**params: Any) -> Any:
    state = type("State", (), {"params": SamplingParams(**params)})
    own = {"state": state, "rates": None, "goes_on": None, "drafter": None, "sequence": None}
    return type("Sample", (), own)()


def all_shapes(levels: Sequence[Sequence[float]]) -> list[Widths]:
    """Return every chain with siblings next to it."""
    found: list[Widths] = []
    for depth in range(len(levels) + 1):
        found += itertools.product(*(range(1, len(level) + 1) for level in levels[:depth]))
    return found


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("width", [1, 2])
def test_shapes_are_the_best_of_all(seed: int, width: int) -> None:
    """A tree costs one draft, however deep it is; of two samples, one may have none."""
    rng = random.Random(seed)
    draft, row = rng.choice([0.1, 0.5, 1.5]), rng.choice([0.01, 0.1, 0.3])
    times = [1.0, *(1 + row * rng.random() for _ in range(15))]
    times = list(itertools.accumulate(times, lambda before, more: before + more - 1))
    trees = [Rates().levels((width,) * 3), Rates().levels((width,) * 2)]
    for tree in trees:
        good = rng.random() * 1.6
        for depth, level in enumerate(tree):
            level[:] = [min(chance * good, 0.9 - 0.2 * depth) for chance in level]

    def speed(shapes: Sequence[Widths]) -> float:
        tokens = len(trees) + sum(
            sum(level[:wide])
            for tree, shape in zip(trees, shapes, strict=True)
            for level, wide in zip(tree, shape, strict=False)
        )
        rows = sum(map(sum, shapes))
        return tokens / (times[rows] + draft * sum(map(bool, shapes)))

    found = blocks_that_pay(trees, [31] * 2, 2, times.__getitem__, draft)
    best = max(map(speed, itertools.product(*map(all_shapes, trees))))
    assert speed(found) == pytest.approx(best)


def run(right: float, block: float, steps: int = 800, **params: Any) -> tuple[list[Widths], float]:
    """Return the shapes of each step, and the time that a token took at the end.

    A step takes 1 and a row more ROW, a block `block`; a draft is right with probability `right`.
    """
    speculator = DFlash("folder", num_speculative_tokens=DEPTHS, text=False)
    budget, own, rng = Budget(speculator), sample(**params), random.Random(3)
    found, taken = [], [0.0, 0.0]
    for step in range(steps):
        (shape,) = budget.shapes([own], [31])
        if own.goes_on is not None:
            assert own.goes_on([1.0]), "the next draft exists already, and costs a row alone"
        chain = Tree.chain(list(range(len(shape))))
        good = next((at for at in range(len(shape)) if rng.random() >= right), len(shape))
        made = block if shape else 0.0
        budget.drafted([own], [chain], made)
        budget.learn(own, chain, [*range(good), 99])
        budget.checked([chain], 1 + ROW * len(shape))
        found.append(shape)
        if step >= steps // 2:
            taken[0] += made + 1 + ROW * len(shape)
            taken[1] += good + 1
    return found, taken[0] / taken[1]


def test_good_drafts_are_made_to_the_end_although_a_block_takes_most_of_a_step() -> None:
    """Five drafts one after the other would take four steps."""
    shapes, each = run(0.9, 0.8)
    late = [len(shape) for shape in shapes[400:]]
    assert sum(late) > 0.9 * DEPTHS * len(late)
    assert each < 0.5


def test_bad_drafts_are_left_out() -> None:
    shapes, each = run(0.05, 0.8)
    assert sum(map(bool, shapes[200:])) < 30
    assert each < 1.02


def test_middling_drafts_are_made_as_deep_as_rows_pay() -> None:
    """At depth d a draft is right with 0.6^d; a row takes 2 % of a step, and a block a fifth."""
    shapes, each = run(0.6, 0.2)
    late = [len(shape) for shape in shapes[400:]]
    assert sum(late) / len(late) > 2.5
    assert each < 0.65


def test_the_time_of_a_block_is_that_of_one_draft() -> None:
    """However many tokens it has; what pays depends on the block's time, not on a share of it."""
    budget, own = Budget(DFlash("folder", num_speculative_tokens=DEPTHS, text=False)), sample()
    own.rates = Rates()
    for size in (DEPTHS, DEPTHS, 2, DEPTHS):
        budget.drafted([own, own], [Tree.chain(range(size)), Tree.chain([1])], 0.8)
    assert budget._costs.draft == pytest.approx(0.4)
