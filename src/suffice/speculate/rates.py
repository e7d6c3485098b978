"""Acceptance rates of drafts: by the length of their match, by depth and rank, by confidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from suffice.speculate.tree import Tree, Widths

_FIRST = 0.5  # rate before any observation
_WEIGHT = 4.0  # weight of the prior rate, in observations
_LONGEST = 8  # longer matches count as this long, deeper drafts as this deep
_STEPS = 10  # of confidence, that have a rate each
_SURE = -1  # counts by such a step have it in place of a rank


class Rates:
    """Exponential means of the share of drafts that were right.

    Drafts of the text have a rate by the length of their match. Drafts before a draft count as
    matched tokens: the third draft after a match of four tokens has the rate of the first after a
    match of six. Those of a model have rates of their own, by depth. `before` has prior rates, used
    until there are observations; without it the prior is the rate one token before.

    Where a model says how sure it is of a draft, drafts also have a rate by that, for siblings of
    any rank: the prior is what the model says.

    Source   Sequoia, section 3.1: a draft's probability depends on its rank among its siblings, and
             a path's probability is the product of its drafts'.
    """

    def __init__(self, before: Rates | None = None, memory: float = 20.0) -> None:
        """`memory`: number of observations after which an observation counts for 1/e."""
        self._before = before
        self._kept = 1 - 1 / memory
        self._counts: dict[tuple[int, int], tuple[float, float]] = {}  # (seen, right)

    def rate(self, match: int, depth: int, rank: int = 0) -> float:
        """Return the probability of sibling number `rank` at `depth` >= 1, if its parent is right.

        It continues `match` matched tokens; 0: a model drafted it.
        """
        return self._rate(_place(match, depth), rank)

    def _rate(self, place: int, rank: int) -> float:
        seen, right = self._counts.get((place, rank), (0.0, 0.0))
        return (right + _WEIGHT * self._expected(place, rank)) / (seen + _WEIGHT)

    def _expected(self, place: int, rank: int) -> float:
        if self._before is not None:
            return self._before._rate(place, rank)
        if rank:
            return (1 - self._rate(place, 0)) * 0.5**rank
        nearer = place - 1 if place > 0 else place + 1
        return self._rate(nearer, 0) if nearer else _FIRST

    def rate_if(self, sure: float) -> float:
        """Return the probability of a draft to which a model gave that of `sure`."""
        seen, right = self._counts.get((_step(sure), _SURE), (0.0, 0.0))
        expected = sure if self._before is None else self._before.rate_if(sure)
        return (right + _WEIGHT * expected) / (seen + _WEIGHT)

    def learn(self, tree: Tree, tokens: Sequence[int], width: int = 1) -> None:
        """Update the rates with the tokens that were chosen; drafts need not have been checked.

        Rates of siblings that a model could have drafted, up to `width`, but has not are slowly
        forgotten: so they are tried again.
        """
        node = -1
        for depth, token in enumerate(tokens, 1):
            place = _place(tree.match, depth)
            children = tree.children(node)
            right = tree.child(node, token)
            for rank, child in enumerate(children):
                self._add(place, rank, child == right)
                if tree.sure is not None:
                    self._add(_step(tree.sure[child]), _SURE, child == right)
            for rank in range(len(children), width if children else 0):
                self._forget(place, rank)
            if right is None:
                return
            node = right

    def _add(self, place: int, rank: int, right: bool) -> None:
        seen, good = self._counts.get((place, rank), (0.0, 0.0))
        self._counts[place, rank] = (self._kept * seen + 1, self._kept * good + right)

    def _forget(self, place: int, rank: int) -> None:
        seen, good = self._counts.get((place, rank), (0.0, 0.0))
        self._counts[place, rank] = (self._kept * seen, self._kept * good)

    def chances(self, tree: Tree) -> list[float]:
        """Return the probability of each draft of a tree to become part of the text.

        Rates of ranks are means over places with fewer and more siblings, so those of one place may
        sum to more than 1: a sibling gets no more than those before it leave.
        """
        found: list[float] = []
        siblings: dict[int, int] = {}
        left: dict[int, float] = {}
        for node, (parent, depth) in enumerate(zip(tree.parents, tree.depths, strict=True)):
            rank = siblings[parent] = siblings.get(parent, -1) + 1
            path = found[parent] if parent >= 0 else 1.0
            if tree.sure is None:
                rate = self.rate(tree.match, depth, rank)
            else:
                rate = self.rate_if(tree.sure[node])
            rate = min(rate, left.get(parent, 1.0))
            left[parent] = left.get(parent, 1.0) - rate
            found.append(path * rate)
        return found

    def levels(self, shape: Widths) -> list[list[float]]:
        """Return the same for a tree of that shape yet to be made, by depth and rank.

        No sibling counts as more likely than those before it, which must be drafted first.
        """
        found: list[list[float]] = []
        for depth, width in enumerate(shape, 1):
            path = found[-1][0] if found else 1.0
            rates = accumulate((self.rate(0, depth, rank) for rank in range(width)), min)
            found.append([path * rate for rate in rates])
        return found


def _place(match: int, depth: int) -> int:
    """Return where a draft's rates are: by the matched tokens before it, or minus its depth."""
    return min(match + depth - 1, _LONGEST) if match else -min(depth, _LONGEST)


def _step(sure: float) -> int:
    return min(int(sure * _STEPS), _STEPS - 1)
