"""Which drafts of a model are checked, by how sure it is of them. Tests rates.py and budget.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from even_costs import EvenCosts
from suffice import SamplingParams
from suffice.sampling import SamplingState
from suffice.speculate import DraftedTokens
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
    drawn = Tree.levels([[1], [2]], [np.full(4, 0.25)] * 2, [[0.25], [0.01]])
    found = cut([drawn, sure_of([0.02]), NO_DRAFTS, sure_of([0.99])])
    assert [each.tokens for each in found] == [(1, 2), (), (), (0,)]
    assert found[0] is drawn


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bias", [None, {5: 0.5}], ids=["plain", "bias"])
def test_drafts_of_some_tokens_are_as_if_no_other_were_likely(
    temperature: float, bias: dict[int, float] | None
) -> None:
    """A request that names tokens looks at all of them, any other at those drafted."""
    some, rng = DraftedTokens(np.array([1, 4, 5, 9]), 12), np.random.default_rng(0)
    params = SamplingParams(temperature=temperature, logit_bias=bias)
    states = [SamplingState(params, seed, prompt=[3], output=[7]) for seed in range(40)]
    shapes = [(2, 1)] * len(states)
    own, whole = Drafting(states, shapes, drafted=some), Drafting(states, shapes)
    for at in range(len(states)):
        for _ in range(2):
            logits = rng.standard_normal(4).astype(np.float32)
            token = own.draft(at, logits)
            assert token == whole.draft(at, some.spread(logits, -np.inf))
    for tree, expected in zip(own.trees(), whole.trees(), strict=True):
        assert tree.tokens == expected.tokens and tree.sure == pytest.approx(expected.sure)
        assert set(tree.tokens) <= {1, 4, 5, 9} and len(tree) == 3
        assert (tree.draft_probs is None) == (temperature == 0)
        for probs, all_probs in zip(
            tree.draft_probs or (), expected.draft_probs or (), strict=True
        ):
            assert np.array_equal(probs, all_probs)


def test_a_chain_goes_on_while_another_draft_is_worth_its_time() -> None:
    """Also beyond the shape that would be the best of a fixed one."""
    rates = Rates()
    for _ in range(100):
        rates.learn(sure_of([0.9], [0.9], [0.9]), [0, 10, 20])
        rates.learn(sure_of([0.3], [0.9]), [99])
    budget = Budget(SelfDraft(8), EvenCosts(0.1, 0.1))
    budget.checked([NO_DRAFTS], 1.0)
    sample: Any = type("Sample", (), {"rates": rates, "state": SamplingState(GREEDY, 0)})()
    sample.drafter = None
    assert budget.shapes([sample], [8]) == [(1,) * 8]
    assert sample.goes_on([0.9]) and sample.goes_on([0.9] * 3)
    assert not sample.goes_on([0.3]) and not sample.goes_on([0.9, 0.3])
    assert budget.shapes([sample], [2]) == [(1, 1)]


def test_drafts_have_the_probabilities_of_their_logits() -> None:
    drafting = Drafting([SamplingState(GREEDY, 0)] * 2, [(2,), (1,)])
    logits = np.log(np.array([0.1, 0.6, 0.3], np.float32))
    drafting.draft(0, logits)
    drafting.draft(1, np.array([0.0, np.inf, 0.0], np.float32))
    first, second = drafting.trees()
    assert first.tokens == (1, 2) and first.sure == pytest.approx((0.6, 0.3))
    assert second.sure in (None, (0.0,))
