"""How many drafts pay: by fixed costs and rates, and by a clock that the tests turn.

Also tests costs.py.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fake_engine import fake_llm, mixed, runner_of
from suffice import LLM, SamplingParams
from suffice.engine.loop import Loop
from suffice.speculate.budget import Budget
from suffice.speculate.costs import StepCosts
from suffice.speculate.ngram import NGram
from suffice.speculate.rates import Rates
from suffice.speculate.self import SelfDraft
from suffice.speculate.shapes import count_that_pays
from suffice.speculate.suffix import Suffix, SuffixAutomaton
from suffice.speculate.tree import NO_DRAFTS, Tree, Widths

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
BRANCHED = Tree((1, 2, 3, 4, 5, 6, 7), (-1, 0, 0, -1, 3, 3, 5), match=2)


def subtrees(tree: Tree) -> list[tuple[int, ...]]:
    """Return every set of nodes that has the parent of each."""
    nodes = range(len(tree))
    sets = itertools.chain(*(itertools.combinations(nodes, size) for size in range(len(tree) + 1)))
    return [kept for kept in sets if all(tree.parents[n] in (-1, *kept) for n in kept)]


class Table(StepCosts):
    """Costs that nothing changes."""

    def __init__(self, seconds: Sequence[float], draft: float = 0.0) -> None:
        super().__init__()
        self._seconds, self._each = seconds, draft

    def step(self, samples: int, drafts: int) -> float:
        return self._seconds[samples + drafts]

    @property
    def draft(self) -> float:
        return self._each

    def add_step(self, samples: int, drafts: int, seconds: float) -> None: ...

    def add_drafts(self, count: int, seconds: float) -> None: ...


def settled(speculator: Any, costs: StepCosts) -> Budget:
    """Return a budget that knows what a step without drafts costs."""
    budget = Budget(speculator, costs)
    budget.checked([NO_DRAFTS], 1.0)
    return budget


class Known:
    """A sample with nothing but rates and sampling parameters."""

    def __init__(self, params: SamplingParams = GREEDY, rates: Rates | None = None) -> None:
        self.state: Any = type("State", (), {"params": params})
        self.rates, self.drafter, self.sequence, self.goes_on = rates, None, None, None


def rates_of(right: float, tree: Tree = BRANCHED, seed: int = 0) -> Rates:
    """Return rates learned from drafts whose first sibling is right with probability `right`."""
    rng, rates = random.Random(seed), Rates(memory=1e9)
    for _ in range(400):
        tokens = [1, 2] if rng.random() < right else [rng.choice([4, 99]), 5, 99]
        rates.learn(tree, tokens)
    return rates


@pytest.mark.parametrize("seed", range(20))
def test_the_likeliest_drafts_are_the_best_of_all_subtrees(seed: int) -> None:
    """Brute force: of all subtrees none has more expected tokens per second."""
    rng = random.Random(seed)
    rates = rates_of(rng.random(), seed=seed)
    table = list(itertools.accumulate([1.0] + [rng.random() * 0.4 for _ in range(8)]))
    budget = settled(NGram(7), Table([0.0, *table]))
    sample = Known(rates=rates)
    (kept,) = budget.cut([sample], [BRANCHED], [7])
    chances = rates.chances(BRANCHED)
    speeds = {
        nodes: (1 + sum(chances[n] for n in nodes)) / table[len(nodes)]
        for nodes in subtrees(BRANCHED)
    }
    best = max(speeds.values())
    own = next(n for n in speeds if tuple(BRANCHED.tokens[i] for i in n) == kept.tokens)
    assert speeds[own] == pytest.approx(best)
    assert len(subtrees(BRANCHED)) > 20


@pytest.mark.parametrize("seed", range(30))
def test_a_tree_from_the_text_is_never_expected_to_be_slower_than_the_chain(seed: int) -> None:
    rng = random.Random(seed)
    rates = rates_of(rng.random(), seed=seed)
    table = [0.0, *itertools.accumulate([1.0, *(rng.random() * 0.15 for _ in range(20))])]
    text, speeds = rng.choices(range(3), k=80), {}
    for tree in (False, True):
        options = Suffix(tree=tree, max_spec_factor=5.0)
        drafts = SuffixAutomaton(options)
        drafts.extend(text)
        budget = settled(options, Table(table))
        (kept,) = budget.cut([Known(rates=rates)], [drafts.propose(8)], [8])
        assert len(kept) <= 8
        speeds[tree] = (1 + sum(rates.chances(kept))) / table[1 + len(kept)]
    assert speeds[True] >= speeds[False] - 1e-12


def test_a_cut_tree_keeps_its_order_and_its_parents() -> None:
    kept = BRANCHED.only([0, 3, 5, 6])
    assert kept == Tree((1, 4, 6, 7), (-1, -1, 1, 2), match=2)
    assert BRANCHED.only([]) == Tree(match=2)


def test_two_samples_share_the_rows_that_pay() -> None:
    good, bad = rates_of(1.0), rates_of(0.0)
    budget = settled(NGram(7), Table([1 + 0.1 * rows for rows in range(20)]))
    chain = Tree.chain([1, 2, 3], match=2)
    first, second = budget.cut([Known(rates=good), Known(rates=bad)], [chain, chain], [7, 7])
    assert len(first) > len(second) == 0


@pytest.mark.parametrize(("right", "kept"), [(0.0, 0), (1.0, 6)])
def test_rates_of_none_and_of_all(right: float, kept: int) -> None:
    """None right: no drafts. All right: the most that pay, here where a tile of rows is full."""
    table = [0.0, *(1 + 0.05 * rows for rows in range(7)), *(8.0 + rows for rows in range(20))]
    chain = Tree.chain(range(10), match=8)
    rates = Rates(memory=1e9)
    for _ in range(500):
        rates.learn(chain, list(range(10)) if right else [99])
    (tree,) = settled(NGram(10), Table(table)).cut([Known(rates=rates)], [chain], [10])
    assert len(tree) == kept


def test_counts_that_pay() -> None:
    assert count_that_pays([], 1, lambda drafts: 1.0) == 0
    assert count_that_pays([0.5, 0.25], 1, lambda drafts: 1 + 0.3 * drafts) == 1
    assert count_that_pays([0.5, 0.25], 1, lambda drafts: 1 + 0.6 * drafts) == 0
    # a table is no straight line: the second draft is for nothing, and the third too
    costs = [1.0, 1.6, 1.6, 1.6]
    assert count_that_pays([0.5, 0.4, 0.3], 1, costs.__getitem__) == 3


def test_rates_go_on_where_a_longer_match_was_seen() -> None:
    rates = Rates(memory=1e9)
    chain = Tree.chain([1, 2, 3], match=2)
    for _ in range(200):
        rates.learn(chain, [1, 2, 9])
    assert rates.rate(2, 1) > 0.95 < rates.rate(3, 1)
    assert rates.rate(4, 1) < 0.05
    assert rates.rate(1, 1) == 0.5, "nothing is known of shorter matches"
    assert rates.rate(7, 1) < 0.05, "what is not known is as what is a token shorter"
    found = rates.chances(chain)
    assert found[0] > found[1] > 0.9 > 0.1 > found[2]
    assert rates.levels((1, 1)) == [[0.5], [pytest.approx(0.5 * 0.5)]]


def test_siblings_share_what_is_left() -> None:
    rates = rates_of(0.6)
    first, second = rates.rate(2, 1), rates.rate(2, 1, 1)
    assert first == pytest.approx(0.6, abs=0.08) and second == pytest.approx(0.2, abs=0.06)


def test_a_sample_begins_with_what_all_have_shown() -> None:
    everyone = rates_of(0.9)
    own = Rates(everyone)
    assert own.rate(2, 1) == everyone.rate(2, 1)
    for _ in range(30):
        own.learn(BRANCHED, [99])
    assert own.rate(2, 1) < 0.2 < everyone.rate(2, 1)


def test_costs_follow_what_steps_take() -> None:
    costs = StepCosts()
    assert costs.step(1, 4) == pytest.approx(1.4 * costs.step(1, 0)), "a guess"
    rng = random.Random(3)
    for _ in range(600):
        drafts = rng.randint(0, 16)
        costs.add_step(1, drafts, 0.010 if not drafts else 0.015 + 0.0005 * drafts)
    assert costs.step(1, 0) == pytest.approx(0.010, rel=0.01)
    for drafts in (1, 2, 5, 8, 16):
        assert costs.step(1, drafts) == pytest.approx(0.015 + 0.0005 * drafts, rel=0.02)
    before = costs.step(1, 8)
    costs.add_step(1, 8, 5.0)
    assert before < costs.step(1, 8) < 1.3 * before, "something else ran"
    assert costs.step(2, 0) == pytest.approx(0.010 * 1.2 / 1.1, rel=0.01), "a guess"
    costs.add_step(4, 0, 0.014)
    assert costs.step(4, 0) == 0.014 and costs.step(4, 8) > 0.014
    for _ in range(60):
        costs.add_step(1, 0, 0.020)
    assert costs.step(1, 0) == pytest.approx(0.020, rel=0.01), "the context has grown"


def test_multiples_that_are_not_used_are_forgotten() -> None:
    costs = StepCosts()
    costs.add_step(1, 0, 1.0)
    for _ in range(9):
        costs.add_step(1, 4, 3.0)
    assert costs.step(1, 4) == pytest.approx(3.0, rel=0.01)
    for _ in range(1000):
        costs.add_step(1, 0, 1.0)
    assert costs.step(1, 4) == pytest.approx(1.4, rel=0.1)


def test_times_of_drafts() -> None:
    costs = StepCosts()
    for _ in range(50):
        costs.add_drafts(4, 0.008)
    assert costs.draft == pytest.approx(0.002)


def drafts_of_one(
    budget: Budget, steps: int, before: Callable[[int], None] = lambda step: None
) -> list[int]:
    """Return how many drafts, all of them right, a sample gets in each of some steps."""
    sample, made = Known(), []
    for step in range(steps):
        before(step)
        made.append(length := len(budget.shapes([sample], [4])[0]))
        budget.drafted([sample], [Tree.chain([1] * length)], 0.0)
        budget.learn(sample, Tree.chain([1] * length), [1] * (length + 1))
    return made


def test_a_model_that_does_not_pay_is_tried_now_and_then() -> None:
    """Drafts as dear as steps never pay, and take no more than 2 % of the time."""
    table = Table([0.1 * (9 + rows) for rows in range(40)], draft=1.0)
    budget = settled(SelfDraft(4), table)
    made = drafts_of_one(budget, 2000)
    extra = sum(table.step(1, n) - table.step(1, 0) + n * table.draft for n in made)
    assert 0 < extra <= 0.022 * 2000 * table.step(1, 0)
    assert max(made) == 1 and made[:2] == [1, 1]


def test_a_model_that_begins_to_pay_comes_back() -> None:
    table = Table([0.1 * (9 + rows) for rows in range(40)], draft=1.0)
    budget = settled(SelfDraft(4), table)

    def grow_long(step: int) -> None:
        table._each = 1.0 if step < 300 else 0.3  # as where the context has grown long

    lengths = drafts_of_one(budget, 600, grow_long)
    assert sum(lengths[2:300]) < 10
    assert lengths[-50:] == [4] * 50


@pytest.mark.parametrize("cost", [0.01, 9.0])
def test_what_is_drawn_for_a_seed_does_not_depend_on_times(cost: float) -> None:
    """A seeded draw gets no drafts of a model, whether they pay or it is time for a trial."""
    budget = settled(SelfDraft(4), Table([1.0] * 40, draft=cost))
    seeded, unseeded, greedy = (
        Known(SamplingParams(seed=3)),
        Known(SamplingParams()),
        Known(SamplingParams(temperature=0, seed=3)),
    )
    found = [budget.shapes([seeded, unseeded, greedy], [4, 4, 4]) for _ in range(2000)]
    assert {shapes[0] for shapes in found} == {()}
    assert any(shapes[1] and shapes[2] for shapes in found)
    assert not any(budget.shapes([seeded], [4])[0] for _ in range(2000))
    budget = Budget(SelfDraft(4, adaptive=False))
    assert budget.shapes([seeded, greedy], [4, 4]) == [(1,) * 4] * 2


def test_what_is_not_adaptive_is_left_alone() -> None:
    budget = Budget(NGram(4, adaptive=False), Table([9.0**rows for rows in range(9)]))
    assert budget.cut([Known()], [BRANCHED], [7]) == [BRANCHED]
    assert Budget(SelfDraft(4, adaptive=False)).shapes([Known()], [3]) == [(1, 1, 1)]


class Wrong:
    """Drafts what never comes, or what does, by a function of the model."""

    def __init__(self, right: bool) -> None:
        self.right = right

    def propose(self, samples: Sequence[Any], shapes: Sequence[Widths]) -> list[Tree]:
        return [
            self._tree([*s.state.prompt, *s.state.output], sum(shape))
            for s, shape in zip(samples, shapes, strict=True)
        ]

    def _tree(self, text: list[int], most: int) -> Tree:
        tokens: list[int] = []
        for _ in range(most):
            best = int(mixed([*text, *tokens]).argmax())
            tokens.append(best if self.right else (best + 1) % 14)
        return Tree.chain(tokens, match=3) if tokens else NO_DRAFTS

    def forget(self, sample: Any) -> None: ...


def adapting(right: bool, seconds: Sequence[float]) -> tuple[LLM, list[int]]:
    """Return an engine whose steps take so long, by their rows, and the rows of each step."""
    llm = fake_llm()
    runner, rows = runner_of(llm), []
    runner.proposer, runner.most_drafts = Wrong(right), 8
    now, verify = [0.0], runner.verify

    def timed(*parts: Any) -> Any:
        logits = verify(*parts)
        rows.append(len(logits))
        now[0] += seconds[len(logits)]
        return logits

    runner.verify = timed  # type: ignore[method-assign]
    llm.loop = Loop(
        runner,
        llm.tokenizer,
        Budget(NGram(8)),
        max_num_seqs=1,
        max_model_len=64,
        clock=lambda: now[0],
    )
    return llm, rows


@pytest.mark.parametrize("right", [False, True])
def test_an_engine_adapts_and_its_tokens_do_not_change(right: bool) -> None:
    cheap = [1 + 0.02 * rows for rows in range(10)]
    llm, rows = adapting(right, cheap)
    outputs = [llm.generate([[3]], GREEDY)[0].outputs[0].token_ids for _ in range(3)]
    plain = fake_llm().generate([[3]], GREEDY)[0].outputs[0].token_ids
    assert outputs == [plain] * 3
    assert rows[0] == 1 < rows[1], "the first says what a step costs, then drafts are tried"
    assert (max(rows[-10:]) == 9) if right else (set(rows[-10:]) == {1})


def test_rows_that_cost_too_much_are_not_run_however_good_the_drafts() -> None:
    dear = [float(1 + 30 * (rows > 1)) * rows for rows in range(10)]
    llm, rows = adapting(True, dear)
    for _ in range(6):
        llm.generate([[3]], GREEDY)
    assert rows[1] > 1 and rows[-60:].count(1) >= 58


def test_a_step_without_drafts_is_timed_now_and_then() -> None:
    budget = Budget(NGram(7), Table([1.0] * 20))
    sample = Known(rates=rates_of(1.0))
    sizes = []
    for _ in range(300):
        trees = budget.cut([sample], [BRANCHED], [7])
        sizes.append(len(trees[0]))
        budget.learn(Known(), NO_DRAFTS, [1])
        budget.checked(trees, 1.0)
    plain = [at for at, size in enumerate(sizes) if size == 0]
    assert plain[0] == 0 and {after - at for at, after in itertools.pairwise(plain)} == {65}


@pytest.mark.parametrize("clock", ["drafts", "steps"])
def test_drafts_that_were_thought_to_pay_lose_next_to_nothing(clock: str) -> None:
    """Chances and costs say that four drafts pay; they take what no cost says."""
    budget = settled(SelfDraft(4), Table([1.0] * 40, draft=0.01))
    sample, spent, made = Known(rates=rates_of(1.0)), 0.0, 0
    for _ in range(4000):
        length = len(budget.shapes([sample], [4])[0])
        tree = Tree.chain([1] * length) if length else NO_DRAFTS
        more = 2.0 if length else 0.0
        budget.drafted([sample], [tree], more if clock == "drafts" else 0.0)
        budget.learn(Known(), NO_DRAFTS, [1])  # one token, whatever was drafted
        budget.checked([tree], 1.0 + (more if clock == "steps" else 0.0))
        spent, made = spent + 1 + more, made + length
    assert made > 0
    assert spent <= 1.03 * 4000


def test_drafts_that_bring_tokens_are_never_stopped() -> None:
    budget = settled(SelfDraft(4), Table([1.0] * 40, draft=0.01))
    sample, made = Known(rates=rates_of(1.0)), []
    for _ in range(130):
        made.append(len(budget.shapes([sample], [4])[0]))
        tree = Tree.chain([1] * made[-1]) if made[-1] else NO_DRAFTS
        budget.drafted([sample], [tree], 0.1)
        budget.learn(Known(), NO_DRAFTS, [1] * (made[-1] + 1))
        budget.checked([tree], 1.5)
    assert made.count(4) >= 126 and made.count(0) <= 4, "but for steps that are timed without"


def test_a_step_right_after_drafts_does_not_say_what_one_without_costs() -> None:
    """It takes half as long again, for the weights of the drafts are in the caches."""
    costs = StepCosts()
    budget = settled(SelfDraft(4), costs)
    sample, before, made = Known(rates=rates_of(1.0)), 0, 0
    for _ in range(400):
        length = len(budget.shapes([sample], [4])[0])
        tree = Tree.chain([1] * length) if length else NO_DRAFTS
        budget.drafted([sample], [tree], 0.2 * length)
        budget.learn(Known(), NO_DRAFTS, [1] * (length + 1))
        budget.checked([tree], 1.5 if before and not length else 1.0 + 0.1 * length)
        made, before = made + length, length
    assert made > 350
    assert costs.step(1, 0) == pytest.approx(1.0)
