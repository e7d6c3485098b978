"""Trees against chains by a clock of fixed costs: adaptive trees are never below 0.97 of chains."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

from suffice import SamplingParams
from suffice.speculate.budget import Budget
from suffice.speculate.rates import Rates
from suffice.speculate.self import SelfDraft
from suffice.speculate.suffix import Suffix, SuffixAutomaton
from suffice.speculate.tree import NO_DRAFTS, Tree

BAR = 0.97


class Known:
    """A greedy sample with nothing but rates."""

    def __init__(self) -> None:
        self.state: Any = type("State", (), {"params": SamplingParams(temperature=0)})
        self.rates: Rates | None = None
        self.goes_on = None
        self.drafter = self.sequence = None


def chosen(tree: Tree, ranks: Sequence[float], rng: random.Random) -> list[int]:
    """Return the tokens of a step where sibling number i is right with probability `ranks[i]`."""
    tokens: list[int] = []
    node = -1
    while children := tree.children(node):
        number, sums = rng.random(), itertools.accumulate(ranks)
        rank = next((rank for rank, below in enumerate(sums) if number < below), len(ranks))
        if rank >= len(children):
            break
        node = children[rank]
        tokens.append(tree.tokens[node])
    return [*tokens, 99]


def speed_of_a_model(ranks: Sequence[float], draft: float, row: float, width: int) -> float:
    """Return the tokens per plain step's time, over 8 samples of 100 steps."""
    budget, rng, tokens, time = Budget(SelfDraft(4, width=width)), random.Random(5), 0, 0.0
    for step in range(800):
        if step % 100 == 0:
            sample = Known()
        (shape,) = budget.shapes([sample], [31])
        tree = Tree.levels([[3 * at + rank for rank in range(w)] for at, w in enumerate(shape)])
        right = chosen(tree, ranks, rng)
        drafting, checking = draft * len(shape), 1 + row * len(tree)
        budget.drafted([sample], [tree], drafting)
        budget.learn(sample, tree, right)
        budget.checked([tree], checking)
        tokens, time = tokens + len(right), time + drafting + checking
    return tokens / time


@pytest.mark.parametrize(
    ("ranks", "draft", "row", "gain"),
    [
        ([0.8, 0.1, 0.03], 0.4, 0.02, 1.0),
        ([0.6, 0.15, 0.07], 0.15, 0.02, 1.05),
        ([0.6, 0.15, 0.07], 0.4, 0.02, 1.08),
        ([0.4, 0.2, 0.1], 0.15, 0.02, 1.1),
        ([0.6, 0.0, 0.0], 0.4, 0.1, BAR),  # siblings are never right
        ([0.9, 0.02, 0.01], 0.7, 0.1, BAR),
        ([0.2, 0.1, 0.05], 0.4, 0.1, BAR),  # nothing pays
    ],
)
def test_siblings_of_a_model(ranks: list[float], draft: float, row: float, gain: float) -> None:
    chain = speed_of_a_model(ranks, draft, row, 1)
    assert speed_of_a_model(ranks, draft, row, 3) >= gain * chain
    assert chain > 0.98, "a chain is hardly slower than plain decoding"


def repetitive(rng: random.Random, length: int) -> list[int]:
    """Return a text of phrases that come again, with other endings now and then."""
    phrases = [rng.choices(range(40), k=rng.randint(4, 12)) for _ in range(12)]
    text: list[int] = []
    while len(text) < length:
        phrase = list(rng.choice(phrases))
        if rng.random() < 0.4:
            phrase[rng.randrange(len(phrase))] = rng.randrange(3)
        text += phrase
    return text


def speed_on(texts: Sequence[list[int]], row: float, tree: bool) -> float:
    """Return the tokens per plain step's time where the texts are what is chosen."""
    options = Suffix(tree=tree)
    budget, tokens, time = Budget(options), 0, 0.0
    budget.checked([NO_DRAFTS], 1.0)
    for text in texts:
        drafts, sample, at = SuffixAutomaton(options), Known(), len(text) // 3
        drafts.extend(text[:at])
        while at < len(text) - 10:
            proposed = drafts.propose(8)
            (kept,) = budget.cut([sample], [proposed], [8])
            budget.drafted([sample], [proposed], 0.0)
            end, node = at + 1, kept.child(-1, text[at])
            while node is not None:
                node, end = kept.child(node, text[end]), end + 1
            budget.learn(sample, proposed, text[at:end])
            budget.checked([kept], 1 + row * len(kept))
            drafts.extend(text[at:end])
            tokens, time, at = tokens + end - at, time + 1 + row * len(kept), end
    return tokens / time


@pytest.mark.parametrize("row", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(2))
def test_trees_from_the_text(seed: int, row: float) -> None:
    rng = random.Random(seed)
    texts = [repetitive(rng, 700) for _ in range(6)]
    chain = speed_on(texts, row, tree=False)
    assert speed_on(texts, row, tree=True) >= BAR * chain
    assert row > 0.1 or chain > 1.2
