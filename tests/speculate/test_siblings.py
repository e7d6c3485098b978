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
from suffice.sampling import SamplingState, draw, probabilities
from suffice.speculate import SPECULATORS, DraftingSample, GoesOn, Tree, Widths
from suffice.speculate.acceptance import draft_number
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
Levels = list[list[list[float]]]
Seconds = Callable[[int], float]


def other(text: list[int]) -> np.ndarray:
    """Return the logits of a model that is like `mixed`, but another."""
    return np.asarray(0.7 * mixed(text) + 0.3 * mixed([*text, 1]), np.float32)


def drafted(state: SamplingState, shape: Widths, goes_on: GoesOn | None = None) -> Tree:
    """Return the tree that `other` drafts."""
    drafting, text = Drafting([state], [shape], [goes_on]), [*state.prompt, *state.output]
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
    trials, counts = 2000, np.zeros((V, V))
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
    assert likely.sum() > 20 and statistic < likely.sum() + 4 * np.sqrt(2 * likely.sum())


def test_drawn_siblings_are_all_that_can_come_and_the_first_is_that_of_a_chain() -> None:
    for seed in range(200):
        params = SamplingParams(top_k=seed % 7 + 1)
        state = SamplingState(params, seed, prompt=[3])
        tree = drafted(state, (5,))
        probs = probabilities(other([3]), state)
        assert len(set(tree.tokens)) == len(tree) == min(5, np.count_nonzero(probs))
        assert all(probs[token] > 0 for token in tree.tokens)
        assert tree.tokens[0] == draw(probs, draft_number(state, 0))


@pytest.mark.parametrize("width", [2, 3, 5])
def test_greedy_texts_are_those_without_drafts(width: int) -> None:
    prompts = [[3], [4, 5], [6, 7, 8]]
    plain = fake_llm(max_num_seqs=1).generate(prompts, GREEDY)
    found = speculating(width).generate(prompts, GREEDY)
    chain = speculating(1).generate(prompts, GREEDY)
    assert [each.outputs for each in found] == [each.outputs for each in plain]
    steps = [sum(each.speculation.steps for each in outputs) for outputs in (found, chain)]
    assert steps[0] < steps[1], "some siblings were right where the chain was not"


def statistic_of(draft: Draft, width: int, trials: int = 300, **params: Any) -> tuple[float, int]:
    """Return chi-squared of the third token over many seeds, and the accepted drafts."""
    counts, accepted = np.zeros(V), 0
    llm = speculating(width, draft=draft)
    for seed in range(trials):
        (output,) = llm.generate([[3]], dataclasses.replace(DRAWN, seed=seed, **params))
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
    assert accepted > 1.03 * of_chains


def argmax_tokens(state: SamplingState, shape: Widths) -> Tree:
    """Broken on purpose: drafts the most likely tokens, as if they had been drawn."""
    drawn = drafted(state, shape)
    greedy = SamplingState(GREEDY, 0, prompt=state.prompt)
    for token in state.output:
        greedy.append(token)
    return dataclasses.replace(drafted(greedy, shape), draft_probs=drawn.draft_probs)


def test_the_law_bites() -> None:
    assert statistic_of(argmax_tokens, 3, 1000, max_tokens=4)[0] > 10 * CRITICAL


def ending_early(state: SamplingState, shape: Widths) -> Tree:
    return drafted(state, shape, lambda sure: sure[-1] > 0.2)


def without_unlikely_drafts(state: SamplingState, shape: Widths) -> Tree:
    """Broken on purpose: leaves out drawn tokens because of what they are."""
    tree = drafted(state, shape)
    probs, sure = tree.draft_probs or (), tree.sure or ()
    count = next((at for at, each in enumerate(sure) if each < 0.2), len(tree))
    return Tree.chain(tree.tokens[:count], probs[:count])  # type: ignore[arg-type]


def test_where_a_chain_ends_may_depend_on_its_drafts_but_not_on_one_left_out() -> None:
    states = [SamplingState(DRAWN, seed, prompt=[3]) for seed in range(99)]
    assert {len(ending_early(state, (1, 1, 1))) for state in states} == {1, 2, 3}
    assert statistic_of(ending_early, 1, 3000, max_tokens=4)[0] < CRITICAL
    assert statistic_of(without_unlikely_drafts, 1, 3000, max_tokens=4)[0] > 2 * CRITICAL


def brute_force(trees: Levels, seconds: Seconds, draft: float) -> float:
    """Return the most expected tokens per second of all shapes."""
    best = 0.0
    options = [
        [
            shape
            for depths in range(len(levels) + 1)
            for shape in itertools.product(*(range(1, len(each) + 1) for each in levels[:depths]))
        ]
        for levels in trees
    ]
    for shapes in itertools.product(*options):
        best = max(best, speed_of(shapes, trees, seconds, draft))
    return best


def speed_of(shapes: Sequence[Widths], trees: Levels, seconds: Seconds, draft: float) -> float:
    tokens = float(len(trees)) + sum(
        sum(level[:width])
        for levels, shape in zip(trees, shapes, strict=True)
        for level, width in zip(levels, shape, strict=False)
    )
    return tokens / (seconds(sum(map(sum, shapes))) + draft * sum(map(len, shapes)))


def random_levels(rng: random.Random, depths: int, width: int) -> list[list[float]]:
    rates = Rates(memory=1e9)
    for _ in range(60):
        sizes = range(depths)
        tree = Tree.levels([[width * depth + rank for rank in range(width)] for depth in sizes])
        tokens = [99 if rng.random() < 0.3 else width * depth for depth in sizes]
        if rng.random() < 0.5:
            place = rng.randrange(depths)
            tokens[place] = width * place + rng.randrange(width)
        rates.learn(tree, tokens)
    return rates.levels((width,) * depths)


@pytest.mark.parametrize("seed", range(25))
def test_shapes_are_the_best_of_all(seed: int) -> None:
    """Brute force over all shapes of one tree, and of two: none has more tokens per second."""
    rng = random.Random(seed)
    table = list(itertools.accumulate([1.0] + [rng.random() * 0.2 for _ in range(40)]))
    draft = rng.random() * 0.2
    found = set()
    for trees in (
        [random_levels(rng, 4, 3)],
        [random_levels(rng, 3, 2), random_levels(rng, 2, 2)],
    ):
        shapes = shapes_that_pay(trees, [31] * len(trees), len(trees), table.__getitem__, draft)
        best = brute_force(trees, table.__getitem__, draft)
        assert speed_of(shapes, trees, table.__getitem__, draft) == pytest.approx(best)
        found |= {max(shape, default=0) for shape in shapes}
    assert found != {0} or draft > 0.05 or table[1] > 1.05


def test_a_shape_keeps_to_its_room() -> None:
    levels = [[0.6, 0.3, 0.05], [0.5, 0.2, 0.04], [0.4, 0.1, 0.03]]
    for room in range(8):
        (shape,) = shapes_that_pay([levels], [room], 1, lambda drafts: 1 + 1e-6 * drafts, 0.0)
        assert sum(shape) == room
    (shape,) = shapes_that_pay([levels], [4], 1, lambda drafts: 1.0 + 1e-6 * drafts, 0.0)
    assert shape == (2, 1, 1), "the most likely of all"
    assert shapes_that_pay([[]], [0], 1, lambda drafts: 1.0, 0.0) == [()]
    (shape,) = shapes_that_pay([levels], [9], 1, lambda drafts: 1.0 + 1e-6 * drafts, 0.7)
    assert shape == (3,), "a step of the draft model for what is left is too dear"


class Known:
    """A sample with nothing but rates and sampling parameters."""

    def __init__(self, params: SamplingParams = GREEDY) -> None:
        self.state: Any = type("State", (), {"params": params})
        self.rates: Rates | None = None
        self.goes_on = None
        self.drafter = self.sequence = None


def shapes_of(
    rates: Sequence[float], draft: float, width: int = 3, steps: int = 1500
) -> list[Widths]:
    """Return the shapes of a sample whose sibling number i is right with probability `rates[i]`."""
    budget, sample, found = Budget(SelfDraft(4, width=width)), Known(), []
    rng = random.Random(5)
    for _ in range(steps):
        (shape,) = budget.shapes([sample], [31])
        tree = Tree.levels([[3 * at + rank for rank in range(w)] for at, w in enumerate(shape)])
        tokens: list[int] = []
        for depth, drafted_there in enumerate(shape):
            number, ranks = rng.random(), list(itertools.accumulate(rates))
            rank = next((rank for rank, sum_of in enumerate(ranks) if number < sum_of), 99)
            tokens.append(3 * depth + rank if rank < drafted_there else 99)
            if rank:
                break
        if all(token % 3 == 0 and token != 99 for token in tokens) or tokens[-1] != 99:
            tokens.append(99)
        budget.drafted([sample], [tree], draft * len(shape))
        budget.learn(sample, tree, tokens)
        budget.checked([tree], 1 + 0.02 * len(tree))
        found.append(shape)
    return found


def mean_widths(shapes: Sequence[Widths]) -> float:
    drafted = [shape for shape in shapes if shape]
    return sum(map(sum, drafted)) / sum(map(len, drafted))


def test_a_budget_drafts_the_siblings_that_pay() -> None:
    """A step with a row more takes 2 % longer: the second sibling is worth it, the third is not."""

    def width_of(rates: Sequence[float], draft: float) -> float:
        return mean_widths(shapes_of(rates, draft, steps=800)[-400:])

    assert 1.7 < width_of([0.5, 0.4, 0.0], draft=0.3) < 2.3
    assert width_of([0.9, 0.0, 0.0], draft=0.05) < 1.2
    assert width_of([0.4, 0.3, 0.2], draft=0.05) > 2
    assert mean_widths(shapes_of([0.4, 0.3, 0.2], draft=0.05, width=1, steps=100)) == 1


def test_siblings_pay_where_a_chain_does_not() -> None:
    chains, trees = (shapes_of([0.4, 0.3, 0.2], draft=0.5, width=width) for width in (1, 3))
    assert sum(map(bool, chains[-500:])) < 100
    assert sum(map(bool, trees[-500:])) > 400


def test_nothing_is_drafted_where_nothing_pays() -> None:
    assert sum(map(bool, shapes_of([0.0, 0.0, 0.0], draft=0.2))) < 100


def test_siblings_that_are_not_drafted_are_tried_again() -> None:
    rates = Rates(memory=20)
    tree = Tree.levels([[1, 2]])
    for _ in range(60):
        rates.learn(tree, [1], 2)
        rates.learn(tree, [9], 2)
    low = rates.rate(0, 1, 1)
    assert low < 0.05
    for _ in range(200):
        rates.learn(Tree.chain([1]), [1], 1)
        rates.learn(Tree.chain([1]), [9], 1)
    assert rates.rate(0, 1, 1) == pytest.approx(low, abs=0.01), "a chain knows nothing of siblings"
    for _ in range(200):
        rates.learn(Tree.chain([1]), [1], 2)
        rates.learn(Tree.chain([1]), [9], 2)
    assert rates.rate(0, 1, 1) > 0.2, "half of what the first leaves"


def test_siblings_of_a_tree_share_what_is_left() -> None:
    rates = Rates(memory=1e9)
    for _ in range(100):
        rates.learn(Tree.chain([1], match=2), [1])  # a first without others is always right
        rates.learn(Tree((1, 2), (-1, -1), match=2), [2])
    first, second = rates.chances(Tree((1, 2), (-1, -1), match=2))
    assert first == rates.rate(2, 1) > 0.4 and rates.rate(2, 1, 1) > 0.9
    assert first + second == pytest.approx(1)


def test_ranks_count_as_no_more_likely_than_those_before() -> None:
    rates = Rates(memory=1e9)
    for _ in range(100):
        rates.learn(Tree.levels([[1, 2, 3]]), [2])
    (level,) = rates.levels((3,))
    assert rates.rate(0, 1, 1) > 0.9 and level[0] == level[1] == rates.rate(0, 1)


@pytest.mark.parametrize("method", ["self", "draft_model"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 8}, "width=8 with num_speculative_tokens=4: must be between 1 and 7, since a "),
        ({"width": 0}, "width=0 with num_speculative_tokens=4: must be between 1 and 7, since a "),
        (
            {"num_speculative_tokens": 16, "width": 2},
            "width=2 with num_speculative_tokens=16: must be between 1 and 1, since a ",
        ),
    ],
    ids=str,
)
def test_bad_options(method: str, options: dict[str, int], message: str) -> None:
    extra = {"model": "m"} if method == "draft_model" else {}
    with pytest.raises(InputError) as error:
        SPECULATORS.make(method, options | extra)
    assert str(error.value) == f"speculator '{method}': {message}step checks 31 drafts"
