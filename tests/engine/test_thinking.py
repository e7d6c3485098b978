"""Thinking is free and limited, and a grammar begins where it ends."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from suffice.engine.thinking import Thinking, Thought

OPEN, CLOSE, END, VOCABULARY = 7, 8, 9, 70
LETTERS = {10: "</", 11: "think", 12: ">", 13: ">a"}


class Only:
    """A grammar that allows one token, and notes what it is told."""

    fault = "none fits"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def fill(self, words: NDArray[np.uint32]) -> None:
        words[:] = 0
        words[1] = 1  # token 32

    def advance(self, token: int) -> None:
        self.seen.append(token)


def decode(tokens: list[int]) -> str:
    return "".join(LETTERS.get(token, chr(token + 97)) for token in tokens)


def allowed(state: Thought) -> set[int]:
    words = np.zeros(3, np.uint32)
    state.fill(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCABULARY]
    return set(map(int, bits.nonzero()[0]))


ALL = set(range(VOCABULARY))


def thought(begun: bool, then: Only | None, budget: int | None = None, **own: object) -> Thought:
    close = own.get("close", (CLOSE,))
    assert isinstance(close, tuple)
    facts = Thinking(begun, OPEN, close, budget, bool(own.get("within")))
    return Thought(facts, then, frozenset({END}), decode)


def test_a_grammar_begins_where_thinking_ends() -> None:
    then = Only()
    state = thought(True, then)
    assert allowed(state) == ALL - {END}, "an answer that obeys a grammar does not end before it"
    for token in (1, 2, CLOSE):
        assert not then.seen and not state.fault
        state.advance(token)
    assert allowed(state) == {32} and state.fault == "none fits"
    state.advance(32)
    assert then.seen == [32]


@pytest.mark.parametrize("token", [OPEN, 32])
def test_the_first_token_may_begin_it(token: int) -> None:
    then = Only()
    state = thought(False, then)
    assert allowed(state) == {OPEN, 32}
    state.advance(token)
    assert allowed(state) == (ALL - {END} if token == OPEN else {32})
    assert then.seen == ([] if token == OPEN else [32])


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_budget_ends_it_by_its_own_mark(begun: bool, budget: int) -> None:
    state = thought(begun, None, budget)
    if not begun:
        assert allowed(state) == ALL
        state.advance(OPEN)
    for _ in range(budget):
        assert allowed(state) == ALL
        state.advance(1)
    assert allowed(state) == {CLOSE}
    state.advance(CLOSE)
    assert allowed(state) == ALL
    state.advance(OPEN)
    assert allowed(state) == {CLOSE}, "thinking that begins again has no more than the budget"


def test_a_mark_of_several_tokens() -> None:
    then = Only()
    state = thought(True, then, 5, close=(10, 11, 12))
    for token in (1, 10, 11):
        state.advance(token)
    assert allowed(state) == ALL - {END}
    state.advance(13)  # it may end within a token
    assert allowed(state) == {32}
    state = thought(True, None, 1, close=(10, 11, 12))
    state.advance(1)
    for token in (10, 11, 12):
        assert allowed(state) == {token}
        state.advance(token)
    assert allowed(state) == ALL


def test_a_grammar_that_describes_the_thinking_sees_all_of_it() -> None:
    then = Only()
    state = thought(True, then, 3, close=(10, 11, 12), within=True)
    for token in (32, 32, 32):
        assert allowed(state) == {32}
        state.advance(token)
    for token in (10, 11, 12):
        assert allowed(state) == {token}
        state.advance(token)
    assert allowed(state) == {32} and then.seen == [32, 32, 32, 10, 11, 12]


def test_thinking_that_ends_in_time_is_left_alone() -> None:
    state = thought(True, None, 2)
    state.advance(1)
    state.advance(CLOSE)
    assert allowed(state) == ALL
    unopened = thought(False, None, 0)
    unopened.advance(1)
    assert allowed(unopened) == ALL
