"""Where ids of requests, seeds and ids of tool calls come from: by chance, or from a name.

A request of a batch must give the same answer in every run, so it draws from its own name.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_source: ContextVar[Callable[[int], bytes]] = ContextVar("source", default=os.urandom)


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
