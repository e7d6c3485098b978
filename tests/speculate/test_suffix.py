from __future__ import annotations

import itertools
import random

import pytest

from suffice.errors import InputError
from suffice.speculate.suffix import Suffix, SuffixAutomaton
from suffice.speculate.tree import Tree


def automaton(text: list[int], **options: object) -> SuffixAutomaton:
    made = SuffixAutomaton(Suffix(**options))  # type: ignore[arg-type]
    made.extend(text)
    return made


def test_every_subword_is_counted() -> None:
    rng = random.Random(1)
    for _ in range(60):
        text = rng.choices(range(3), k=rng.randrange(1, 40))
        made = automaton(text)
        for size in (1, 2, 3, 5):
            for word in itertools.product(range(3), repeat=size):
                places = range(len(text) - size + 1)
                count = sum(tuple(text[at : at + size]) == word for at in places)
                assert made.occurrences(word) == count


def test_the_likeliest_continuation_comes_first() -> None:
    text = [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2]
    assert automaton(text, max_spec_factor=2).propose(2).tokens[0] == 3
    tree = automaton(text, tree=True).propose(8)
    assert {(tree.tokens[at], tree.parents[at]) for at in tree.children(-1)} == {(3, -1), (4, -1)}
    assert tree.tokens[0] == 3, "two of three times"


def test_a_tree_is_in_order_with_its_first_branch_first() -> None:
    rng = random.Random(2)
    branched = 0
    for _ in range(200):
        text = rng.choices(range(3), k=60)
        options = {"min_token_prob": 0, "max_spec_factor": 9}
        tree = automaton(text, tree=True, adaptive=False, **options).propose(10)
        assert len(tree) <= 10
        assert all(parent < node for node, parent in enumerate(tree.parents))
        chain = next((i for i, parent in enumerate(tree.parents) if parent != i - 1), len(tree))
        assert all(parent < chain for parent in tree.parents[chain : chain + 1])
        for node in range(-1, len(tree)):
            tokens = [tree.tokens[child] for child in tree.children(node)]
            assert len(set(tokens)) == len(tokens), "siblings differ"
        branched += tree != Tree.chain(tree.tokens, match=tree.match)
        own = automaton(text, **options).propose(10)
        assert own == Tree.chain(own.tokens, match=own.match), "without branches unless asked for"
    assert branched > 50


def test_a_tree_to_select_from_has_the_whole_chain() -> None:
    rng = random.Random(4)
    more = 0
    for _ in range(200):
        text = rng.choices(range(3), k=60)
        chain = automaton(text, max_spec_factor=4).propose(6)
        tree = automaton(text, max_spec_factor=4, tree=True).propose(6)
        assert tree.tokens[: len(chain)] == chain.tokens and tree.match == chain.match
        assert tree.parents[: len(chain)] == chain.parents
        assert len(tree) <= 12
        more += len(tree) > len(chain)
    assert more > 100


def test_drafts_reach_as_far_as_the_match_is_long() -> None:
    text = [*range(20), 30, 31, 5, 6, 7]
    assert automaton(text).propose(9).tokens == (8, 9, 10)
    assert automaton(text, max_spec_factor=2).propose(9).tokens == (8, 9, 10, 11, 12, 13)
    assert automaton(text, max_spec_factor=2).propose(4).tokens == (8, 9, 10, 11)


def test_unlikely_drafts_are_left_out() -> None:
    text = [token for other in range(20, 28) for token in (1, other)] + [1]
    assert automaton(text, min_token_prob=0.2).propose(4).tokens == ()
    assert len(automaton(text, min_token_prob=0.1, tree=True).propose(8)) > 4


def test_a_loop_goes_on() -> None:
    assert automaton([1, 2, 3] * 6).propose(9).tokens == (1, 2, 3) * 3


def test_nothing_to_go_by() -> None:
    for text in ([], [1], [1, 2, 3]):
        assert automaton(text).propose(4).tokens == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_speculative_tokens": 40},
            "speculator 'suffix': num_speculative_tokens=40: must be between 1 and 31",
        ),
        (
            {"max_spec_factor": 0.0},
            "speculator 'suffix': max_spec_factor=0.0: must be positive and finite",
        ),
        (
            {"min_token_prob": 1.5},
            "speculator 'suffix': min_token_prob=1.5: must be between 0 and 1",
        ),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Suffix(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message
