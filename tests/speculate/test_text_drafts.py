"""Texts that draft next to a model: which drafts a sample has, and what it learns from both.

Tests text_drafts.py and budget.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from even_costs import EvenCosts
from fake_engine import fake_llm, mixed, runner_of
from suffice import SamplingParams
from suffice.engine.loop import Loop
from suffice.speculate import Tree, Widths
from suffice.speculate.budget import Budget
from suffice.speculate.eagle3 import Eagle3
from suffice.speculate.none import NoDrafts
from suffice.speculate.rates import Rates
from suffice.speculate.tree import NO_DRAFTS

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
REPEATS = [5, 6, 7, 8, 9] * 4
NEW = list(range(20))


class Known:
    """A sample with a text, its rates and sampling parameters."""

    def __init__(self, text: list[int], rates: Rates, params: SamplingParams = GREEDY) -> None:
        self.state: Any = type("State", (), {"params": params, "prompt": text, "output": []})
        self.rates: Rates | None = rates
        self.goes_on = None
        self.drafter = self.sequence = None


def rates_of(*, text: bool, model: bool) -> Rates:
    """Return rates learned from drafts of both, all right or all wrong."""
    rates = Rates(memory=1e9)
    for _ in range(100):
        rates.learn(Tree.chain([1, 2, 3, 4], match=1), [1, 2, 3, 4, 5] if text else [9])
        rates.learn(Tree.chain([1, 2, 3, 4]), [1, 2, 3, 4, 5] if model else [9])
    return rates


def asked(samples: list[Known], **options: Any) -> tuple[list[Any], list[Tree]]:
    """Return the shapes of a model's drafts in a step, and what is checked."""
    budget = Budget(Eagle3("folder", **options), EvenCosts(0.1, 0.05))
    budget.checked([NO_DRAFTS], 1.0)
    room = [8] * len(samples)
    shapes = budget.shapes(samples, room)
    made = [Tree.chain([1] * len(shape)) if shape else NO_DRAFTS for shape in shapes]
    return shapes, budget.cut(samples, made, room)


def test_a_sample_has_the_drafts_that_are_expected_to_be_faster() -> None:
    both, one = rates_of(text=True, model=True), rates_of(text=False, model=True)
    other, none = rates_of(text=True, model=False), rates_of(text=False, model=False)
    rates = [both, one, other, none]
    shapes, kept = asked([Known(REPEATS, each) for each in rates])
    assert [len(shape) for shape in shapes] == [0, 4, 0, 0]
    assert [tree.tokens for tree in kept] == [
        (5, 6, 7, 8, 9, 5, 6, 7),
        (1,) * 4,
        kept[0].tokens,
        (),
    ]
    shapes, kept = asked([Known(NEW, each) for each in rates])
    assert [len(shape) for shape in shapes] == [4, 4, 0, 0], "there is nothing to look up"
    assert [len(tree) for tree in kept] == [4, 4, 0, 0]


def test_texts_draft_only_where_they_are_asked_to() -> None:
    sample = Known(REPEATS, rates_of(text=True, model=True))
    shapes, kept = asked([sample], text=False)
    assert shapes == [(1,) * 4] and kept[0].tokens == (1,) * 4
    shapes, kept = asked([sample], adaptive=False)
    assert shapes == [(1,) * 4] and kept[0].tokens == (1,) * 4


def test_a_seeded_draw_has_the_drafts_of_its_text_alone() -> None:
    seeded = SamplingParams(seed=3)
    samples = [Known(text, rates_of(text=True, model=True), seeded) for text in (REPEATS, NEW)]
    shapes, kept = asked(samples)
    assert shapes == [(), ()] and [len(tree) for tree in kept] == [8, 0]


def test_a_text_is_judged_whether_it_is_used_or_not() -> None:
    sample = Known(REPEATS, rates_of(text=False, model=True))
    budget = Budget(Eagle3("folder"), EvenCosts(0.1, 0.05))
    budget.checked([NO_DRAFTS], 1.0)
    used = []
    for step in range(60):
        (shape,) = budget.shapes([sample], [8])
        used.append(not shape)
        tree = Tree.chain([9] * len(shape)) if shape else NO_DRAFTS
        (kept,) = budget.cut([sample], [tree], [8])
        budget.drafted([sample], [tree], 0.05 * len(shape))
        budget.learn(sample, tree, [5 + (step + at) % 5 for at in range(9)])  # as the text says
        sample.state.output.append(5 + step % 5)
        budget.checked([kept], budget._costs.step(1, len(kept)))
    assert not any(used[:3]) and all(used[-10:])


CYCLE = [3, 5, 4, 7, 6]


def turning(history: list[int]) -> np.ndarray:
    """Return logits of texts that repeat a cycle for 20 tokens, and are like no other for 12."""
    if len(history) % 32 >= 20:
        return mixed(history)
    logits: np.ndarray = np.zeros_like(mixed(history))
    logits[CYCLE[len(history) % len(CYCLE)]] = 9
    return logits


class Knows:
    """A model that drafts what follows where texts are like no other, and else what does not.

    A draft takes 0.1.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def propose(self, samples: Sequence[Any], shapes: Sequence[Widths]) -> list[Tree]:
        self.seconds += 0.1 * max((len(shape) for shape in shapes), default=0)
        return [
            self._tree([*s.state.prompt, *s.state.output], len(shape)) if shape else NO_DRAFTS
            for s, shape in zip(samples, shapes, strict=True)
        ]

    def _tree(self, text: list[int], most: int) -> Tree:
        tokens: list[int] = []
        for _ in range(most):
            found = [*text, *tokens]
            knows = len(found) % 32 >= 20
            tokens.append(int(turning(found).argmax()) if knows else 13)
        return Tree.chain(tokens)

    def forget(self, sample: Any) -> None:
        sample.drafter = None


def seconds_of(speculator: Any, params: SamplingParams) -> tuple[float, Any]:
    """Return what three rounds of texts take, where a step takes 1 and 0.05 a row, and these."""
    llm = fake_llm(turning)
    runner, knows, steps = runner_of(llm), Knows(), [0.0]
    runner.proposer, runner.most_drafts = knows, 8 if speculator.num_speculative_tokens else 0
    verify = runner.verify

    def timed(*parts: Any) -> Any:
        logits = verify(*parts)
        steps[0] += 1 + 0.05 * len(logits)
        return logits

    runner.verify = timed  # type: ignore[method-assign]
    llm.loop = Loop(
        runner,
        llm.tokenizer,
        Budget(speculator),
        max_num_seqs=1,
        max_model_len=64,
        clock=lambda: steps[0] + knows.seconds,
    )
    found = [llm.generate([[3], [4]], params) for _ in range(3)]
    answers = [each.outputs[0].token_ids for round_ in found for each in round_]
    return steps[0] + knows.seconds, answers


@pytest.mark.parametrize("temperature", [0.0, 0.1])
def test_with_its_text_a_model_is_faster_than_alone(temperature: float) -> None:
    """Texts that a model and the text know in parts: the same tokens, sooner."""
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=60, ignore_eos=True)
    plain, wanted = seconds_of(NoDrafts(), params)
    alone, found = seconds_of(Eagle3("folder", text=False), params)
    assert found == wanted
    both, found = seconds_of(Eagle3("folder"), params)
    assert found == wanted
    if temperature:
        assert alone > 0.99 * plain, "a seeded draw has no drafts of a model"
    assert both < 0.9 * min(alone, plain)
