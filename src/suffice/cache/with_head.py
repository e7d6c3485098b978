"""The cache of a text whose hidden states a head follows, to draft what comes next.

A row of the head's own cache is made of the model's hidden states of a token and of the token after
it (see `decoder.draft_head`). Its first row is of the text's first token, or of a later one: its
layer goes by the distances between rows alone, so they are numbered from there. Hidden states whose
rows have not been made yet wait here: at least those of the last token, until the token after it is
known. A row of a head that drafts blocks is made of the hidden states of its own token alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from suffice.cache import LayerRows
from suffice.cache.kv import KVCache
from suffice.errors import OutOfMemory
from suffice.native import core


class HeadRows(NamedTuple):
    """Rows that a head can make: the tokens [T] and the hidden states float32 [T, H] of each."""

    tokens: list[int]
    hidden: np.ndarray


class CacheWithHead(KVCache):
    """A cache, and the `head`'s rows of the same text, which grow, are cut and are copied alike.

    A text that goes on without its hidden states is lost to the head, which drafts nothing more;
    with `late` it begins again where hidden states come again. `block`: the head drafts blocks of
    that many rows, for which there is always room; 0: it drafts one token at a time.
    """

    def __init__(
        self,
        rows: Sequence[LayerRows],
        *,
        head: KVCache,
        late: bool = False,
        block: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(rows, **options)
        self.head = head
        self._late = late
        self._block = block
        self._first = 0  # the token of the head's first row
        self._read: list[int] = []  # the token of each of the head's rows
        self._tokens: list[int] = []  # whose hidden states wait
        self._hidden: list[np.ndarray] = []  # [H] each
        self._handed: HeadRows | None = None  # of the tentative rows

    @property
    def followed(self) -> bool:
        """Whether the head has, or can make, a row of every token from its first on."""
        return self._made + len(self._tokens) == self.length

    @property
    def _made(self) -> int:
        """The tokens of the text up to that of the head's last row."""
        return self._first + self.head.length

    @property
    def since(self) -> int:
        """The token of the head's first row: 0, but where it began late."""
        return self._first

    @property
    def waiting(self) -> int:
        """How many tokens wait for the head."""
        return len(self._tokens)

    @property
    def bytes(self) -> int:
        """Bytes of memory mapped for both caches."""
        return super().bytes + self.head.bytes

    @property
    def spare(self) -> int:
        """Rows that are allocated in both and hold nothing.

        Where there was no memory for the head's, `reserve` has to be called again.
        """
        return super().spare if self._matches else 0

    @property
    def _matches(self) -> bool:
        """Whether the head's rows have as much room, and that of a block."""
        return self.head.capacity >= self.capacity + self._block

    def hand_over(self, tokens: list[int], hidden: np.ndarray) -> None:
        """Take the tentative rows' tokens, and the hidden states float32 [T, H] of the last T."""
        self._handed = HeadRows(tokens, hidden)

    def to_follow(self, last: int | None = None) -> HeadRows | None:
        """Return the rows that the head lacks; `last` is the token after the text, if it is known.

        None: there are none, or the text is lost to it. In blocks `last` has no such row.
        """
        if self._block:
            tokens = list(self._tokens)
        else:
            tokens = self._tokens[1:] if last is None else [*self._tokens[1:], last]
        if not self.followed or not self._tokens or not tokens:
            return None
        return HeadRows(tokens, np.stack(self._hidden[: len(tokens)]))

    def follow(self, tokens: list[int]) -> None:
        """Note that the head has committed rows of these tokens, the first that were waiting."""
        self._read += tokens
        del self._tokens[: len(tokens)], self._hidden[: len(tokens)]

    def commit(self, path: list[int]) -> None:
        """Commit as any cache does; what was handed over of the path waits for the head."""
        handed = self._handed
        super().commit(path)
        missing = 0 if handed is None else len(handed.tokens) - len(handed.hidden)
        known = [] if handed is None else [row for row in path if row >= missing]
        if handed is None or not known:
            if path:
                self._tokens, self._hidden = [], []
            return
        first, tokens = self.length - len(known), [handed.tokens[row] for row in known]
        other = not self._block and bool(self._read) and self._read[-1] != tokens[0]
        if other and not self._tokens and first == self._made:
            self._cut(first - 1)  # its last row was for another token
        if self._made + len(self._tokens) != first and self._late:
            self._cut(0)
            self._first = first
        if self._made + len(self._tokens) == first:
            self._tokens += tokens
            self._hidden += [handed.hidden[row - missing] for row in known]

    def rollback(self) -> None:
        """Drop all tentative rows."""
        self._handed = None
        super().rollback()

    def reserve(self, rows: int) -> None:
        """Make room for `rows` more rows in both.

        Raises:
            OutOfMemory: There is not enough memory; the rows are unchanged.
        """
        super().reserve(rows)
        self._match()

    def _match(self) -> None:
        if self._matches:
            return
        try:
            self.head.native.resize(self.capacity + self._block, self.head.length)
        except core.OutOfMemory as error:
            raise OutOfMemory(str(error)) from None

    def populate(self, size: int) -> bool:
        """Have the system map about `size` bytes more; return whether all memory is mapped."""
        return super().populate(size) and self.head.populate(size)

    def reachable(self, rows: int) -> int:
        """Return the greatest length of at most `rows` tokens to which it can be truncated.

        The hidden states of its last token must be there: the head needs them with the token after
        it, which may be another then. If they are gone, that token is run once more. A head that
        drafts blocks has a row of that token instead.
        """
        found = super().reachable(rows)
        if self._block:
            return found
        return super().reachable(found - 1) if self._first < found <= self._made else found

    def truncate(self, rows: int) -> None:
        """Keep the first `rows` committed rows and drop the rest.

        Raises:
            InputError: As for any cache.
        """
        super().truncate(rows)
        self._cut(rows)

    def drop_drafts(self) -> None:
        """Drop the head's rows of drafted tokens."""
        self.head.truncate(min(self.head.length, self.length - self._first))

    def _cut(self, rows: int) -> None:
        left = max(rows - self._made, 0)
        del self._tokens[left:], self._hidden[left:]
        if rows < self._made:
            kept = max(rows - self._first, 0)
            self.head.truncate(kept)
            del self._read[kept:]
        self._first = min(self._first, rows)

    def fork(self, rows: int | None = None, spare: int | None = None) -> CacheWithHead:
        """Return an independent copy of the first `rows` committed rows (default: all).

        Raises:
            OutOfMemory: There is no memory for the copy.
        """
        kept = self.length if rows is None else rows
        own = min(self.head.length, kept)
        head = self.head.fork(own, spare)
        try:
            other = super().fork(rows, spare)
        except OutOfMemory:
            head.close()
            raise
        assert isinstance(other, CacheWithHead)
        other.head = head
        other._read, other._handed = self._read[:own], None
        other._tokens, other._hidden = list(self._tokens), list(self._hidden)
        other._cut(kept)
        try:
            other._match()
        except OutOfMemory:
            other.close()
            raise
        return other

    def close(self) -> None:
        """Free the memory; the cache is then empty and can be filled again."""
        super().close()
        self.head.close()
