"""Caches that outlive their requests, found by the tokens they hold. No tensors here.

Running requests are in the store too, as sources: others may copy the beginning of their prompt.
Caches of one group are never found by requests of another, whose time to the first token would
otherwise tell them what others asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from suffice.engine.prefix_tree import PrefixTree, Tokens

LEAST_ROWS = 64  # shorter caches are not worth keeping, nor shorter beginnings copying


@dataclass(eq=False)
class Entry:
    """A cache and its tokens.

    `tokens` are those whose rows may serve any request that begins alike. `running`: a request uses
    the cache, so that its rows may be copied but not taken over. `wanted`: a parked request will
    take it over again. `kept` are tokens that shall stay: who shares fewer copies them. `marks`:
    lengths after which others go on, of a prompt that is running.
    """

    tokens: Tokens
    sequence: Any
    group: str = ""
    running: bool = False
    wanted: bool = False
    kept: int = 0
    marks: set[int] = field(default_factory=set)

    @property
    def ready(self) -> int:
        """How many of the tokens have been run."""
        return min(len(self.tokens), int(self.sequence.cache.length))

    def reach(self, tokens: int) -> int:
        """Return how many of the first `tokens` tokens another sequence can begin with."""
        return int(self.sequence.cache.reachable(min(tokens, self.ready)))


@dataclass
class CachedPrefix:
    """A cache that outlives its request, and the tokens whose keys and values it holds.

    The rows of the first `clean` of them are those that a prompt would have, bit for bit.
    """

    sequence: Any = None
    tokens: list[int] = field(default_factory=list)
    clean: int = 0

    def shared(self, prompt: list[int]) -> int:
        """Return the length of the prompt's cached prefix; the last token is always run."""
        if self.sequence is None:
            return 0
        pairs = zip(self.tokens, prompt[:-1], strict=False)
        return next(
            (index for index, (held, token) in enumerate(pairs) if held != token),
            min(len(self.tokens), max(len(prompt) - 1, 0)),
        )


class Retained:
    """The store. `close` frees a sequence; `limit` is in bytes, None for no limit of its own.

    Caches that nobody uses leave it least recently used first.
    """

    def __init__(
        self, close: Callable[[Any], None], limit: int | None = 0, least: int = LEAST_ROWS
    ) -> None:
        self.limit = limit
        self.least = least
        self.queries = self.hits = 0  # tokens
        self._close = close
        self._trees: dict[str, PrefixTree[Entry]] = {}  # by group
        self._idle: dict[int, Entry] = {}  # by id, least recently used first

    @property
    def enabled(self) -> bool:
        """Whether caches are kept at all."""
        return self.limit != 0

    @property
    def bytes(self) -> int:
        """The bytes of the caches that nobody uses."""
        return sum(int(entry.sequence.cache.bytes) for entry in self._idle.values())

    def __len__(self) -> int:
        return len(self._idle)

    def find(self, tokens: Tokens, group: str = "") -> tuple[Entry | None, int]:
        """Return the entry with most rows for a prompt that begins so, and how many; None, 0."""
        best: Entry | None = None
        rows = 0
        for entry, common in self._matches(tokens, group):
            if common <= rows:
                break
            if (reached := entry.reach(common)) > rows:
                best, rows = entry, reached
        return (best, rows) if rows >= self.least else (None, 0)

    def coming(self, tokens: Tokens, group: str = "") -> tuple[Entry | None, int]:
        """Return what is about to have most rows of a prompt that begins so, and how many."""
        found = (
            (entry, common)
            for entry, common in self._matches(tokens, group)
            if entry.running and entry.ready < common
        )
        return next(found, (None, 0))

    def common(self, tokens: Tokens, group: str = "") -> int:
        """Return how many tokens a prompt shares with one that has been run, at its beginning."""
        found = (min(common, entry.ready) for entry, common in self._matches(tokens, group))
        return max(found, default=0)

    def _matches(self, tokens: Tokens, group: str) -> Iterator[tuple[Entry, int]]:
        tree = self._trees.get(group)
        return iter(()) if tree is None else tree.matches(tokens)

    def _plant(self, entry: Entry) -> None:
        self._trees.setdefault(entry.group, PrefixTree()).add(entry.tokens, entry)

    def add_running(self, tokens: Tokens, sequence: Any, group: str = "") -> Entry:
        """Let other requests copy from a running one, whose prompt is `tokens`."""
        entry = Entry(tokens, sequence, group, running=True)
        self._plant(entry)
        return entry

    def add(
        self,
        tokens: Tokens,
        sequence: Any,
        group: str = "",
        *,
        wanted: bool = False,
        kept: int = 0,
    ) -> Entry | None:
        """Keep a cache that is free now; return None if it was closed instead."""
        if not self.enabled or (len(tokens) < self.least and not wanted):
            self._close(sequence)
            return None
        entry = Entry(tokens, sequence, group, wanted=wanted, kept=kept)
        if (tree := self._trees.get(group)) is not None:
            for shorter in list(tree.beginnings(tokens)):
                if not shorter.running and not shorter.wanted:
                    self._drop(shorter)
        self._plant(entry)
        self._idle[id(entry)] = entry
        while self.limit is not None and self.bytes > self.limit:
            self.drop_oldest()
        return entry if id(entry) in self._idle else None

    def touch(self, entry: Entry) -> None:
        """Note that an entry was used."""
        if self._idle.pop(id(entry), None) is not None:
            self._idle[id(entry)] = entry

    def has(self, entry: Entry) -> bool:
        """Whether an entry is still there, and nobody uses it."""
        return id(entry) in self._idle

    def take(self, entry: Entry) -> Any:
        """Remove an entry and return its sequence, which is the caller's now."""
        self._idle.pop(id(entry), None)
        tree = self._trees[entry.group]
        tree.remove(entry)
        if not len(tree):
            del self._trees[entry.group]
        return entry.sequence

    def drop_oldest(self, but: Entry | None = None) -> bool:
        """Free the cache that was used longest ago, but not `but`; False if there is none."""
        entry = next(self._others(but), None)
        if entry is not None:
            self._drop(entry)
        return entry is not None

    def clear(self) -> None:
        """Free all caches that nobody uses."""
        while self.drop_oldest():
            pass

    def _others(self, but: Entry | None) -> Iterator[Entry]:
        return (entry for entry in self._idle.values() if entry is not but)

    def _drop(self, entry: Entry) -> None:
        self._close(self.take(entry))
