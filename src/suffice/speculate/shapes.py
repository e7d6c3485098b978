"""Finds the shapes of drafts that maximize the expected tokens per second.

Source   Chen et al., "Sequoia", section 3.1: the expected tokens of a step are one and, for each
         draft of the tree, the probability of the path to it.
Differs  Sequoia's trees may branch everywhere, so that a draft model runs once for each depth with
         all of its nodes. Here a model's tree is a chain with siblings next to it: its first draft
         of each depth costs a step of the model and a row, another only the row. A model that
         drafts blocks takes one step for all drafts of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from suffice.speculate.tree import Widths


def count_that_pays(chances: Sequence[float], samples: int, seconds: Callable[[int], float]) -> int:
    """Return how many of the most likely drafts maximize the expected tokens per second.

    `chances` are in descending order. A step gives a token for each of `samples` and for each
    accepted draft, and takes `seconds(number of drafts)`.
    """
    tokens = accumulate(chances, initial=float(samples))
    speeds = [count / seconds(drafts) for drafts, count in enumerate(tokens)]
    return speeds.index(max(speeds))


def best_speed(chances: Sequence[float], samples: int, seconds: Callable[[int], float]) -> float:
    """Return the expected tokens per second with as many drafts as maximize them; see above."""
    count = count_that_pays(chances, samples, seconds)
    return (samples + sum(chances[:count])) / seconds(count)


def shapes_that_pay(
    trees: Sequence[Sequence[Sequence[float]]],
    room: Sequence[int],
    samples: int,
    seconds: Callable[[int], float],
    draft: float,
) -> list[Widths]:
    """Return the shape of each tree, of at most `room[i]` drafts, that maximizes tokens per second.

    `trees[i][depth][rank]` is the probability of a draft to become part of the text; it falls with
    depth along the chain, and with rank. A step gives a token for each of `samples` and for each
    accepted draft. It takes `seconds(number of drafts)`, and the first draft of each depth `draft`
    more.
    """
    chain: list[tuple[float, int, int]] = []
    others: list[tuple[float, int, int]] = []
    for tree, levels in enumerate(trees):
        nodes = sorted(
            (-chance, depth, rank)
            for depth, level in enumerate(levels)
            for rank, chance in enumerate(level)
        )
        for negative, depth, rank in nodes[: room[tree]]:
            (others if rank else chain).append((negative, depth, tree))
    chain.sort()
    others.sort()
    if not others:  # chains
        count = count_that_pays(
            [-negative for negative, _, _ in chain],
            samples,
            lambda drafts: seconds(drafts) + drafts * draft,
        )
        return [
            (1,) * sum(own == tree for _, _, own in chain[:count]) for tree in range(len(trees))
        ]
    place = {(tree, depth): at for at, (_, depth, tree) in enumerate(chain)}
    # A sibling may be drafted if the chain is. Row c of these tables: the first c of all chains.
    needs = np.array([place[tree, depth] for _, depth, tree in others], np.int64)
    chances = np.array([-negative for negative, _, _ in others])
    chained = np.array([0.0, *accumulate(-negative for negative, _, _ in chain)])
    drafted = np.arange(len(chain) + 1)
    allowed = needs < drafted[:, None]
    tokens, rows = np.zeros((2, len(drafted), len(others) + 1))
    tokens[:, 1:] = np.cumsum(allowed * chances, axis=1)
    rows[:, 1:] = np.cumsum(allowed, axis=1)
    tokens += samples + chained[:, None]
    times = np.array([seconds(drafts) for drafts in range(len(chain) + len(others) + 1)])
    taken = times[rows.astype(np.int64) + drafted[:, None]] + draft * drafted[:, None]
    first, more = np.unravel_index((tokens / taken).argmax(), tokens.shape)
    shapes: list[list[int]] = [[] for _ in trees]
    for _, _, tree in chain[:first]:
        shapes[tree].append(1)
    for at, (_, depth, tree) in enumerate(others[:more]):
        if allowed[first, at]:
            shapes[tree][depth] += 1
    return [tuple(shape) for shape in shapes]


def blocks_that_pay(
    trees: Sequence[Sequence[Sequence[float]]],
    room: Sequence[int],
    samples: int,
    seconds: Callable[[int], float],
    draft: float,
) -> list[Widths]:
    """Return the same shapes where a tree's first draft takes `draft`, and others nothing.

    Each draft of a tree costs a row then, so its n most likely ones are the best n. Dynamic
    programming finds how many drafts each tree has, none or more, that gain most at a speed that is
    reached, until no higher speed is (Dinkelbach, "On nonlinear fractional programming").
    """
    nodes = [
        sorted(
            (-chance, depth, rank)
            for depth, level in enumerate(levels)
            for rank, chance in enumerate(level)
        )[:most]
        for levels, most in zip(trees, room, strict=True)
    ]
    tokens = [np.cumsum([0.0, *(-negative for negative, _, _ in own)]) for own in nodes]
    times = np.array([seconds(rows) for rows in range(sum(map(len, nodes)) + 1)])
    counts, speed = [0] * len(trees), samples / times[0]
    while True:
        gains = [own - speed * draft * (np.arange(len(own)) > 0) for own in tokens]
        found = _best_counts(gains, speed * times)
        taken = times[sum(found)] + draft * sum(map(bool, found))
        reached = (samples + sum(own[n] for own, n in zip(tokens, found, strict=True))) / taken
        if reached <= speed * (1 + 1e-9):
            return [_shape(own[:n]) for own, n in zip(nodes, counts, strict=True)]
        counts, speed = found, reached


def _best_counts(gains: Sequence[np.ndarray], costs: np.ndarray) -> list[int]:
    """Return the numbers n with the largest sum of `gains[i][n[i]]` less `costs[sum(n)]`."""
    best, chosen = np.zeros(1), []
    for own in gains:
        table = np.full((len(own), len(best) + len(own) - 1), -np.inf)
        for count, gain in enumerate(own):
            table[count, count : count + len(best)] = best + gain
        chosen.append(table.argmax(axis=0))
        best = table.max(axis=0)
    left = int((best - costs).argmax())
    found = []
    for counts in reversed(chosen):
        found.append(int(counts[left]))
        left -= found[-1]
    return found[::-1]


def _shape(nodes: Sequence[tuple[float, int, int]]) -> Widths:
    widths = [0] * (1 + max((depth for _, depth, _ in nodes), default=-1))
    for _, depth, _ in nodes:
        widths[depth] += 1
    return tuple(widths)
