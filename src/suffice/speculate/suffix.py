"""Draft the most frequent continuations of the text's longest matching suffix.

Source   Oliaro et al., "SuffixDecoding": drafts are counted continuations of a matching suffix, no
         deeper than a multiple of the match's length (their alpha); the match with the highest
         expected acceptance wins. Option names are vLLM's.
Differs  Counts are kept in a suffix automaton (Blumer et al., "The smallest automaton recognizing
         the subwords of a text"), not in a tree of bounded depth: two states per token at any
         depth.
Exact    always: every draft is checked. A chain, or any branch of a tree, gives the bits of single
         steps.
Cost     an amortised constant number of table entries per token; drafts of a step are found in
         O(k log k) for each of a few match lengths.
Options
    num_speculative_tokens  maximum number of drafts in a step
    adaptive                draft fewer, or none, while drafts do not save time
    max_spec_factor         maximum number of drafts for each token of the match
    min_token_prob          smallest estimated probability of a drafted token
    tree                    draft several continuations as a tree, not one chain
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from suffice.errors import InputError
from suffice.registry import spelling
from suffice.speculate import DraftSource, ReadsNoKeys
from suffice.speculate.tree import NO_DRAFTS, Tree, check_drafts

if TYPE_CHECKING:
    from suffice.speculate.proposers import FromText

_MATCHES = 4  # match lengths that are tried, from the longest
_MOST_LINKS = 64  # suffixes of the text that are counted per token


@dataclass(frozen=True)
class Suffix(ReadsNoKeys):
    """The most likely continuations of the text's suffix, as a chain or as a tree."""

    from_text: ClassVar[bool] = True
    text: ClassVar[bool] = False
    width: ClassVar[int] = 1

    num_speculative_tokens: int = field(default=8, metadata=spelling(alone=True))
    adaptive: bool = True  # check only the drafts that save time
    max_spec_factor: float = 1.0  # largest depth of drafts over the length of the match
    min_token_prob: float = 0.1  # smallest probability of a draft, the product along its path
    tree: bool = False

    def __post_init__(self) -> None:
        check_drafts("suffix", self.num_speculative_tokens)
        if not 0 < self.max_spec_factor < float("inf"):
            raise InputError(
                f"speculator 'suffix': max_spec_factor={self.max_spec_factor}: must be positive "
                "and finite"
            )
        if not 0 <= self.min_token_prob <= 1:
            raise InputError(
                f"speculator 'suffix': min_token_prob={self.min_token_prob}: must be between 0 "
                "and 1"
            )

    @classmethod
    def exact_limit(cls) -> Suffix:
        """Return a setting whose drafts have no branches."""
        return cls()

    def proposer(self, models: DraftSource) -> FromText:
        """Return the proposer."""
        from suffice.speculate.proposers import FromText

        return FromText(lambda: SuffixAutomaton(self))


# A token that may come next: minus its probability, the token, its parent, its state.
_Offer = tuple[float, int, int, int]


@dataclass
class _Growth:
    """A tree while it grows, no deeper than `depth`, from a match of `match` tokens.

    Nodes (parent, token) have the number in which they came, and `reached` their depths, after that
    of the root. `waiting` are tokens that may come next, a heap.
    """

    match: int
    depth: int
    nodes: list[tuple[int, int]] = field(default_factory=list)
    reached: list[int] = field(default_factory=lambda: [0])
    waiting: list[_Offer] = field(default_factory=list)
    expected: float = 0.0  # accepted tokens, by the text's own counts


class SuffixAutomaton:
    """The subwords of a text, and how often each occurs.

    A state stands for all subwords that end at the same positions; `_lengths` has the length of the
    longest. The link of a state leads to its longest suffix that also occurs elsewhere.
    """

    def __init__(self, options: Suffix) -> None:
        self._options = options
        self._next: list[dict[int, int]] = [{}]
        self._links = [-1]
        self._lengths = [0]
        self._counts = [0]
        self._last = 0
        self.length = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        for token in tokens:
            self._append(token)
        self.length += len(tokens)

    def occurrences(self, tokens: Sequence[int]) -> int:
        """Return how often a sequence of tokens occurs."""
        state = 0
        for token in tokens:
            if token not in self._next[state]:
                return 0
            state = self._next[state][token]
        return self._counts[state]

    def _new(self, length: int, following: dict[int, int], link: int, count: int) -> int:
        self._lengths.append(length)
        self._next.append(following)
        self._links.append(link)
        self._counts.append(count)
        return len(self._lengths) - 1

    def _append(self, token: int) -> None:
        state = self._last
        self._last = whole = self._new(self._lengths[state] + 1, {}, 0, 0)
        while state >= 0 and token not in self._next[state]:
            self._next[state][token] = whole
            state = self._links[state]
        if state >= 0:
            self._links[whole] = self._split(state, token)
        state = whole
        for _ in range(_MOST_LINKS):
            if state <= 0:
                break
            self._counts[state] += 1
            state = self._links[state]

    def _split(self, state: int, token: int) -> int:
        """Return the state of exactly the longest subword of `state`, extended by `token`."""
        found, length = self._next[state][token], self._lengths[state] + 1
        if self._lengths[found] == length:
            return found
        own = self._new(length, dict(self._next[found]), self._links[found], self._counts[found])
        self._links[found] = own
        while state >= 0 and self._next[state].get(token) == found:
            self._next[state][token] = own
            state = self._links[state]
        return own

    def propose(self, most: int) -> Tree:
        """Return the continuations of a suffix that occurred before.

        Of the longest such suffixes, it is the one with the most expected accepted tokens. There
        are at most `most`. But if a budget selects from a tree, that is the whole chain and as many
        other tokens again: a selection from both is no worse than one from the chain.
        """
        selected = self._options.tree and self._options.adaptive
        best = _Growth(0, 0)
        state = self._links[self._last]
        for _ in range(_MATCHES):
            if state <= 0:
                break
            match = self._lengths[state]
            growth = _Growth(match, max(int(self._options.max_spec_factor * match), 1))
            self._offer(growth, state, 1.0, -1)
            self._grow(growth, most, chain=selected or not self._options.tree)
            if growth.expected > best.expected:
                best = growth
            state = self._links[state]
        if selected:
            heapq.heapify(best.waiting)
            self._grow(best, 2 * most, chain=False)
        return _first_branch_first(best.nodes, best.match) if best.nodes else NO_DRAFTS

    def _grow(self, growth: _Growth, most: int, chain: bool) -> None:
        """Add the most likely tokens, up to `most` in all; in a chain, each continues the last."""
        aside: list[_Offer] = []
        while growth.waiting and len(growth.nodes) < most:
            negative, token, parent, state = heapq.heappop(growth.waiting)
            growth.nodes.append((parent, token))
            growth.reached.append(growth.reached[parent + 1] + 1)
            growth.expected -= negative
            if chain:
                aside += growth.waiting
                growth.waiting.clear()
            if growth.reached[-1] < growth.depth:
                self._offer(growth, state, -negative, len(growth.nodes) - 1)
        growth.waiting += aside

    def _offer(self, growth: _Growth, state: int, prob: float, node: int) -> None:
        """Add the successors of a state, which node `node` reaches with probability `prob`."""
        while state > 0 and not self._next[state]:  # the text's end: go on at earlier occurrences
            state = self._links[state]
        following = self._next[state]
        total = sum(self._counts[after] for after in following.values())
        for token, after in following.items():
            share = prob * self._counts[after] / max(total, 1)
            if share >= self._options.min_token_prob and share > 0:
                heapq.heappush(growth.waiting, (-share, token, node, after))


def _first_branch_first(nodes: list[tuple[int, int]], match: int) -> Tree:
    """Return the tree of nodes (parent, token), branch after branch, siblings in their order."""
    children: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
    for node, (parent, _) in enumerate(nodes):
        children[parent + 1].append(node)
    tokens: list[int] = []
    parents: list[int] = []
    places = {-1: -1}
    todo = children[0][::-1]
    while todo:
        node = todo.pop()
        parent, token = nodes[node]
        places[node] = len(tokens)
        tokens.append(token)
        parents.append(places[parent])
        todo += children[node + 1][::-1]
    return Tree(tuple(tokens), tuple(parents), match=match)
