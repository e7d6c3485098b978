"""A tree of token sequences, in which the one that shares the longest beginning is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Tokens = tuple[int, ...]


class _Node(Generic[T]):
    def __init__(self, label: Tokens, parent: _Node[T] | None) -> None:
        self.label = label  # the tokens from the parent to here
        self.parent = parent
        self.children: dict[int, _Node[T]] = {}
        self.items: list[T] = []

    def below(self) -> Iterator[T]:
        todo = [self]
        while todo:
            node = todo.pop()
            yield from node.items
            todo += node.children.values()


class PrefixTree(Generic[T]):
    """Items by their tokens. A node's label holds all tokens up to the next branch."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node((), None)
        self._nodes: dict[int, _Node[T]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def add(self, tokens: Tokens, item: T) -> None:
        """Add an item."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = _Node(tokens[at:], node)
                node.children[tokens[at]] = child
            common = shared(child.label, tokens, at)
            if common < len(child.label):
                child = _split(child, common)
            node, at = child, at + common
        node.items.append(item)
        self._nodes[id(item)] = node

    def remove(self, item: T) -> None:
        """Remove an item that was added."""
        node = self._nodes.pop(id(item))
        node.items = [each for each in node.items if each is not item]
        while node.parent is not None and not node.items and not node.children:
            del node.parent.children[node.label[0]]
            node = node.parent

    def matches(self, tokens: Tokens) -> Iterator[tuple[T, int]]:
        """Yield items with how many tokens they share with `tokens`, the longest first.

        Those that share no token are left out.
        """
        path: list[tuple[_Node[T], int]] = []
        node, at = self._root, 0
        while at < len(tokens) and (child := node.children.get(tokens[at])) is not None:
            common = shared(child.label, tokens, at)
            at += common
            path.append((child, at))
            if common < len(child.label):
                break
            node = child
        seen: set[int] = set()
        for found, length in reversed(path):
            for item in found.below():
                if id(item) not in seen:
                    seen.add(id(item))
                    yield item, length

    def beginnings(self, tokens: Tokens) -> Iterator[T]:
        """Yield the items whose tokens are all in `tokens`, at its beginning."""
        node, at = self._root, 0
        while True:
            yield from list(node.items)
            child = node.children.get(tokens[at]) if at < len(tokens) else None
            if child is None or shared(child.label, tokens, at) < len(child.label):
                return
            node, at = child, at + len(child.label)


def shared(label: Tokens, tokens: Tokens, at: int = 0) -> int:
    """Return how many tokens `label` shares with `tokens` from `at` on."""
    low, high = 0, max(min(len(label), len(tokens) - at), 0)
    if label[:high] == tokens[at : at + high]:
        return high
    while high - low > 1:  # label[:low] is shared, label[:high] is not
        middle = (low + high) // 2
        if label[low:middle] == tokens[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low


def _split(node: _Node[T], at: int) -> _Node[T]:
    """Put a new node in the middle of a node's label; return it."""
    assert node.parent is not None
    upper: _Node[T] = _Node(node.label[:at], node.parent)
    node.parent.children[upper.label[0]] = upper
    node.label, node.parent = node.label[at:], upper
    upper.children[node.label[0]] = node
    return upper
