"""How often drafts have been right, by what they rest on and by their place among siblings."""

from __future__ import annotations

from collections.abc import Sequence

from suffice.speculate.tree import Tree

_FIRST = 0.5  # before anything is known
_WEIGHT = 4.0  # observations that what was known before counts for
_LONGEST = 8  # matches from here on count as equal


class Rates:
    """Exponential means of the shares of drafts that were right.

    A draft rests on the tokens that matched and on the drafts before it, so the third draft after a
    match of four tokens is like the first after one of six: what one position shows, another knows.
    `before` has the rates that hold until there are observations of one's own; without it those of
    a match one token shorter do.

    Source   Sequoia, section 3.1: the chance of a draft depends on its place among its siblings,
             and a path's is the product of its drafts'.
    """

    def __init__(self, before: Rates | None = None, memory: float = 20.0) -> None:
        """`memory`: observations until one counts for 1/e."""
        self._before = before
        self._kept = 1 - 1 / memory
        self._counts: dict[tuple[int, int], tuple[float, float]] = {}  # (seen, right)

    def rate(self, match: int, rank: int) -> float:
        """Return the chance of the sibling number `rank` after `match` tokens that matched."""
        at = min(match, _LONGEST), rank
        seen, right = self._counts.get(at, (0.0, 0.0))
        return (right + _WEIGHT * self._expected(*at)) / (seen + _WEIGHT)

    def _expected(self, match: int, rank: int) -> float:
        if self._before is not None:
            return self._before.rate(match, rank)
        if rank:
            return (1 - self.rate(match, 0)) * 0.5**rank
        return self.rate(match - 1, 0) if match else _FIRST

    def learn(self, tree: Tree, tokens: Sequence[int]) -> None:
        """Take what the tokens that came say about drafts; drafts need not have been run."""
        node = -1
        for depth, token in enumerate(tokens):
            children = tree.children(node)
            right = tree.child(node, token)
            for rank, child in enumerate(children):
                self._add(min(tree.match + depth, _LONGEST), rank, child == right)
            if right is None:
                return
            node = right

    def _add(self, match: int, rank: int, right: bool) -> None:
        seen, good = self._counts.get((match, rank), (0.0, 0.0))
        self._counts[match, rank] = (self._kept * seen + 1, self._kept * good + right)

    def chances(self, tree: Tree) -> list[float]:
        """Return for each draft of a tree the chance that it becomes part of the text."""
        found: list[float] = []
        siblings: dict[int, int] = {}
        for parent, depth in zip(tree.parents, tree.depths, strict=True):
            rank = siblings[parent] = siblings.get(parent, -1) + 1
            path = found[parent] if parent >= 0 else 1.0
            found.append(path * self.rate(tree.match + depth - 1, rank))
        return found

    def chain(self, count: int) -> list[float]:
        """Return the same for a chain of drafts that do not exist yet and rest on no match."""
        found: list[float] = []
        for depth in range(count):
            found.append((found[-1] if found else 1.0) * self.rate(depth, 0))
        return found
