"""The prefix store finds the longest beginning and forgets what was used longest ago.

Also tests prefix_tree.py.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from suffice.engine.prefix_tree import PrefixTree, shared
from suffice.engine.retained import Entry, Retained

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


class Held:
    """A sequence with a byte for each token."""

    def __init__(self, length: int) -> None:
        self.cache = self
        self.length = self.bytes = length

    def reachable(self, rows: int) -> int:
        return min(rows, self.length)


def store(limit: int | None = None, least: int = 1) -> tuple[Retained, list[Any]]:
    closed: list[Any] = []
    return Retained(closed.append, limit, least), closed


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


@given(tokens, tokens, st.integers(0, 3))
def test_shared_counts_the_common_beginning(
    label: tuple[int, ...], text: tuple[int, ...], at: int
) -> None:
    assert shared(label, text, at) == common(label, text[at:])


class Trees(RuleBasedStateMachine):
    """A tree against a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: PrefixTree[list[int]] = PrefixTree()
        self.items: list[tuple[tuple[int, ...], list[int]]] = []

    @rule(tokens=tokens)
    def add(self, tokens: tuple[int, ...]) -> None:
        self.items.append((tokens, []))
        self.tree.add(*self.items[-1])

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.items) - 1))
        self.tree.remove(self.items.pop(at)[1])

    @rule(tokens=tokens)
    def match(self, tokens: tuple[int, ...]) -> None:
        found = [(id(item), length) for item, length in self.tree.matches(tokens)]
        lengths = [length for _, length in found]
        assert lengths == sorted(lengths, reverse=True)
        wanted = {id(item): common(own, tokens) for own, item in self.items}
        assert dict(found) == {item: length for item, length in wanted.items() if length}
        begun = {id(item) for item in self.tree.beginnings(tokens)}
        assert begun == {id(item) for own, item in self.items if own == tokens[: len(own)]}

    @invariant()
    def empty_nodes_are_gone(self) -> None:
        if not self.items:
            assert not self.tree._root.children


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_longest_beginning_is_found() -> None:
    kept, _ = store()
    short, long = Held(3), Held(5)
    kept.add((1, 2, 9), short)
    kept.add((1, 2, 3, 4, 8), long)
    entry, rows = kept.find((1, 2, 3, 4, 5, 6))
    assert (entry and entry.sequence, rows) == (long, 4)
    assert kept.find((7,)) == (None, 0)
    assert kept.find((1, 2, 9, 9))[1] == 3


def test_what_is_shorter_than_the_least_is_no_hit_and_not_kept() -> None:
    kept, closed = store(least=3)
    kept.add((1, 2, 3, 4), Held(4))
    assert kept.find((1, 2))[0] is None
    held = Held(2)
    assert kept.add((8, 9), held) is None
    assert closed == [held]


def test_a_beginning_of_a_longer_one_is_dropped() -> None:
    kept, closed = store()
    short = Held(2)
    kept.add((1, 2), short)
    kept.add((1, 3), Held(2))
    kept.add((1, 2, 3), Held(3))
    assert closed == [short] and len(kept) == 2


def test_who_was_used_longest_ago_goes_first() -> None:
    kept, closed = store(limit=6)
    first, second, third = (Held(3) for _ in range(3))
    entry = kept.add((1, 1, 1), first)
    kept.add((2, 2, 2), second)
    assert entry is not None
    kept.touch(entry)
    kept.add((3, 3, 3), third)
    assert closed == [second] and kept.bytes == 6
    assert kept.drop_oldest(but=entry) and closed == [second, third]
    assert not kept.drop_oldest(but=entry)
    kept.clear()
    assert closed[-1] is first and len(kept) == 0


def test_a_running_request_gives_what_it_has_run_and_says_what_comes() -> None:
    kept, closed = store(limit=0)
    assert not kept.enabled
    held = Held(2)
    entry = kept.add_running((1, 2, 3, 4), held)
    assert kept.find((1, 2, 3, 9))[1] == 2
    assert kept.coming((1, 2, 3, 9))[1] == 3
    held.length = 4
    assert kept.find((1, 2, 3, 9))[1] == 3
    assert kept.coming((1, 2, 3, 9)) == (None, 0)
    assert not kept.drop_oldest(), "it is in use"
    assert kept.take(entry) is held and closed == []
    assert kept.find((1, 2, 3, 9))[0] is None


def test_a_parked_cache_stays_though_a_longer_one_comes() -> None:
    kept, closed = store()
    parked = kept.add((), Held(3), wanted=True)
    assert isinstance(parked, Entry)
    kept.add((1, 2), Held(2))
    assert kept.has(parked) and closed == []
    assert kept.find((1,))[0] is not parked
