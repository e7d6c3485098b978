"""Drafts: tokens that may come next, as a tree. A chain is a tree without branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from suffice.errors import InputError

if TYPE_CHECKING:
    import torch


MOST_DRAFTS = 31  # with the token before them, what a decode step takes for one sample


@dataclass(frozen=True)
class Tree:
    """Drafted tokens and, for each, the node that it continues.

    Attributes:
        tokens: Token ids, one for each node; siblings differ.
        parents: The node that each continues, -1 for the end of the text; it comes before.
        draft_probs: What siblings were drawn from, float32 [V] by their parent's number plus 1,
            one without replacement after the other; None if nothing was left to chance.
        match: How many tokens at the end of the text were found where the drafts come from; 0 if
            they come from elsewhere.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    draft_probs: tuple[torch.Tensor | None, ...] | None = None
    match: int = 0

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        draft_probs: Sequence[torch.Tensor] | None = None,
        match: int = 0,
    ) -> Tree:
        """Return tokens of which each continues the one before."""
        probs = None if draft_probs is None else (*draft_probs, None)
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probs, match)

    def only(self, nodes: Sequence[int]) -> Tree:
        """Return the tree of some nodes in their order, with each its parent; none were drawn."""
        place = {-1: -1} | {node: at for at, node in enumerate(nodes)}
        return Tree(
            tuple(self.tokens[node] for node in nodes),
            tuple(place[self.parents[node]] for node in nodes),
            match=self.match,
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def children(self, node: int) -> list[int]:
        """Return the nodes that continue a node, -1 for the end of the text, in their order."""
        return [at for at, parent in enumerate(self.parents) if parent == node]

    def child(self, node: int, token: int) -> int | None:
        """Return the node that continues a node with a token; None if there is none."""
        return next((at for at in self.children(node) if self.tokens[at] == token), None)

    @property
    def depths(self) -> list[int]:
        """The number of tokens from the end of the text to each node, its own included."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        return depths


NO_DRAFTS = Tree()


def check_drafts(method: str, drafts: int) -> None:
    """Require a number of drafts that a step can check.

    Raises:
        InputError: It cannot.
    """
    if not 1 <= drafts <= MOST_DRAFTS:
        raise InputError(
            f"speculator '{method}': num_speculative_tokens={drafts}: must be between 1 and "
            f"{MOST_DRAFTS}"
        )
