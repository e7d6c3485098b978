"""Drafts: tokens that may come next, as a tree. A chain is a tree without branches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


MOST_DRAFTS = 31  # a decode step takes 32 tokens of a sample: the drafts and the one before them

ALL_ROWS = sys.maxsize  # of a text, that a head reads; also where it begins late
FEW_ROWS = 32  # that it reads before its first drafts; as many as may wait, for one step to take

# The shape of a model's tree before it is drafted: how many siblings at each depth. The first of
# them has the next depth's as children, the others are leaves; a chain has one at each depth.
Widths = tuple[int, ...]


def filled(depths: int, width: int, most: int) -> Widths:
    """Return the shape of `most` drafts: the chain first, then other siblings, rank by rank."""
    depths = min(depths, most)
    more, left = divmod(min(most, depths * width) - depths, depths) if depths else (0, 0)
    return (2 + more,) * left + (1 + more,) * (depths - left)


@dataclass(frozen=True)
class Tree:
    """Drafted tokens and, for each, the node that it continues.

    Attributes:
        tokens: Token ids, one for each node; siblings differ.
        parents: The parent of each node, -1 for the end of the text; parents come before children.
        draft_probs: The distributions float32 [V] that siblings were sampled from, without
            replacement, by their parent's number plus 1; None if drafts were not sampled.
        match: The length of the text's suffix whose earlier occurrence the drafts continue; 0 if
            drafts do not come from the text.
        sure: The probability that the model which drafted it gave each node after those before it;
            None if drafts come from the text.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    draft_probs: tuple[NDArray[np.floating] | None, ...] | None = None
    match: int = 0
    sure: tuple[float, ...] | None = None

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        draft_probs: Sequence[NDArray[np.floating]] | None = None,
        match: int = 0,
    ) -> Tree:
        """Return a tree without branches: each token continues the one before."""
        probs = None if draft_probs is None else (*draft_probs, None)
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs, match)

    @classmethod
    def levels(
        cls,
        levels: Sequence[Sequence[int]],
        draft_probs: Sequence[NDArray[np.floating]] | None = None,
        sure: Sequence[Sequence[float]] | None = None,
    ) -> Tree:
        """Return the tree with these siblings at each depth; the first of them has children.

        The chain of first siblings is in front, so that a step runs it as it runs a chain.
        """
        leaves = [(depth - 1, each) for depth, level in enumerate(levels) for each in level[1:]]
        probs = None
        if draft_probs is not None:
            probs = (*draft_probs, *[None] * (len(leaves) + 1))
        return cls(
            (*(level[0] for level in levels), *(token for _, token in leaves)),
            (*range(-1, len(levels) - 1), *(parent for parent, _ in leaves)),
            probs,
            sure=None
            if sure is None
            else (*(own[0] for own in sure), *(each for own in sure for each in own[1:])),
        )

    def follows_text(self, vocabulary: int) -> bool:
        """Return whether tokens are of a vocabulary, and each has a parent before it."""
        try:
            parents = zip(self.parents, range(len(self.tokens)), strict=True)
            return all(0 <= token < vocabulary for token in self.tokens) and all(
                -1 <= parent < node for parent, node in parents
            )
        except (TypeError, ValueError):
            return False

    def only(self, nodes: Sequence[int]) -> Tree:
        """Return the tree of `nodes`, in order, parents included; drafts must not be sampled."""
        place = {-1: -1} | {node: at for at, node in enumerate(nodes)}
        return Tree(
            tuple(self.tokens[node] for node in nodes),
            tuple(place[self.parents[node]] for node in nodes),
            match=self.match,
            sure=None if self.sure is None else tuple(self.sure[node] for node in nodes),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        """Return the children of a node, or of the end of the text (-1), in order."""
        return [at for at, parent in enumerate(self.parents) if parent == node]

    def child(self, node: int, token: int) -> int | None:
        """Return a node's child with a token; None if there is none."""
        if not self.tokens:
            return None
        return next((at for at in self.children(node) if self.tokens[at] == token), None)

    @property
    def depths(self) -> list[int]:
        """The depth of each node: tokens after the end of the text, its own included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        return depths


NO_DRAFTS = Tree()


def check_drafts(method: str, drafts: int, width: int = 1) -> None:
    """Require a number of drafts that a step can check, with `width` siblings at each depth.

    Raises:
        InputError: A step cannot check this number.
    """
    if not 1 <= drafts <= MOST_DRAFTS:
        raise InputError(
            f"speculator '{method}': num_speculative_tokens={drafts}: must be between 1 and "
            f"{MOST_DRAFTS}"
        )
    if not 1 <= width <= MOST_DRAFTS // drafts:
        raise InputError(
            f"speculator '{method}': width={width} with num_speculative_tokens={drafts}: must be "
            f"between 1 and {MOST_DRAFTS // drafts}, since a step checks {MOST_DRAFTS} drafts"
        )
