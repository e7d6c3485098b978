"""Which drafts of a model are checked, by how sure it is of them. Tests rates.py and budget.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from even_costs import EvenCosts
from suffice import SamplingParams
from suffice.sampling import SamplingState
from suffice.speculate.budget import Budget
from suffice.speculate.proposers import Drafting
from suffice.speculate.rates import Rates
from suffice.speculate.self import SelfDraft
from suffice.speculate.tree import NO_DRAFTS, Tree

GREEDY = SamplingParams(temperature=0)


def cut(trees: list[Tree], rates: Rates | None = None) -> list[Tree]:
    budget = Budget(SelfDraft(4, width=3), EvenCosts(0.3, 0.01))
    sample: Any = type("Sample", (), {"rates": rates, "state": None})()
    return budget.cut([sample] * len(trees), trees, [8] * len(trees))


def sure_of(*levels: list[float]) -> Tree:
    tokens = [[10 * depth + rank for rank in range(len(own))] for depth, own in enumerate(levels)]
    return Tree.levels(tokens, sure=levels)


def test_a_model_is_believed_at_first() -> None:
    """What is likelier than a row is dear stays: by the product along the path, of any rank."""
    (kept,) = cut([sure_of([0.85, 0.1], [0.8, 0.05], [0.15], [0.95])])
    assert kept.tokens == (0, 10) and kept.sure == (0.85, 0.8)
    (kept,) = cut([sure_of([0.48, 0.45], [0.2])])
    assert kept.tokens == (0, 1) and kept.parents == (-1, -1)
    assert cut([sure_of([0.05], [0.99])]) == [Tree(sure=())]


def test_it_is_believed_by_what_came() -> None:
    """Drafts are judged whether they were checked or not."""
    rates = Rates()
    for _ in range(40):
        rates.learn(sure_of([0.95], [0.15]), [9])
    assert rates.rate_if(0.95) < 0.2 and rates.rate_if(0.15) == 0.15
    assert not len(cut([sure_of([0.95])], rates)[0])
    for _ in range(40):
        rates.learn(sure_of([0.15], [0.95]), [0, 10])
    assert rates.rate_if(0.15) > 0.8 < rates.rate_if(0.95)
    assert Rates(before=rates).rate_if(0.12) == pytest.approx(rates.rate_if(0.15), abs=0.01)


def test_what_was_sampled_is_checked_whole() -> None:
    """Else the choice would depend on the drafts, and the text would lose its distribution."""
    drawn = Tree.chain([1, 2], draft_probs=[np.full(4, 0.25)] * 2)
    found = cut([drawn, sure_of([0.02]), NO_DRAFTS, sure_of([0.99])])
    assert [each.tokens for each in found] == [(1, 2), (), (), (0,)]
    assert found[0] is drawn


def test_drafts_have_the_probabilities_of_their_logits() -> None:
    drafting = Drafting([SamplingState(GREEDY, 0)] * 2, [(2,), (1,)])
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    drafting.draft(0, logits)
    drafting.draft(1, np.array([0.0, np.inf, 0.0], np.float32))
    first, second = drafting.trees()
    assert first.tokens == (1, 2) and first.sure == pytest.approx((0.6, 0.3))
    assert second.sure in (None, (0.0,))
