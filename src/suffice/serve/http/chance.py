"""Where ids of requests, seeds and ids of tool calls come from: by chance, or from a name.

A request of a batch must give the same answer in every run, so it draws from its own name.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar

AT_ONCE = (
    4096  # bytes that are asked of the system together: each call costs as much as a request's ids
)


class _Random:
    """Random bytes of the system, some of them in store."""

    def __init__(self) -> None:
        self._store, self._at = b"", 0

    def __call__(self, count: int) -> bytes:
        if self._at + count > len(self._store):
            self._store, self._at = os.urandom(max(AT_ONCE, count)), 0
        self._at += count
        return self._store[self._at - count : self._at]


_source: ContextVar[Callable[[int], bytes]] = ContextVar("source", default=_Random())  # noqa: B039


def drawn(count: int) -> bytes:
    """Return `count` bytes: random ones, or the next that follow from the name; see `named`."""
    return _source.get()(count)


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Let what is drawn within this task follow from a name, from the beginning."""
    token = _source.set(random.Random(name).randbytes)
    try:
        yield
    finally:
        _source.reset(token)
