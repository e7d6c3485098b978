"""Expected tokens of a step by the shape of the drafts: Sequoia's trees, ours, and chains.

Source   Chen et al., "Sequoia", section 3.1. A draft is right with a probability that depends only
         on its rank among its siblings (their positional acceptance assumption), and the expected
         tokens of a step are the sum, over the tree, of the probabilities of the paths. Their
         recursion gives the best tree of n nodes from the best subtrees of its children.
Differs  Rates may also depend on the depth. The sum does not count the node that the tree starts
         from, so n is the number of drafts, and what it gives is the number of accepted ones.

`rates[depth][rank]` are probabilities; depths beyond the last are like the last, ranks beyond the
last are never right.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

Rates = Sequence[Sequence[float]]


def best_trees(rates: Rates, most: int) -> list[float]:
    """Return the most accepted drafts that a tree of n drafts can expect, for n = 0 to `most`."""

    @cache
    def siblings(depth: int, rank: int, count: int) -> float:
        """Return the same for siblings from `rank` on, with all that follows them."""
        level = rates[min(depth, len(rates) - 1)]
        if count == 0 or rank == len(level):
            return 0.0
        return max(
            level[rank] * (1 + siblings(min(depth + 1, len(rates) - 1), 0, own - 1))
            + siblings(depth, rank + 1, count - own)
            for own in range(1, count + 1)
        )

    return [siblings(0, 0, count) for count in range(most + 1)]


def best_chains(rates: Rates, most: int) -> list[float]:
    """Return the accepted drafts that a chain of n drafts expects, for n = 0 to `most`."""
    found, path = [0.0], 1.0
    for depth in range(most):
        path *= rates[min(depth, len(rates) - 1)][0]
        found.append(found[-1] + path)
    return found


def best_with_siblings(rates: Rates, most: int) -> list[float]:
    """Return the most for a chain with siblings next to it, which have no children themselves."""

    @cache
    def chain(depth: int, count: int) -> float:
        level = rates[min(depth, len(rates) - 1)]
        following = min(depth + 1, len(rates) - 1)
        return max(
            (
                level[0] * (1 + chain(following, count - width)) + sum(level[1:width])
                for width in range(1, min(count, len(level)) + 1)
            ),
            default=0.0,
        )

    return [chain(0, count) for count in range(most + 1)]
