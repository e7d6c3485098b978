"""Siblings that a model drafts: their tokens, the text's distribution, and which of them pay.

Also tests shapes.py and the trees of proposers.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fake_engine import V, fake_llm, mixed, runner_of
from suffice import SamplingParams
from suffice.errors import InputError
from suffice.sampling import SamplingState, probabilities
from suffice.speculate import SPECULATORS, DraftingSample, Tree, Widths
from suffice.speculate.budget import Budget
from suffice.speculate.proposers import Drafting
from suffice.speculate.rates import Rates
from suffice.speculate.self import SelfDraft
from suffice.speculate.shapes import shapes_that_pay
from suffice.speculate.tree import NO_DRAFTS, filled

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(max_tokens=11, ignore_eos=True, top_k=6)
CRITICAL = 45  # of chi-squared with at most 13 degrees of freedom: once in 30 000 times
Draft = Callable[[SamplingState, Widths], Tree]


def other(text: list[int]) -> np.ndarray:
    """Return the logits of a model that is like `mixed`, but another."""
    return np.asarray(0.7 * mixed(text) + 0.3 * mixed([*text, 1]), np.float32)


def drafted(state: SamplingState, shape: Widths) -> Tree:
    """Return the tree that `other` drafts."""
    drafting, text = Drafting([state], [shape]), [*state.prompt, *state.output]
    while shape and (token := drafting.draft(0, other(text))) is not None:
        text.append(token)
    return drafting.trees()[0]


class ByOther:
    """Drafts of `other` in any shape, by `draft`."""

    def __init__(self, draft: Draft = drafted) -> None:
        self._draft = draft

    def propose(self, samples: Sequence[DraftingSample], shapes: Sequence[Widths]) -> list[Tree]:
        return [self._draft(s.state, shape) for s, shape in zip(samples, shapes, strict=True)]

    def forget(self, sample: DraftingSample) -> None: ...


def speculating(width: int, depths: int = 3, draft: Draft = drafted) -> Any:
    """Return an engine that always drafts."""
    llm = fake_llm(max_num_seqs=1)
    runner = runner_of(llm)
    runner.proposer, runner.most_drafts = ByOther(draft), width * depths
    llm.loop.budget = Budget(SelfDraft(depths, width=width, adaptive=False))
    return llm


def test_shapes_have_the_chain_first() -> None:
    assert filled(4, 1, 31) == (1, 1, 1, 1)
    assert filled(4, 3, 31) == (3, 3, 3, 3)
    assert filled(4, 3, 10) == (3, 3, 2, 2)
    assert filled(4, 3, 5) == (2, 1, 1, 1)
    assert filled(4, 3, 2) == (1, 1)
    assert filled(4, 3, 0) == ()


def test_a_tree_of_levels_is_a_chain_with_leaves() -> None:
    probs = [np.full(9, 1 / 9)] * 3
    tree = Tree.levels([[1, 2, 3], [4], [5, 6]], probs)
    assert tree.tokens == (1, 4, 5, 2, 3, 6)
    assert tree.parents == (-1, 0, 1, -1, -1, 1)
    assert [tree.children(node) for node in range(-1, 6)] == [[0, 3, 4], [1], [2, 5], *[[]] * 4]
    assert tree.draft_probs is not None and len(tree.draft_probs) == len(tree) + 1
    assert all(tree.draft_probs[node + 1] is not None for node in (-1, 0, 1))
    assert all(tree.draft_probs[node + 1] is None for node in range(2, 6))
    assert Tree.levels([[1], [2]], probs[:2]) == Tree.chain([1, 2], probs[:2])
    assert Tree.levels([]) == NO_DRAFTS


def test_greedy_siblings_are_the_most_likely_tokens() -> None:
    state = SamplingState(GREEDY, 0, prompt=[3, 4])
    state.append(5)
    tree = drafted(state, (3, 1, 2))
    ranked = np.argsort(-other([3, 4, 5]), kind="stable")
    assert [tree.tokens[node] for node in tree.children(-1)] == ranked[:3].tolist()
    text = [3, 4, 5, tree.tokens[0], tree.tokens[1]]
    ranked = np.argsort(-other(text), kind="stable")
    assert [tree.tokens[node] for node in tree.children(1)] == ranked[:2].tolist()
    assert tree.draft_probs is None and len(tree) == 6


def test_siblings_keep_to_what_a_request_allows() -> None:
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, allowed_token_ids=[4, 7])
        tree = drafted(SamplingState(params, 0, prompt=[3]), (3, 3))
        assert {tree.tokens[node] for node in tree.children(-1)} == {4, 7}


def test_drawn_siblings_are_drawn_without_replacement() -> None:
    """Each rank has the distribution of the draft, without the tokens before it."""
    trials, counts = 4000, np.zeros((V, V))
    for seed in range(trials):
        state = SamplingState(dataclasses.replace(DRAWN, top_k=0), seed, prompt=[3])
        tree = drafted(state, (2,))
        counts[tree.tokens[0], tree.tokens[1]] += 1
    probs = probabilities(other([3]), SamplingState(dataclasses.replace(DRAWN, top_k=0), 0))
    expected = np.outer(probs, probs) / (1 - probs[:, None]) * trials
    np.fill_diagonal(expected, 0)
    assert np.diag(counts).sum() == 0
    likely = expected > 5
    statistic = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert 20 < likely.sum() and statistic < likely.sum() + 4 * np.sqrt(2 * likely.sum())


@pytest.mark.parametrize("width", [2, 3, 5])
def test_greedy_texts_are_those_without_drafts(width: int) -> None:
    prompts = [[3], [4, 5], [6, 7, 8]]
    plain = fake_llm(max_num_seqs=1).generate(prompts, GREEDY)
    found = speculating(width).generate(prompts, GREEDY)
    chain = speculating(1).generate(prompts, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    steps = [sum(each.speculation.steps for each in outputs) for outputs in (found, chain)]
    assert steps[0] < steps[1], "some siblings were right where the chain was not"


def statistic_of(draft: Draft, width: int) -> tuple[float, int]:
    """Return chi-squared of the third token over many seeds, and the accepted drafts."""
    trials, counts, accepted = 1500, np.zeros(V), 0
    llm = speculating(width, draft=draft)
    for seed in range(trials):
        (output,) = llm.generate([[3]], dataclasses.replace(DRAWN, seed=seed))
        counts[output.outputs[0].token_ids[2]] += 1
        accepted += output.speculation.num_accepted_tokens
    expected = exact_third() * trials
    assert counts[expected == 0].sum() == 0
    likely = expected > 5
    return float(((counts - expected)[likely] ** 2 / expected[likely]).sum()), accepted


def exact_third() -> np.ndarray:
    """Return the distribution of the third token after [3] without drafts."""
    total = np.zeros(V)

    def after(*text: int) -> np.ndarray:
        return probabilities(mixed([*text]), SamplingState(DRAWN, 0))

    for first, p in enumerate(after(3).tolist()):
        for second, q in enumerate(after(3, first).tolist() if p else ()):
            if p * q:
                total += p * q * after(3, first, second)
    return total


def test_drawn_siblings_keep_the_distribution() -> None:
    (own, accepted), (_, of_chains) = statistic_of(drafted, 3), statistic_of(drafted, 1)
    assert own < CRITICAL
    assert accepted > 1.05 * of_chains


def by_looking(state: SamplingState, shape: Widths) -> Tree:
    """Broken on purpose: keeps a sibling only if the draft thinks well of it."""
    tree = drafted(state, shape)
    probs = tree.draft_probs
    if probs is None:
        return tree
    kept = [
        node
        for node, parent in enumerate(tree.parents)
        if node == parent + 1 or probs[parent + 1][tree.tokens[node]] > 0.2  # type: ignore[index]
    ]
    own = tuple(probs[node + 1] for node in (-1, *kept))
    return dataclasses.replace(tree.only(kept), draft_probs=own)


def likeliest(state: SamplingState, shape: Widths) -> Tree:
    """Broken on purpose: drafts the most likely tokens, as if they had been drawn."""
    drawn = drafted(state, shape)
    greedy = SamplingState(GREEDY, 0, prompt=state.prompt)
    for token in state.output:
        greedy.append(token)
    return dataclasses.replace(drafted(greedy, shape), draft_probs=drawn.draft_probs)


@pytest.mark.parametrize("broken", [likeliest, by_looking])
def test_the_law_bites(broken: Draft) -> None:
    assert statistic_of(broken, 3)[0] > 2 * CRITICAL
